"""Named graph rewrites that give an execution provider more nodes, each proven to change nothing.

A rewrite takes a model, changes it, and returns what it did, naming nodes; a model that gives it
nothing to do stays as it is. Only the main graph is rewritten.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgepack.errors import BugError, StepError, format_list, suggest_nearest
from edgepack.model.editing import move_constants_to_initializers, take_name
from edgepack.model.facts import STANDARD, find_default_opset, read_signature
from edgepack.model.files import MODEL
from edgepack.model.inferring import infer_graph
from edgepack.model.reading import read_model, write_model
from edgepack.quantization.methods.smooth_quant import smooth_norms
from edgepack.quantization.qdq.preparation import list_body_reads
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import measure_worst_sqnr
from edgepack.steps.graph.activations import (
    NEEDED_OPS,
    fuse_clip,
    fuse_gelu,
    fuse_hard_swish,
    fuse_layer_norm,
    fuse_mish,
    split_hard_swish,
    split_mish,
)
from edgepack.steps.graph.half import drop_unread, find_inner_names, find_reads, name_nodes

if TYPE_CHECKING:
    import onnx

_SAME_DB = 60.0
_NAMED = 5
CACHE_KEY = "COREML_CACHE_KEY"
"""Metadata entry by which onnxruntime's CoreML provider names its compiled model: letters and
digits, at most 64. Without it the model's path is taken, and a changed model is not noticed
(onnxruntime core/providers/coreml, 1.24, read in source)."""
# Reshape has an input for its shape from opset 5 on; before, an attribute (Operators.md).
_RESHAPE_OPSET = 5
# BatchNormalization has had spatial and is_test attributes up to opset 8 (Changelog.md).
_BATCH_NORM_OPSET = 9


@dataclass(frozen=True)
class Rewritten:
    """The model after named rewrites, in order. Inputs: ``model``; ``samples``, optionally."""

    name: ClassVar[str] = "rewritten"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    rewrites: tuple[str, ...]
    """Names from :data:`REWRITES`."""

    def check(self, inputs: Inputs) -> None:
        """Make sure that the rewrites exist.

        Raises:
            StepError: One does not.
        """
        del inputs
        for name in self.rewrites:
            if name not in REWRITES:
                raise StepError(
                    f"there is no rewrite {name!r}", hint=suggest_nearest(name, REWRITES)
                )

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``."""
        model = read_model(inputs["model"] / MODEL)
        name_nodes(model)
        done = {name: REWRITES[name](model) for name in self.rewrites}
        write_model(model, out / MODEL)
        told = [
            f"{name}: {format_list(changes, _NAMED)}" for name, changes in done.items() if changes
        ]
        facts = {"rewrites": {name: len(changes) for name, changes in done.items()}}
        return Notes("; ".join(told) or "nothing to rewrite", facts)

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that signature and outputs are those of the model, and the cache key, if any, true.

        Raises:
            StepError: They are not.
        """
        before, after = read_model(inputs["model"] / MODEL), read_model(out / MODEL)
        if read_signature(before) != read_signature(after):
            raise _make_error("the inputs or outputs changed")
        if "coreml-cache-key" in self.rewrites and _read_metadata(after, CACHE_KEY) != hash_content(
            after
        ):
            raise _make_error(f"{CACHE_KEY} is not the key of this model")
        sqnr = measure_worst_sqnr(inputs["model"] / MODEL, out / MODEL, inputs.get("samples"))
        if sqnr < _SAME_DB:
            raise _make_error(f"the outputs are {sqnr:.0f} dB from the model's")


def _make_error(problem: str) -> BugError:
    return BugError(f"after the rewrites {problem}")


# --- flatten-to-reshape ------------------------------------------------------------------------


def flatten_to_reshape(model: onnx.ModelProto) -> list[str]:
    """Turn every Flatten into a Reshape, as CoreML ML programs have no Flatten.

    The shape is a constant: both sides of the axis where they are known, -1 for one that is not.
    Where neither is, the first dimension is kept if it is one side, else the Flatten stays.
    """
    from onnx import helper, numpy_helper

    if find_default_opset(model) < _RESHAPE_OPSET:
        return []
    shapes = _find_shapes(model)
    done = []
    for node in model.graph.node:
        if node.op_type != "Flatten" or node.domain not in STANDARD:
            continue
        target = _compute_flat_shape(shapes.get(node.input[0]), _find_attribute(node, "axis", 1))
        if target is None:
            continue
        values = numpy_helper.from_array(np.array(target, np.int64))
        shape = _add_initializer(model, f"{node.name}/shape", values)
        new = helper.make_node("Reshape", [node.input[0], shape], node.output, node.name)
        node.CopyFrom(new)
        done.append(f"{node.name!r} to {target}")
    return done


def _compute_flat_shape(shape: Sequence[int | None] | None, axis: int) -> list[int] | None:
    """Return the shape after a Flatten, with at most one -1; None if it is unknown."""
    if shape is None or 0 in shape:
        return None
    axis = axis + len(shape) if axis < 0 else axis
    sides = [_multiply_sizes(shape[:axis]), _multiply_sizes(shape[axis:])]
    if sides == [None, None]:
        # 0 keeps the input's dimension (Reshape, allowzero=0).
        return [0, -1] if axis == 1 else None
    return [-1 if size is None else size for size in sides]


def _multiply_sizes(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return int(np.prod(known)) if len(known) == len(sizes) else None


def _find_shapes(model: onnx.ModelProto) -> dict[str, list[int | None]]:
    """Return the shape of every tensor that has a rank; None for dimensions that are not known."""
    import onnx

    # If that fails, only the shapes in the file itself are known.
    graph = model.graph
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        graph = infer_graph(model)
    found: dict[str, list[int | None]] = {t.name: list(t.dims) for t in model.graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            found[value.name] = [
                int(dim.dim_value) if dim.HasField("dim_value") else None
                for dim in value.type.tensor_type.shape.dim
            ]
    return found


# --- drop-identities ---------------------------------------------------------------------------

# Dropout has an input training_mode from opset 12 on, and up to opset 6 an attribute is_test.
_TRAINING_OPSET, _TEST_OPSET = 12, 6


def drop_identities(model: onnx.ModelProto) -> list[str]:
    """Drop every Identity, and every Dropout that is not in training mode.

    Such a node stays if its result is read in a body, if somebody reads a Dropout's mask, or if it
    leads from an input of the model straight to an output.
    """
    move_constants_to_initializers(model)
    nodes = model.graph.node
    dropped, renamed = _find_bypasses(model)
    if not dropped:
        return []
    done = [repr(nodes[place].name) for place in dropped]
    for place in reversed(dropped):
        del nodes[place]
    for node in nodes:
        node.input[:] = [_follow(renamed, name) for name in node.input]
        node.output[:] = [_follow(renamed, name) for name in node.output]
    drop_unread(model)
    return done


def _find_bypasses(model: onnx.ModelProto) -> tuple[list[int], dict[str, str]]:
    """Return which nodes can be dropped, and which tensors get another's name then."""
    nodes = model.graph.node
    outputs = {value.name for value in model.graph.output}
    in_bodies = {name for node in nodes for name in list_body_reads(node)}
    read = {name for node in nodes for name in find_reads(node)} | outputs
    made = {name for node in nodes for name in node.output}
    dropped, renamed = [], dict[str, str]()
    for place, node in enumerate(nodes):
        if not _is_identity(model, node):
            continue
        source, result = _follow(renamed, node.input[0]), node.output[0]
        if in_bodies & {source, result} or read & {*node.output[1:]}:
            continue
        if result not in outputs:
            renamed[result] = source
        elif source in made and source not in outputs:
            renamed[source] = result
        else:
            continue
        dropped.append(place)
    return dropped, renamed


def _follow(renamed: Mapping[str, str], name: str) -> str:
    """Return the name that a tensor has after all renames."""
    while name in renamed:
        name = renamed[name]
    return name


def _is_identity(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    if node.domain not in STANDARD or node.op_type not in ("Identity", "Dropout"):
        return False
    if node.op_type == "Identity":
        return True
    opset = find_default_opset(model)
    if opset <= _TEST_OPSET:
        return bool(_find_attribute(node, "is_test", 0))
    if opset < _TRAINING_OPSET or len(node.input) <= 2 or not node.input[2]:
        return True
    from onnx import numpy_helper

    given = [t for t in model.graph.initializer if t.name == node.input[2]]
    return bool(given) and not numpy_helper.to_array(given[0]).any()


# --- fold-batch-norm ---------------------------------------------------------------------------


def fold_batch_norm(model: onnx.ModelProto) -> list[str]:
    """Fold BatchNormalization into the weights before it, or make a Mul and an Add of it.

    Folded: behind a Conv, ConvTranspose or Gemm whose weights are constants and whose result
    nothing else reads. The rest becomes ``x * scale + shift`` where the rank is known. In training
    mode, or with parameters that are not float32 constants, it stays.
    """
    if find_default_opset(model) < _BATCH_NORM_OPSET:
        return []
    move_constants_to_initializers(model)
    shapes = _find_shapes(model)
    done = []
    for node in list(model.graph.node):
        if node.op_type == "BatchNormalization" and not _find_attribute(node, "training_mode", 0):
            done += _remove_batch_norm(model, node, shapes)
    if done:
        drop_unread(model)
    return done


def _remove_batch_norm(
    model: onnx.ModelProto, node: onnx.NodeProto, shapes: Mapping[str, Sequence[int | None]]
) -> list[str]:
    """Remove one BatchNormalization if possible; return how."""
    parameters = _read_values(model, node.input[1:5])
    if parameters is None or any(node.output[1:]):
        return []
    gamma, beta, mean, variance = parameters
    scale = gamma / np.sqrt(variance + _find_attribute(node, "epsilon", 1e-5))
    shift = beta - mean * scale
    before = _find_only_maker(model, node.input[0])
    if before is not None and _scale_weights(model, before, scale, shift):
        before.output[0] = node.output[0]
        model.graph.node.remove(node)
        return [f"{node.name!r} into {before.name!r}"]
    rank = len(shapes.get(node.input[0], ()))
    if rank < 2:
        return []
    _replace_by_mul_add(model, node, [scale, shift], [-1] + [1] * (rank - 2))
    return [f"{node.name!r} to Mul and Add"]


def _read_values(model: onnx.ModelProto, names: Sequence[str]) -> list[np.ndarray[Any, Any]] | None:
    """Return float32 constants as float64; None if one of the names is something else."""
    from onnx import TensorProto, numpy_helper

    inputs = {value.name for value in model.graph.input}
    floats = {
        t.name: t
        for t in model.graph.initializer
        if t.data_type == TensorProto.FLOAT and t.name not in inputs
    }
    if not floats.keys() >= set(names):
        return None
    return [numpy_helper.to_array(floats[name]).astype(np.float64) for name in names]


def _find_only_maker(model: onnx.ModelProto, tensor: str) -> onnx.NodeProto | None:
    """Return the node that makes a tensor if just one node reads it, and no one outside."""
    readers = Counter(name for node in model.graph.node for name in find_reads(node))
    readers.update(value.name for value in model.graph.output)
    maker = next((node for node in model.graph.node if tensor in node.output), None)
    return maker if readers[tensor] == 1 else None


# Operator to the axis of its weights that the output channels are on; Gemm's with transB is 0.
_OUTPUT_AXIS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1}


def _scale_weights(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    scale: np.ndarray[Any, Any],
    shift: np.ndarray[Any, Any],
) -> bool:
    """Give a node weights and a bias that scale and shift its output channels, if it has such."""
    given = [name for name in node.input[1:3] if name]
    values = _read_values(model, given)
    if node.op_type not in _OUTPUT_AXIS or not values:
        return False
    bias = values[1] if len(values) > 1 else np.zeros(1)
    if bias.ndim > 1 and bias.shape[0] != 1:
        return False
    bias = bias * _find_attribute(node, "beta", 1.0) * scale + shift
    for attribute in node.attribute:
        if attribute.name == "beta":
            attribute.f = 1.0
    names = [
        _add_float32(
            model, f"{node.name}/weights", values[0] * _make_factors(node, values[0], scale)
        ),
        _add_float32(model, f"{node.name}/bias", bias.reshape(-1)),
    ]
    node.input[:] = [node.input[0], *names]
    return True


def _make_factors(
    node: onnx.NodeProto, weights: np.ndarray[Any, Any], scale: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return a factor for every output channel, broadcastable to a node's weights."""
    axis = 0 if _find_attribute(node, "transB", 0) else _OUTPUT_AXIS[node.op_type]
    if node.op_type == "ConvTranspose":
        # Weights are (inputs, outputs / groups, ...): a group's inputs go to its own outputs.
        groups = _find_attribute(node, "group", 1)
        rows = np.repeat(scale.reshape(groups, -1), weights.shape[0] // groups, axis=0)
        return rows.reshape(rows.shape + (1,) * (weights.ndim - 2))
    return scale.reshape([-1 if k == axis else 1 for k in range(weights.ndim)])


def _replace_by_mul_add(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    factors: Sequence[np.ndarray[Any, Any]],
    shape: Sequence[int],
) -> None:
    from onnx import helper

    scale, shift = (
        _add_float32(model, f"{node.name}/{role}", array.reshape(shape))
        for role, array in zip(("scale", "shift"), factors, strict=True)
    )
    product = _find_free_name(model, f"{node.name}/product")
    mul = helper.make_node("Mul", [node.input[0], scale], [product], f"{node.name}/mul")
    add = helper.make_node("Add", [product, shift], [node.output[0]], node.name)
    place = list(model.graph.node).index(node)
    model.graph.node.insert(place, mul)
    node.CopyFrom(add)


# --- coreml-cache-key --------------------------------------------------------------------------


def set_coreml_cache_key(model: onnx.ModelProto) -> list[str]:
    """Write the hash of the model's content where onnxruntime's CoreML provider looks for it."""
    key = hash_content(model)
    if _read_metadata(model, CACHE_KEY) == key:
        return []
    set_metadata(model, CACHE_KEY, key)
    return [f"{CACHE_KEY} = {key}"]


def hash_content(model: onnx.ModelProto) -> str:
    """Return 64 hexadecimal digits: the sha256 of all of a model but its cache key.

    Names, weights, attributes and metadata count; where the weights lie does not, if the model
    was read with :func:`~edgepack.model.reading.read_model`.
    """
    import onnx
    import onnx.numpy_helper

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    entries = [entry for entry in model.metadata_props if entry.key != CACHE_KEY]
    del bare.metadata_props[:]
    bare.metadata_props.extend(entries)
    digest = hashlib.sha256()
    for tensor in bare.graph.initializer:
        # By value: the same weights may lie in the message or beside the file.
        digest.update(repr((tensor.name, tensor.data_type, list(tensor.dims))).encode())
        digest.update(
            b"\0".join(tensor.string_data)
            if tensor.data_type == onnx.TensorProto.STRING
            else onnx.numpy_helper.to_array(tensor).tobytes()
        )
    del bare.graph.initializer[:]
    digest.update(bare.SerializeToString(deterministic=True))
    return digest.hexdigest()


def set_metadata(model: onnx.ModelProto, key: str, value: str) -> None:
    """Set one entry of a model's ``metadata_props``; others keep their order."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)


def _read_metadata(model: onnx.ModelProto, key: str) -> str:
    return next((entry.value for entry in model.metadata_props if entry.key == key), "")


# --- small things ------------------------------------------------------------------------------


def _find_attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:  # noqa: ANN401
    import onnx

    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def _add_float32(model: onnx.ModelProto, name: str, values: np.ndarray[Any, Any]) -> str:
    from onnx import numpy_helper

    return _add_initializer(model, name, numpy_helper.from_array(values.astype(np.float32)))


def _add_initializer(model: onnx.ModelProto, name: str, tensor: onnx.TensorProto) -> str:
    """Add a tensor under a name that nothing in the model has; return the name."""
    tensor.name = _find_free_name(model, name)
    model.graph.initializer.append(tensor)
    return tensor.name


def _find_free_name(model: onnx.ModelProto, name: str) -> str:
    used = {t.name for t in model.graph.initializer} | {v.name for v in model.graph.input}
    for node in model.graph.node:
        used |= {*node.output, *find_inner_names(node)}
    return take_name(name, used)


# --- smooth-norms ------------------------------------------------------------------------------


def smooth(model: onnx.ModelProto) -> list[str]:
    """Make the large channels that a LayerNormalization gives to products smaller, for 8 bits."""
    move_constants_to_initializers(model)
    return smooth_norms(model)


REWRITES: dict[str, Callable[[onnx.ModelProto], list[str]]] = {
    "drop-identities": drop_identities,
    "fuse-clip": fuse_clip,
    "fuse-gelu": fuse_gelu,
    "fuse-hard-swish": fuse_hard_swish,
    "fuse-layer-norm": fuse_layer_norm,
    "fuse-mish": fuse_mish,
    "split-hard-swish": split_hard_swish,
    "split-mish": split_mish,
    "flatten-to-reshape": flatten_to_reshape,
    "fold-batch-norm": fold_batch_norm,
    "smooth-norms": smooth,
    "coreml-cache-key": set_coreml_cache_key,
}
"""Name to function; ``coreml-cache-key`` belongs last."""


def choose_rewrites(names: Sequence[str], ops: Collection[str]) -> tuple[str, ...]:
    """Return those of some rewrites that may find something in a model with these operators."""
    needs = {name: NEEDED_OPS.get(name, (frozenset[str](),)) for name in names}
    return tuple(name for name in names if any(each.issubset(ops) for each in needs[name]))
