"""Runs one inference with each provider of a target, in an environment that was just installed.

That a provider is listed says little: its libraries may be for another GPU, and then a kernel is
missing only when one is to run.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from edgepack.base.resources import find_ondevice_dir
from edgepack.base.schema import StrictModel
from edgepack.devices.answers import read_answer
from edgepack.devices.transport import Transport
from edgepack.project.profile import Profile

_CPU = "CPUExecutionProvider"
PROVE_S = 1800.0
"""How long all providers may take: TensorRT builds an engine first."""

# Behind edgepack_nvidia.py. Arguments: a JSON list of providers with their lists of options, and a
# model whose one node is computed on the CPU provider as well. Prints a JSON object: what is wrong
# with each provider, or "".
_PROVE = """
import base64, ctypes, json, os, select, signal, sys, tempfile
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import numpy, onnxruntime
onnxruntime.set_default_logger_severity(4)
preload(onnxruntime)
SECONDS = 300
providers, model = json.loads(sys.argv[1]), base64.b64decode(sys.argv[2])
x = numpy.random.default_rng(0).standard_normal((1, 4, 16, 16)).astype("float32")

def compute(name, options, folder):
    settings = onnxruntime.SessionOptions()
    settings.enable_profiling = True
    settings.profile_file_prefix = os.path.join(folder, "profile")
    options = {key: value.replace("{cache}", folder) for key, value in options.items()}
    session = onnxruntime.InferenceSession(model, settings, providers=[(name, options)])
    if session.get_providers()[0] != name:
        raise RuntimeError(explain_absence(name))
    session.disable_fallback()
    [y] = session.run(None, {"x": x})
    with open(session.end_profiling()) as file:
        nodes = [event["args"] for event in json.load(file) if event.get("cat") == "Node"]
    return y, {node.get("provider") for node in nodes}

def explain_absence(name):
    file = "libonnxruntime_providers_%s.so" % name.replace("ExecutionProvider", "").lower()
    try:
        ctypes.CDLL(os.path.join(os.path.dirname(onnxruntime.__file__), "capi", file))
    except OSError as error:
        return "its library cannot be loaded: %s" % error
    return "sessions are made without it"

def find_problem(name, settings, folder):
    problems = []
    for options in settings:
        problems.append(apart(lambda: try_once(name, options, folder)))
        if not problems[-1]:
            return ""
    return problems[0]

def try_once(name, options, folder):
    right, _ = compute("CPUExecutionProvider", {}, folder)
    y, ran = compute(name, options, folder)
    off = float(numpy.abs(y - right).max() / numpy.abs(right).max())
    if name not in ran:
        return "it took no node of a convolution"
    return "" if off < 0.05 else "a convolution is off by %.0f %%" % (100 * off)

def apart(work):
    # In a process of its own: a vendor's library may crash, or never end.
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except Exception as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        os.write(writer, b"=" + said.encode("utf-8", "replace")[:1000])
        os._exit(0)
    os.close(writer)
    if not select.select([reader], [], [], SECONDS)[0]:
        os.kill(child, signal.SIGKILL)
    said = os.read(reader, 1 << 16)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if said[:1] == b"=":
        return said[1:].decode("utf-8", "replace")
    number = status & 127
    return "it takes longer than %d s" % SECONDS if number == signal.SIGKILL else (
        "it crashes: signal %d" % number)

with tempfile.TemporaryDirectory() as folder:
    problem = apart(lambda: compute("CPUExecutionProvider", {}, folder) and "")
    if problem:
        sys.exit("CPUExecutionProvider: " + problem)
    found = {name: find_problem(name, settings, folder) for name, settings in providers}
print()
print(json.dumps({"found": found}))
"""


class _Answer(StrictModel):
    found: Annotated[dict[str, Annotated[str, Field(max_length=400)]], Field(max_length=50)]


def find_broken_providers(
    python: str, profile: Profile, has: Sequence[str], device: str, transport: Transport
) -> dict[str, str]:
    """Return the providers of a target that an environment lists and that cannot compute, and why.

    Args:
        python: The environment's interpreter.
        profile: The target; each provider is tried with the options of its variants, one after
            the other, and one that works is enough: they may ask for several kinds of hardware.
        has: The providers that the environment lists.
        device: The device's name.
        transport: The connection to it.

    Raises:
        RemoteCommandError: Not even the CPU provider computes.
        DeviceError: The connection broke.
    """
    tried: dict[str, list[dict[str, str]]] = {}
    for variant in profile.variants:
        first = variant.providers[0]
        if first.name in has and first.options not in tried.get(first.name, []):
            tried.setdefault(first.name, []).append(first.options)
    if set(tried) <= {_CPU}:  # importing it has shown as much
        return {}
    words = json.dumps(list(tried.items()))
    model = base64.b64encode(_make_convolution()).decode()
    program = (find_ondevice_dir() / "runtime" / "edgepack_nvidia.py").read_text(encoding="utf-8")
    done = transport.run([python, "-c", program + _PROVE, words, model], timeout_s=PROVE_S)
    done.check(
        "computing with the installed runtime",
        device=device,
        hint="the runtime does not fit this processor or system: give another with --wheel FILE",
    )
    line = done.stdout.strip().rpartition(b"\n")[2]
    what = "what the installed runtime computes"
    answer = read_answer(_Answer, line, device=device, what=what, max_bytes=1 << 16)
    return {name: why for name, why in answer.found.items() if why}


def _make_convolution() -> bytes:
    """Return a model of one convolution, of IR 8 and opset 13, which all pinned runtimes load."""
    import numpy as np
    import onnx

    weights = np.random.default_rng(1).standard_normal((8, 4, 3, 3)).astype(np.float32)
    of_floats = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["x", "w"], ["y"])],
        "convolution",
        [onnx.helper.make_tensor_value_info("x", of_floats, [1, 4, 16, 16])],
        [onnx.helper.make_tensor_value_info("y", of_floats, [1, 8, 14, 14])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opset = onnx.helper.make_opsetid("", 13)
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[opset])
    return bytes(model.SerializeToString())
