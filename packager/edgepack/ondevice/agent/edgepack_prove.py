"""Runs a convolution with execution providers, each in a process of its own.

Runs as ``python -IS -c SOURCE`` with the Python of an environment that has numpy and onnxruntime,
and nothing but Python 3.8 beside them. A vendor's library may crash, or never end: that is the fate
of one provider, and no other's.

Reads a JSON object: ``model``, of one node and in base64, and ``providers``, pairs of a name and
lists of options to try one after the other. Prints one: ``found``, what is wrong with each
provider, or nothing.
"""

import base64
import ctypes
import json
import os
import select
import signal
import site
import sys
import tempfile
from functools import partial
from typing import Any, Callable, Dict, List, Set, Tuple, Type

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
site.main()  # -S left out the environment's packages

import edgepack_nvidia  # type: ignore[import-not-found]  # noqa: E402
import numpy  # noqa: E402
import onnxruntime  # noqa: E402
from onnxruntime.capi import onnxruntime_pybind11_state  # noqa: E402

CPU = "CPUExecutionProvider"
ALONE_S = 300.0
"""How long a provider may take: TensorRT builds an engine first."""
MOST_OFF = 0.05
"""How far outputs may be off, of the largest: float16 computes within a thousandth."""
TEXT = 300

# onnxruntime's exceptions have no common base of their own.
KINDS = [kind for kind in vars(onnxruntime_pybind11_state).values() if isinstance(kind, type)]
ERRORS: Tuple[Type[Exception], ...] = (
    RuntimeError,
    ValueError,
    OSError,
    *(kind for kind in KINDS if issubclass(kind, Exception)),
)


def compute(model: bytes, name: str, options: Dict[str, str], folder: str) -> Tuple[Any, Set[str]]:
    """Return a model's output with a provider, and on which providers its nodes were."""
    settings = onnxruntime.SessionOptions()
    settings.enable_profiling = True
    settings.profile_file_prefix = os.path.join(folder, "profile")
    filled = {key: value.replace("{cache}", folder) for key, value in options.items()}
    session = onnxruntime.InferenceSession(model, settings, providers=[(name, filled)])
    if session.get_providers()[0] != name:
        raise RuntimeError(explain_absence(name))
    session.disable_fallback()
    x = numpy.random.default_rng(0).standard_normal((1, 4, 16, 16)).astype("float32")
    [y] = session.run(None, {"x": x})
    with open(session.end_profiling()) as file:
        nodes = [event["args"] for event in json.load(file) if event.get("cat") == "Node"]
    return y, {node.get("provider") for node in nodes}


def explain_absence(name: str) -> str:
    """Return why sessions are made without a provider that onnxruntime lists."""
    file = "libonnxruntime_providers_%s.so" % name.replace("ExecutionProvider", "").lower()
    try:
        ctypes.CDLL(os.path.join(os.path.dirname(onnxruntime.__file__), "capi", file))
    except OSError as error:
        return "its library cannot be loaded: %s" % error
    return "sessions are made without it"


def compare(model: bytes, name: str, options: Dict[str, str], folder: str) -> str:
    """Return what is wrong with a provider's convolution; empty if nothing is."""
    right, _ = compute(model, CPU, {}, folder)
    y, ran = compute(model, name, options, folder)
    off = float(numpy.abs(y - right).max() / numpy.abs(right).max())
    if name not in ran:
        return "it took no node of a convolution"
    return "" if off < MOST_OFF else "a convolution is off by %.0f %%" % (100 * off)


def apart(work: Callable[[], str]) -> str:
    """Return what a function says in a process of its own, or how that ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writer, b"=" + shorten(work).encode("utf-8", "replace"))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    is_late = not select.select([reader], [], [], ALONE_S)[0]
    if is_late:
        os.kill(child, signal.SIGKILL)
    said = os.read(reader, 4 * TEXT)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if said:
        return said[1:].decode("utf-8", "replace")
    if is_late:
        return "it takes longer than %d s" % ALONE_S
    return "it crashes: %s" % (
        "signal %d" % os.WTERMSIG(status)
        if os.WIFSIGNALED(status)
        else "exit code %d" % os.WEXITSTATUS(status)
    )


def shorten(work: Callable[[], str]) -> str:
    """Return what a function says, or the first line of its error."""
    try:
        return work()
    except ERRORS as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0][:TEXT]


def find_problem(model: bytes, name: str, settings: List[Dict[str, str]], folder: str) -> str:
    """Return what is wrong with a provider: nothing, if it works with some of the settings."""
    problems = []
    for options in settings:
        problem = apart(partial(compare, model, name, options, folder))
        if not problem:
            return ""
        problems.append(problem)
    return problems[0]


def main() -> None:
    """Answer what is asked on stdin."""
    onnxruntime.set_default_logger_severity(4)
    asked = json.load(sys.stdin)
    model = base64.b64decode(asked["model"])
    edgepack_nvidia.preload(onnxruntime)
    with tempfile.TemporaryDirectory() as folder:
        problem = apart(partial(compare, model, CPU, {}, folder))
        if problem:
            sys.exit("%s: %s" % (CPU, problem))
        found = {
            name: find_problem(model, name, settings, folder)
            for name, settings in asked["providers"]
        }
    sys.stdout.write("\n" + json.dumps({"found": found}) + "\n")


if __name__ == "__main__":
    main()
