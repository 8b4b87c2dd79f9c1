"""Makes models with a planted fault, to see whether goldens detect it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import ModelError
from edgepack.model.reading import read_model, write_model
from edgepack.model.running import make_session, run_session
from edgepack.steps.comparing import SEED

if TYPE_CHECKING:
    import onnx

_MOST_WEIGHTS = 4
"""The largest ones are changed."""
_DTYPES = frozenset({"float16", "float32", "float64", "int8", "uint8"})
_LEAST_IR = 4
"""The first version whose sessions take other values for initializers: since ONNX 1.4 graph inputs
need not name all initializers, and those that they name are defaults (onnx/docs/IR.md)."""


@dataclass(frozen=True)
class Mutant:
    """A model with other values in one of its weights."""

    what: str
    weights: Mapping[str, Array]
    is_slight: bool = False
    """Whether it is a single value, which most samples show little of."""


def open_mutable_session(
    model: Path, feed: Mapping[str, Array]
) -> tuple[Any, tuple[Mutant, ...]]:  # onnxruntime is loaded in workers only
    """Return an unoptimized session and the mutants that it is when it is fed their weights.

    The largest weights are taken, each once shuffled, which leaves its values' size as it is, once
    with its largest channel at 0, and once with its largest value on the other side of 0. There are
    none where onnxruntime takes the model's weights as constants only: the feed is run to find out.

    Raises:
        ModelError: The model does not load.
    """
    proto = read_model(model)
    weights = _find_largest_weights(proto)
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_model(_add_inputs(proto, weights), Path(folder) / model.name)
            session = make_session(Path(folder) / model.name, optimized=False)
        run_session(session, {**feed, **weights})
    except ModelError:
        return make_session(model, optimized=False), ()
    return session, tuple(_list_mutants(weights))


def _find_largest_weights(proto: onnx.ModelProto) -> dict[str, Array]:
    from onnx import helper, numpy_helper

    sized = [
        (int(np.prod(t.dims)) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize, n, t)
        for n, t in enumerate(_gather_constants(proto))
        if len(t.dims) > 1 and helper.tensor_dtype_to_np_dtype(t.data_type).name in _DTYPES
    ]
    largest = sorted(sized, key=lambda each: (-each[0], each[1]))[:_MOST_WEIGHTS]
    return {tensor.name: numpy_helper.to_array(tensor) for _, _, tensor in largest}


def _gather_constants(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the graph's initializers; Constant nodes that hold a tensor are made such before."""
    graph = proto.graph
    for node in [node for node in graph.node if node.op_type == "Constant"]:
        [attribute] = node.attribute
        if attribute.name == "value":
            graph.initializer.add().CopyFrom(attribute.t)
            graph.initializer[-1].name = node.output[0]
            graph.node.remove(node)
    return list(graph.initializer)


def _add_inputs(proto: onnx.ModelProto, weights: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the model with just these of its initializers as inputs too."""
    from onnx import helper

    initializers = {tensor.name: tensor for tensor in proto.graph.initializer}
    inputs = [each for each in proto.graph.input if each.name not in initializers]
    for name in weights:
        tensor = initializers[name]
        inputs.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.ir_version = max(_LEAST_IR, proto.ir_version)
    return proto


def _list_mutants(weights: Mapping[str, Array]) -> Iterator[Mutant]:
    generator = np.random.default_rng(SEED)
    for name, values in weights.items():
        shuffled = generator.permutation(values.reshape(-1)).reshape(values.shape)
        yield Mutant(f"the weights {name!r} shuffled", {name: shuffled})
        # Integers have their zero point in another tensor; most weights are near it.
        zero = 0.0 if values.dtype.kind == "f" else float(np.median(values))
        sizes = np.abs(values.astype(np.float64) - zero)
        silenced = values.copy()
        silenced[int(np.argmax(sizes.reshape(len(values), -1).sum(axis=1)))] = zero
        yield Mutant(f"a channel of the weights {name!r} at 0", {name: silenced})
        largest = int(np.argmax(sizes))
        mirrored = values.copy().reshape(-1)
        mirrored[largest] = _clip_value(2 * zero - float(mirrored[largest]), values.dtype)
        what = f"the largest of the weights {name!r} mirrored"
        yield Mutant(what, {name: mirrored.reshape(values.shape)}, is_slight=True)


def _clip_value(value: float, dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f":
        return value
    ends = np.iinfo(dtype)
    return min(max(value, ends.min), ends.max)
