"""Makes a batch of fixed size symbolic, and proves each row of larger batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import ModelError, StepError, format_list
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.model.editing import MIN_IR, take_name
from edgepack.model.facts import (
    TensorSpec,
    find_default_opset,
    read_model_facts,
    read_signature,
    require_plain_signature,
)
from edgepack.model.files import MODEL
from edgepack.model.inferring import infer_graph
from edgepack.model.ir import loadable
from edgepack.model.reading import read_model, read_outline, write_model
from edgepack.model.running import Arrays, make_random_inputs, make_session, run_session
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.cleaning.cleaned import find_source
from edgepack.steps.cleaning.draft import is_op, list_free_inputs, read_attributes
from edgepack.steps.cleaning.proof import ROWS, fill_sizes
from edgepack.steps.comparing import SEED

if TYPE_CHECKING:
    import onnx

_SAME_DB = 60.0
_NAMED = 5
# Slice has its ends as inputs from opset 10 on (Operators.md).
_SLICE_OPSET = 10
_HINT = "export the model with a symbolic batch (torch.onnx.export: dynamic_shapes or dynamic_axes)"
Sizes = Mapping[str, Sequence[int | None]]
"""By tensor: its sizes, None where one is not fixed."""


@dataclass(frozen=True)
class FreeBatch:
    """The model with a symbolic batch. Input: ``source``, a model file or the folder of a step."""

    name: ClassVar[str] = "free-batch"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    dim: str
    """What the size in front of inputs and outputs is called."""
    sizes: tuple[tuple[str, int], ...] = ()
    """Of other symbolic dimensions, for the proof."""

    def check(self, inputs: Inputs) -> None:
        """Make sure that the first input has a fixed size in front.

        Raises:
            StepError: It has not.
            ModelError: An input or output is no tensor of numbers.
        """
        source = find_source(inputs)
        require_plain_signature(read_model_facts(source))
        if not has_fixed_batch(read_outline(source)):
            raise StepError(
                f"there is no batch to be called {self.dim!r}: the first input has no fixed size in"
                " front",
                hint=f"remove {self.dim}: free from 'dims'",
            )

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``."""
        model = read_model(find_source(inputs))
        done = free_batch(model, self.dim)
        write_model(model, out / MODEL)
        told = f" ({format_list(done, _NAMED)})" if done else ""
        return Notes(f"the batch is {self.dim}{told}", {"cleanings": {self.name: done}})

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that each row of 1, 2 and 3 has the outputs that the source gives for it alone.

        Raises:
            StepError: One has not, or the model does not run; the error names the node if known.
        """
        _prove_rows(find_source(inputs), out / MODEL, self.dim, dict(self.sizes))


def has_fixed_batch(model: onnx.ModelProto) -> bool:
    """Return whether the first input has a fixed size in front."""
    return _find_batch(model) is not None


def _find_batch(model: onnx.ModelProto) -> int | None:
    inputs = list_free_inputs(model)
    dims = inputs[0].type.tensor_type.shape.dim if inputs else ()
    return int(dims[0].dim_value) if dims and dims[0].dim_value > 0 else None


def free_batch(model: onnx.ModelProto, name: str) -> list[str]:
    """Make the size in front of inputs symbolic, and what follows from it; return what was done.

    Inputs with the first one's size in front are freed. Constants that fix the batch are rewritten:
    the shapes of Reshape, and the sizes of Resize where scales give the same.
    """
    batch = _find_batch(model)
    declared = {value.name: _read_sizes(value) for value in model.graph.output}
    fixed = _infer_sizes(model)
    for value in list_free_inputs(model):
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_value == batch:
            dims[0].dim_param = name
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    done: dict[str, str] = {}
    while found := [*_free_nodes(model, fixed, done)]:
        done.update(found)
    sizes = _infer_sizes(model)
    for value in model.graph.output:
        _declare(value, declared[value.name], sizes.get(value.name), name, batch)
    return [*done.values()]


def _free_nodes(
    model: onnx.ModelProto, fixed: Sizes, done: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Rewrite the nodes whose input has become free and whose constant fixes the batch."""
    sizes = _infer_sizes(model)
    for node in list(model.graph.node):
        free = next((rewrite for op, rewrite in _REWRITES.items() if is_op(node, op)), None)
        if free is None or node.output[0] in done:
            continue
        if what := free(model, node, sizes, fixed):
            yield node.output[0], f"{node.name or node.output[0]!r} {what}"


def _free_reshape(model: onnx.ModelProto, node: onnx.NodeProto, sizes: Sizes, fixed: Sizes) -> str:
    constant = _read_constant(model, node.input[1]) if len(node.input) > 1 else None
    before, free = fixed.get(node.input[0]), _find_free(sizes, node.input[0])
    if constant is None or before is None or free is None:
        return ""
    shape = _free_shape([int(size) for size in constant.reshape(-1)], before, free)
    if shape is None:
        return ""
    node.input[1] = _add_constant(model, f"{node.output[0]}/shape", np.array(shape, np.int64))
    return f"to {shape}"


def _free_shape(shape: list[int], given: Sequence[int | None], free: int) -> list[int] | None:
    """Return a Reshape's shape with -1, or 0, where the free size goes; None if nothing changes.

    Args:
        shape: As it is.
        given: The sizes of what is reshaped, with the fixed batch.
        free: The axis of them that becomes free.
    """
    if None in given:
        return [0, *shape[1:]] if free == 0 and shape[0] == given[0] else None
    before = [size or 0 for size in given]
    own = [before[axis] if size == 0 else size for axis, size in enumerate(shape)]
    if -1 in own:
        others = math.prod(size for size in own if size != -1)
        own[own.index(-1)] = math.prod(before) // others
    in_front = math.prod(before[:free])
    place = next((p for p in range(len(own)) if math.prod(own[:p]) == in_front), None)
    if place is None or shape[place] == -1 or (shape[place] == 0 and place == free):
        return None
    return [-1 if axis == place else size for axis, size in enumerate(own)]


def _free_resize(model: onnx.ModelProto, node: onnx.NodeProto, sizes: Sizes, fixed: Sizes) -> str:
    """Give a Resize scales in the place of sizes with the batch, where they give the same."""
    attributes = read_attributes(node)
    if len(node.input) < 4 or attributes.keys() & {"axes", "keep_aspect_ratio_policy"}:
        return ""
    wanted, before = _read_constant(model, node.input[3]), fixed.get(node.input[0])
    if wanted is None or before is None or None in before:
        return ""
    if _find_free(sizes, node.input[0]) != 0:
        return ""
    known = np.array([size or 0 for size in before], np.float32)
    scales = (wanted / known).astype(np.float32)
    if not np.array_equal(np.floor(known * scales), wanted):
        return ""
    node.input[2] = _add_constant(model, f"{node.output[0]}/scales", scales)
    del node.input[3:]
    return f"by {[float(scale) for scale in scales]}"


def _free_concat(model: onnx.ModelProto, node: onnx.NodeProto, sizes: Sizes, fixed: Sizes) -> str:
    """Repeat what is joined to each sample for as many as there are, such as a class token."""
    weights = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer if tensor.dims}
    repeated = [name for name in node.input if weights.get(name, [0])[0] == 1]
    freed = [n for n in node.input if _find_free(sizes, n) == 0 and fixed.get(n, [0])[0] == 1]
    is_joined = read_attributes(node)["axis"] != 0 and find_default_opset(model) >= _SLICE_OPSET
    if not (repeated and freed and is_joined):
        return ""
    place = list(model.graph.node).index(node)
    for name in repeated:
        stem = f"{node.output[0]}/{name}"
        for new in _make_repeat(model, (freed[0], name, stem), weights[name]):
            model.graph.node.insert(place, new)
            place += 1
        node.input[list(node.input).index(name)] = model.graph.node[place - 1].output[0]
    return f"with {format_list(repeated, _NAMED)} for each sample"


def _make_repeat(
    model: onnx.ModelProto, names: tuple[str, str, str], sizes: Sequence[int]
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that repeat a constant as often as there are samples; the last gives it.

    Args:
        model: Gets the constants that they take.
        names: The samples, the constant, and what the new nodes' names begin with.
        sizes: Of the constant.
    """
    from onnx import helper

    samples, constant, stem = names
    first = _add_constant(model, f"{stem}/first", np.array([0], np.int64))
    last = _add_constant(model, f"{stem}/last", np.array([1], np.int64))
    rest = _add_constant(model, f"{stem}/sizes", np.array(sizes[1:], np.int64))
    shape, count, wanted = (f"{stem}/{part}" for part in ("shape", "count", "wanted"))
    yield helper.make_node("Shape", [samples], [shape], shape)
    yield helper.make_node("Slice", [shape, first, last], [count], count)
    yield helper.make_node("Concat", [count, rest], [wanted], wanted, axis=0)
    yield helper.make_node("Expand", [constant, wanted], [stem], stem)


def _find_free(sizes: Sizes, tensor: str) -> int | None:
    """Return a tensor's first axis that is not of fixed size."""
    found = sizes.get(tensor, ())
    return [*found].index(None) if None in found else None


_REWRITES: Mapping[str, Callable[[Any, Any, Sizes, Sizes], str]] = {
    "Reshape": _free_reshape,
    "Resize": _free_resize,
    "Concat": _free_concat,
}


def _declare(
    value: onnx.ValueInfoProto,
    declared: Sequence[int | str | None] | None,
    sizes: Sequence[int | None] | None,
    name: str,
    batch: int | None,
) -> None:
    """Declare an output as before, but for the axis of the batch."""
    if declared is None:
        return
    # Where nothing is inferred, the proof shows whether it is the first.
    free = [0] if sizes is None else [axis for axis, size in enumerate(sizes) if size is None]
    axes = [axis for axis in free if axis < len(declared) and declared[axis] == batch]
    for axis, size in enumerate(declared):
        dim = value.type.tensor_type.shape.dim.add()
        if axis in axes[:1]:
            dim.dim_param = name
        elif isinstance(size, int):
            dim.dim_value = size
        elif size:
            dim.dim_param = size


def _read_sizes(value: onnx.ValueInfoProto) -> list[int | str | None] | None:
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [
        int(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or None
        for dim in value.type.tensor_type.shape.dim
    ]


def _infer_sizes(model: onnx.ModelProto) -> dict[str, list[int | None]]:
    import onnx

    try:
        graph = infer_graph(model)
    except onnx.shape_inference.InferenceError as error:
        raise StepError(
            f"onnx cannot infer the model's shapes: {' '.join(str(error).split())[:200]}",
            hint=_HINT,
        ) from error
    found: dict[str, list[int | None]] = {t.name: list(t.dims) for t in model.graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if (sizes := _read_sizes(value)) is not None:
            found[value.name] = [size if isinstance(size, int) else None for size in sizes]
    return found


def _read_constant(model: onnx.ModelProto, name: str) -> Array | None:
    from onnx import numpy_helper

    for tensor in model.graph.initializer:
        if tensor.name == name:
            return np.asarray(numpy_helper.to_array(tensor))
    for node in model.graph.node:
        if name in node.output and is_op(node, "Constant"):
            value: Any = read_attributes(node).get("value")
            return None if value is None else np.asarray(numpy_helper.to_array(value))
    return None


def _add_constant(model: onnx.ModelProto, name: str, values: Array) -> str:
    from onnx import numpy_helper

    taken = {each for node in model.graph.node for each in (*node.input, *node.output)}
    taken |= {tensor.name for tensor in model.graph.initializer}
    model.ir_version = max(model.ir_version, MIN_IR)
    model.graph.initializer.append(numpy_helper.from_array(values, take_name(name, taken)))
    return str(model.graph.initializer[-1].name)


# --- the proof ---------------------------------------------------------------------------------


def _prove_rows(before: Path, after: Path, name: str, sizes: Mapping[str, int]) -> None:
    outline = read_outline(after)
    inputs, outputs = read_signature(outline)
    axes = {s.name: s.shape.index(name) for s in outputs if s.shape and name in s.shape}
    if lacking := [spec.name for spec in outputs if spec.name not in axes]:
        found = _find_fixing_node(outline)
        raise _make_error(f"no size of the output {lacking[0]!r} follows from it{found}")
    batch = _find_batch(read_outline(before)) or 1
    feeds = [_make_feed(inputs, rows, sizes) for rows in ROWS]
    rowed = [spec for spec in inputs if spec.shape and spec.shape[0] == name]
    with loadable(before) as source:
        session = make_session(source)
        expected = [
            [run_session(session, _repeat_row(feed, rowed, row, batch)) for row in range(rows)]
            for rows, feed in zip(ROWS, feeds, strict=True)
        ]
    session = make_session(after)
    for rows, feed, alone in zip(ROWS, feeds, expected, strict=True):
        try:
            given = run_session(session, feed)
        except ModelError as error:
            raise _make_error(f"with {rows} in it {error.problem}") from error
        _require_rows(given, alone, axes, rows)


def _find_fixing_node(model: onnx.ModelProto) -> str:
    """Return the first node whose outputs are of fixed size though an input is not, in words."""
    sizes = _infer_sizes(model)
    for node in model.graph.node:
        given = [sizes[name] for name in node.input if name in sizes]
        made = [sizes[name] for name in node.output if name in sizes]
        is_fixed = any(None in each for each in given) and made and None not in made[0]
        if is_fixed and node.op_type not in ("Shape", "Size"):
            return f"; node {node.name or node.output[0]!r} ({node.op_type}) fixes it"
    return ""


def _make_feed(inputs: Sequence[TensorSpec], rows: int, sizes: Mapping[str, int]) -> Arrays:
    specs = [fill_sizes(spec, inputs[:1], rows, sizes) for spec in inputs]
    return make_random_inputs(specs, seed=SEED + rows)


def _repeat_row(feed: Arrays, rowed: Sequence[TensorSpec], row: int, batch: int) -> Arrays:
    """Return the source's inputs for one row, which fills its batch."""
    own = {spec.name: feed[spec.name][[row] * batch] for spec in rowed}
    return {**feed, **own}


def _require_rows(
    given: Arrays, alone: Sequence[Arrays], axes: Mapping[str, int], rows: int
) -> None:
    for name, axis in axes.items():
        if given[name].ndim <= axis or given[name].shape[axis] != rows:
            raise _make_error(
                f"the output {name!r} is {list(given[name].shape)} for {rows} samples"
            )
        for row, expected in enumerate(alone):
            wanted = {name: np.take(expected[name], [0], axis)}
            found = min_sqnr_db(wanted, {name: np.take(given[name], [row], axis)})
            if found < _SAME_DB:
                raise _make_error(
                    f"sample {row + 1} of {rows} has an output {name!r} that is {found:.0f} dB from"
                    " the one it has alone"
                )


def _make_error(problem: str) -> StepError:
    return StepError(f"the batch cannot be made free: {problem}", hint=_HINT)
