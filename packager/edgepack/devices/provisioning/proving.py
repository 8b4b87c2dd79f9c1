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

from edgepack.base.schema import StrictModel
from edgepack.devices.answers import read_answer
from edgepack.devices.programs import open_program
from edgepack.devices.transport import Transport
from edgepack.project.profile import Profile

_CPU = "CPUExecutionProvider"
PROVE_S = 1800.0
"""How long all providers may take; ``ondevice/agent/edgepack_prove.py`` limits each."""


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
    model = base64.b64encode(_make_convolution()).decode()
    asked = json.dumps({"model": model, "providers": list(tried.items())})
    with open_program(
        transport,
        python,
        "edgepack_prove",
        modules=("edgepack_nvidia",),
        timeout_s=PROVE_S,
        supervised=True,
    ) as stream:
        stream.write(asked.encode())
        stream.close_stdin()
        done = stream.wait()
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
