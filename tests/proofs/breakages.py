"""What may be wrong with a model file, as a faulty quantizer would leave it.

Each function changes a model in place. They are planted in edgepack's own steps, and in the files
of a finished bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.proofs.net import session

Feeds = Sequence[Mapping[str, np.ndarray]]
Breakage = Callable[[onnx.ModelProto, Feeds], None]
"""Takes a model and samples of its inputs, which only some look at."""

_INTEGERS = (TensorProto.INT8, TensorProto.UINT8)
_WEIGHTS = (*_INTEGERS, TensorProto.FLOAT, TensorProto.FLOAT16)


def wrong_scales(model: onnx.ModelProto, _: Feeds) -> None:
    """Weights' scales that are up to eight times too small or too large, channel by channel."""
    random = np.random.default_rng(1)
    for name in _of_weights(model, 1):
        tensor = _tensors(model)[name]
        values = numpy_helper.to_array(tensor)
        factors = 8.0 ** random.uniform(-1, 1, values.shape)
        _replace(tensor, (values * factors).astype(values.dtype))


def rounded_by_other_scales(model: onnx.ModelProto, _: Feeds) -> None:
    """Weights rounded by other scales than those that are written, channel by channel."""
    random = np.random.default_rng(2)
    for tensor in _weights(model):
        values = numpy_helper.to_array(tensor)
        channels = np.moveaxis(values, values.ndim - 1 if values.ndim <= 2 else 0, -1)
        middle = 128.0 if values.dtype == np.uint8 else 0.0
        factors = random.uniform(0.05, 1, channels.shape[-1])
        # They only shrink, so that all still fit.
        changed = np.rint((channels - middle) * factors + middle).astype(values.dtype)
        _replace(tensor, np.moveaxis(changed, -1, values.ndim - 1 if values.ndim <= 2 else 0))


def saturating_scales(model: onnx.ModelProto, _: Feeds) -> None:
    """Activations' scales that are eight times too small, so that most values are cut off."""
    for name in _of_activations(model, 1):
        tensor = _tensors(model)[name]
        values = numpy_helper.to_array(tensor)
        _replace(tensor, (values / 8).astype(values.dtype))


def shifted_zero_points(model: onnx.ModelProto, _: Feeds) -> None:
    """Activations' zero points that are 100 steps away."""
    for name in _of_activations(model, 2):
        tensor = _tensors(model)[name]
        values = numpy_helper.to_array(tensor)
        _replace(tensor, ((values.astype(int) + 100) % 256).astype(values.dtype))


def swapped_channels(model: onnx.ModelProto, _: Feeds) -> None:
    """The outputs of the largest weight in another order, its scales and biases as they were."""
    tensor = max(_weights(model), key=lambda each: np.prod(each.dims))
    values = numpy_helper.to_array(tensor)
    axis = values.ndim - 1 if values.ndim <= 2 else 0
    _replace(tensor, np.roll(values, 1, axis))


def offset_only(model: onnx.ModelProto, _: Feeds) -> None:
    """The last layer's weights zero: it says the mean of what it was fitted to."""
    weights = {tensor.name: tensor for tensor in _weights(model)}
    made = {out: node for node in model.graph.node for out in node.output}
    for node in reversed(model.graph.node):
        if node.op_type not in {"Conv", "MatMul", "Gemm", "MatMulInteger", "MatMulNBits"}:
            continue
        name = node.input[1]
        while name not in weights and name in made:
            name = made[name].input[0]
        if name in weights:
            _clear(weights[name])
            return


def constant(model: onnx.ModelProto, _: Feeds) -> None:
    """All weights zero."""
    for tensor in _weights(model):
        _clear(tensor)


def mean_only(model: onnx.ModelProto, samples: Feeds) -> None:
    """The first output's mean over the samples, whatever comes in: the best constant."""
    _towards_mean(model, samples, 0.0)


def nearly_mean(model: onnx.ModelProto, samples: Feeds) -> None:
    """The same with a twentieth of what there was to say."""
    _towards_mean(model, samples, 0.05)


def _towards_mean(model: onnx.ModelProto, samples: Feeds, kept: float) -> None:
    run = session(model.SerializeToString())
    name = model.graph.output[0].name
    mean = np.mean([run.run([name], dict(feed))[0] for feed in samples], axis=0)
    _append(model, name, "Mul", np.full([1] * mean.ndim, kept, np.float32))
    _append(model, name, "Add", (1 - kept) * mean.astype(np.float32))


def unsure(model: onnx.ModelProto, _: Feeds) -> None:
    """Scores at three tenths of what they were: no detector's box is above any threshold.

    Of an output (1, 4 + C, N) the scores, of others all of the first output.
    """
    first = model.graph.output[0]
    dims = [d.dim_value for d in first.type.tensor_type.shape.dim]
    factors = np.full([1] * len(dims), 0.3, np.float32)
    if len(dims) == 3 and 4 < dims[1] < dims[2]:
        factors = np.ones((1, dims[1], 1), np.float32)
        factors[:, 4:] = 0.3
    _append(model, first.name, "Mul", factors)


def one_class(model: onnx.ModelProto, _: Feeds) -> None:
    """One class that is always the best."""
    first = model.graph.output[0]
    classes = first.type.tensor_type.shape.dim[1].dim_value
    axes = len(first.type.tensor_type.shape.dim)
    shift = np.zeros([1, classes, *[1] * (axes - 2)], np.float32)
    shift[0, 0] = 100
    _append(model, first.name, "Add", shift)


def swapped_outputs(model: onnx.ModelProto, _: Feeds) -> None:
    """The first two outputs in each other's place."""
    one, other = (output.name for output in model.graph.output[:2])
    names = {one: other, other: one}
    for node in model.graph.node:
        node.output[:] = [names.get(name, name) for name in node.output]
        node.input[:] = [names.get(name, name) for name in node.input]


def dead_state(model: onnx.ModelProto, _: Feeds) -> None:
    """A state that is zero after each step: what came before is forgotten."""
    for output in model.graph.output:
        if output.name.endswith("_out"):
            _append(model, output.name, "Mul", np.zeros((1, 1), np.float32))


def overflowing(model: onnx.ModelProto, _: Feeds) -> None:
    """Weights too large for float16: infinity, and NaN after that."""
    tensor = max(_weights(model), key=lambda each: np.prod(each.dims))
    values = numpy_helper.to_array(tensor)
    with np.errstate(over="ignore"):
        _replace(tensor, (values.astype(np.float32) * 1e6).astype(values.dtype))


BREAKAGES: dict[str, Breakage] = {
    function.__name__.replace("_", "-"): function
    for function in (
        wrong_scales,
        rounded_by_other_scales,
        saturating_scales,
        shifted_zero_points,
        swapped_channels,
        offset_only,
        mean_only,
        nearly_mean,
        constant,
        unsure,
        one_class,
        swapped_outputs,
        dead_state,
        overflowing,
    )
}


def _tensors(model: onnx.ModelProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


def _weights(model: onnx.ModelProto) -> list[TensorProto]:
    """Return the initializers that layers multiply with: integers where there are any."""
    large = [t for t in model.graph.initializer if t.data_type in _WEIGHTS and len(t.dims) >= 2]
    integers = [t for t in large if t.data_type in _INTEGERS]
    return integers or large


def _of_weights(model: onnx.ModelProto, place: int) -> set[str]:
    """Return an input's names (1: scales, 2: zero points) of what dequantizes initializers."""
    return {
        node.input[place]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        and node.input[0] in _tensors(model)
        and _tensors(model)[node.input[0]].data_type in _INTEGERS
    }


def _of_activations(model: onnx.ModelProto, place: int) -> set[str]:
    found = {n.input[place] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    return found - _of_weights(model, place)


def _clear(tensor: TensorProto) -> None:
    values = numpy_helper.to_array(tensor)
    # What stands for 0 in weights without a sign lies in the middle.
    middle = 128 if values.dtype == np.uint8 else 0
    _replace(tensor, np.full_like(values, middle))


def _replace(tensor: TensorProto, values: np.ndarray) -> None:
    # np.ascontiguousarray would give a scalar an axis.
    tensor.CopyFrom(numpy_helper.from_array(np.array(values, order="C"), tensor.name))


def _append(model: onnx.ModelProto, output: str, op: str, factor: np.ndarray) -> None:
    """Have an output pass one more node, which takes a constant."""
    before = f"{output}_before_{op}"
    for node in model.graph.node:
        node.output[:] = [before if name == output else name for name in node.output]
        node.input[:] = [before if name == output else name for name in node.input]
    model.graph.initializer.append(numpy_helper.from_array(factor, f"{output}_{op}_by"))
    model.graph.node.append(
        helper.make_node(op, [before, f"{output}_{op}_by"], [output], f"{output}_{op}")
    )
