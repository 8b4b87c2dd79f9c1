"""Which tensors of an operator become integers, by its type.

The rules come from onnxruntime's QDQ quantizer (1.31.1, quantization/operators/*.py, read and
compared on models 2026-11-21):

===================================  ==============================================================
operators                            rule
===================================  ==============================================================
Conv, ConvTranspose, Gemm, MatMul    inputs, outputs; constant operands are weights, biases int32
Batch-, Instance-, LayerNorm...      input, outputs; the scale is a weight, the bias int32
Relu, Clip                           where the input is integer: goes into the integers that its
                                     input is written as, where these end where it does
Reshape, Transpose, Flatten,         where the input is integer: the output has its input's scale,
Squeeze, Unsqueeze, Slice, TopK,     so that the values are only moved
MaxPool, AveragePool, Resize
Split                                as these, and makes its input integer
Gather, GatherElements               as these; a constant that is gathered from becomes integer
Pad                                  as Split where it pads with 0 or with values of the input
Where                                where both branches are integer
Softmax                              the output has the range 0 to 1
all others                           every float input and output
===================================  ==============================================================

Nodes are visited in the order of the graph, so "where the input is integer" depends on the nodes
before. Only float32 tensors become integers. Bodies of If, Loop and Scan are left as they are.

The differences from onnxruntime: a Clip stays if its bounds lie inside the range, a model's output
is not cut to the range of the Relu behind it, cubic Resize has a scale of its own because it
overshoots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from edgepack.model.editing import take_name
from edgepack.model.facts import STANDARD
from edgepack.quantization.qdq.grid import Grid
from edgepack.quantization.qdq.preparation import count_reads, read_clamp, read_values

if TYPE_CHECKING:
    import onnx

Role = Literal["data", "weight", "bias", "plain"]
"""What an input is to its operator. ``plain`` ones are never integers."""

QUANTIZED_OPS = frozenset(
    (
        "Add", "ArgMax", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv",
        "ConvTranspose", "CumSum", "EmbedLayerNormalization", "Flatten", "Gather",
        "GatherElements", "Gemm", "GlobalAveragePool", "InstanceNormalization",
        "LayerNormalization", "LeakyRelu", "MatMul", "MaxPool", "Mul", "Pad", "Relu", "Reshape",
        "Resize", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze", "TopK", "Transpose",
        "Unsqueeze", "Where",
    )
)  # fmt: skip
"""Types that are quantized unless all are: those that onnxruntime's quantizer knows."""
_CONTRIB = frozenset(("EmbedLayerNormalization",))
"""Those of them that are com.microsoft's."""
_NEVER = frozenset(("Cast", "Constant", "QuantizeLinear", "DequantizeLinear"))

_MOVING = frozenset(
    (
        "AveragePool", "Flatten", "MaxPool", "Reshape", "Resize", "Slice", "Squeeze", "TopK",
        "Transpose", "Unsqueeze",
    )
)  # fmt: skip
_PARTING = frozenset(("Slice", "TopK"))
"""Those of them whose output is a part of their input."""
_NORMS = ("BatchNormalization", "InstanceNormalization", "LayerNormalization")
CLAMPS = ("Clip", "Relu")
_ONE_INPUT: tuple[Role, ...] = ("data",)
_ROLES: dict[str, tuple[Role, ...]] = {
    **dict.fromkeys((*_MOVING, *CLAMPS, "Gather", "GatherElements", "Split"), _ONE_INPUT),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", *_NORMS), ("data", "weight", "bias")),
    "MatMul": ("weight", "weight"),
    "Where": ("plain", "data", "data"),
}


def is_quantized(node: onnx.NodeProto, *, every_op: bool) -> bool:
    """Return whether an operator is one of those that become integers."""
    if every_op:
        return node.op_type not in _NEVER
    domain = ("com.microsoft",) if node.op_type in _CONTRIB else STANDARD
    return node.op_type in QUANTIZED_OPS and node.domain in domain


def find_role(node: onnx.NodeProto, place: int) -> Role:
    """Return what the input at a place is to a node."""
    if node.domain not in STANDARD or node.op_type not in _ROLES:
        return "data"
    roles = _ROLES[node.op_type]
    return roles[place] if place < len(roles) else "plain"


@dataclass(frozen=True)
class Tensors:
    """What is known of a model's tensors, by name."""

    constants: Mapping[str, onnx.TensorProto]
    """All initializers."""
    floats: frozenset[str]
    """Activations of float32: those declared or inferred so, and those of unknown type that have a
    range, which only floats have."""
    untyped: frozenset[str]
    """Activations of which no type is known."""
    readers: Mapping[str, int]
    """How often a tensor is read, by nodes and by bodies."""
    inputs: frozenset[str]
    outputs: frozenset[str]
    names: frozenset[str]
    """All there are, those of bodies too."""

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor is a float32 constant."""
        return name in self.constants and self.constants[name].data_type == 1


def read_tensors(
    model: onnx.ModelProto, types: Mapping[str, int], ranged: Collection[str]
) -> Tensors:
    """Return the tensors of a model.

    Args:
        model: Only read.
        types: Element types of activations, as far as they are known.
        ranged: Names of activations that have a range.
    """
    from onnx import TensorProto

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    inputs = {value.name for value in graph.input}
    names = inputs.union(*(filter(None, node.output) for node in graph.node)) - constants.keys()
    untyped = {name for name in names if name not in types}
    readers = count_reads(graph)
    return Tensors(
        constants=constants,
        floats=frozenset(
            {name for name in names if types.get(name) == TensorProto.FLOAT}
            | (untyped & set(ranged))
        ),
        untyped=frozenset(untyped),
        readers=readers,
        inputs=frozenset(inputs),
        names=frozenset(names.union(constants, readers)),
        outputs=frozenset(value.name for value in graph.output),
    )


@dataclass(frozen=True)
class ConstantUse:
    """A constant that one node, or several, read as integers."""

    stem: str
    """What the names of its integers, scale and zero point begin with."""
    role: Role
    is_wide: bool
    """Whether its integers have 16 bits, like those of a tensor that it is combined with."""


@dataclass(frozen=True)
class Options:
    """What decides, besides the operators, which tensors become integers."""

    chosen: frozenset[int]
    """Indices of the nodes that are quantized."""
    merges: bool
    """Whether a Relu or Clip can go into integers: not where their range is symmetric."""
    shares_constants: bool
    """Whether nodes read one copy of the integers of a constant that is no weight."""
    biases: bool
    """Whether biases become integers."""
    unpaired: frozenset[str]
    """Activations that stay float."""
    wide: frozenset[str]
    """Activations that have 16 bits."""


@dataclass
class QdqPlacement:
    """Where a model has integers: the result of the rules."""

    tensors: Tensors
    options: Options
    grid_of: Callable[[str], Grid]
    """Returns the grid of an activation that has its own."""
    pairs: dict[str, str] = field(default_factory=dict)
    """By activation that gets a Q/DQ pair: the owner of its grid. The owner is an activation,
    mostly itself, or a constant, named by its stem. In the order of the graph."""
    constants: dict[tuple[int, int], ConstantUse] = field(default_factory=dict)
    """By node index and place of the input."""
    merged: dict[str, str] = field(default_factory=dict)
    """By output that only a removed node read: what that node made of it."""
    removed: set[int] = field(default_factory=set)
    """Indices of the nodes that are not needed any more."""
    _wanted: set[str] = field(default_factory=set)
    """Activations that have no pair for the only reason that they are to stay float."""
    _stems: dict[tuple[str, int | str], str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def mark(self, name: str, source: str | None = None) -> None:
        """Give an activation a pair, unless it has one: with its own grid, or that of a source.

        One of 16 bits has its own where the source has 8.
        """
        if name not in self.tensors.floats:
            return
        if name in self.options.unpaired:
            self._wanted.add(name)
        else:
            widened = name in self.options.wide and source not in self.options.wide
            self.pairs.setdefault(name, name if source is None or widened else source)

    def share(self, name: str, index: int, node: onnx.NodeProto) -> None:
        """Give an output a pair with the grid of its node's first input, where that has one."""
        use = self.constants.get((index, 0))
        source = use.stem if use else self.pairs.get(node.input[0])
        if source is not None:
            self.mark(name, source)

    def take_constants(self, index: int, node: onnx.NodeProto) -> None:
        """Make the constants that a node reads integers.

        The constants of a node that reads a float activation stay float. So do those of a node that
        writes one, except for weights: no integer kernel could use them.
        """
        reads, writes = (self.options.unpaired.intersection(n) for n in (node.input, node.output))
        wide = self.options.wide.intersection((*node.input, *node.output))
        for place, name in enumerate(node.input):
            role = find_role(node, place)
            if not self.tensors.is_constant(name) or role == "plain" or reads:
                continue
            if role == "data" and not writes:
                owner: int | str = index
                if self.options.shares_constants:
                    owner = "wide" if wide else "shared"
                self._add_use(index, place, node, owner, is_wide=bool(wide))
            elif role == "weight" or (role == "bias" and self._can_take_bias(index, node)):
                self._add_use(index, place, node, index, is_wide=False)

    def can_merge(self, node: onnx.NodeProto) -> bool:
        """Return whether a Relu or Clip can be left out: its input's integers end where it does."""
        before, after = node.input[0], node.output[0]
        return (
            self.options.merges
            and after in self.tensors.floats
            and after not in self.options.unpaired
            and self.tensors.readers[before] == 1
            and before not in self.tensors.outputs
            and before not in self.tensors.inputs
            and _is_clamped(node, self.tensors, self.grid_of(after))
        )

    def merge(self, index: int, node: onnx.NodeProto) -> None:
        """Leave a node out: what makes its input then makes its output."""
        before, after = node.input[0], node.output[0]
        self.pairs.pop(before, None)
        self.merged[before] = after
        self.removed.add(index)

    def is_wanted(self, name: str) -> bool:
        """Return whether an activation has a pair, or would if it were not to stay float."""
        return name in self.pairs or name in self._wanted

    def _can_take_bias(self, index: int, node: onnx.NodeProto) -> bool:
        return self.options.biases and all(
            (index, place) in self.constants or node.input[place] in self.pairs for place in (0, 1)
        )

    def _add_use(
        self, index: int, place: int, node: onnx.NodeProto, owner: int | str, *, is_wide: bool
    ) -> None:
        key = (node.input[place], owner)
        if key not in self._stems:
            end = node.name if isinstance(owner, int) else owner
            first = node.input[place] not in self._taken
            stem = node.input[place] if first else f"{node.input[place]}/{end}"
            self._stems[key] = take_name(stem, self._taken)
        self.constants[index, place] = ConstantUse(
            self._stems[key], find_role(node, place), is_wide
        )


def place_integers(
    nodes: Sequence[onnx.NodeProto],
    tensors: Tensors,
    options: Options,
    grid_of: Callable[[str], Grid],
) -> QdqPlacement:
    """Apply the rules to the nodes that are quantized, in the order of the graph."""
    options = replace(options, unpaired=_find_unpaired(nodes, tensors, options))
    taken = set(tensors.names.difference(tensors.constants))
    found = QdqPlacement(tensors, options, grid_of, _taken=taken)
    for index, node in enumerate(nodes):
        if index in options.chosen:
            rule = _RULES.get(node.op_type, _mark_all) if node.domain in STANDARD else _mark_all
            rule(found, index, node)
    return found


def settle_ranges(
    nodes: Sequence[onnx.NodeProto],
    chosen: Collection[int],
    tensors: Tensors,
    ranges: Mapping[str, tuple[float, float]],
) -> dict[str, tuple[float, float]]:
    """Return the ranges that are written, without the values that a Relu or Clip cuts off."""
    settled = dict(ranges)
    for index, node in enumerate(nodes):
        if index not in chosen or node.domain not in STANDARD:
            continue
        if node.op_type in CLAMPS:
            before, after = node.input[0], node.output[0]
            alone = tensors.readers[before] == 1 and before not in tensors.outputs
            if alone and before in settled and after in settled:
                settled[before] = settled[after]
        elif node.op_type == "Softmax":
            settled[node.output[0]] = (0.0, 1.0)
    return settled


def _find_unpaired(
    nodes: Sequence[onnx.NodeProto], tensors: Tensors, options: Options
) -> frozenset[str]:
    """Return the activations that stay float, with those that have the same values.

    These are the outputs of nodes that only move their values, and the inputs that only a Relu or
    Clip reads which writes one of them.
    """
    found = set(options.unpaired)
    chosen = sorted(options.chosen) if found else []
    for index in chosen:
        node = nodes[index]
        if node.op_type in _MOVING - _PARTING and node.input[0] in found:
            found.add(node.output[0])
    for index in reversed(chosen):
        node = nodes[index]
        if node.op_type in CLAMPS and node.output[0] in found:
            before = node.input[0]
            inner = before not in tensors.outputs and before not in tensors.inputs
            if inner and tensors.readers[before] == 1:
                found.add(before)
    return frozenset(found)


# --- the rules --------------------------------------------------------------------------------


def _mark_all(found: QdqPlacement, index: int, node: onnx.NodeProto) -> None:
    for place, name in enumerate(node.input):
        if find_role(node, place) in ("data", "weight"):
            found.mark(name)
    for name in node.output:
        found.mark(name)
    found.take_constants(index, node)


def _mark_moved(found: QdqPlacement, index: int, node: onnx.NodeProto) -> None:
    if node.op_type != "Resize" or _find_text(node, "mode", "nearest") != "cubic":
        found.share(node.output[0], index, node)
    elif node.input[0] in found.pairs:
        found.mark(node.output[0])


def _mark_gathered(found: QdqPlacement, index: int, node: onnx.NodeProto) -> None:
    found.take_constants(index, node)
    found.share(node.output[0], index, node)


def _mark_split(found: QdqPlacement, index: int, node: onnx.NodeProto) -> None:
    found.mark(node.input[0])
    found.take_constants(index, node)
    for name in node.output:
        found.share(name, index, node)


def _mark_padded(found: QdqPlacement, index: int, node: onnx.NodeProto) -> None:
    if not _is_pad_known(node, found.tensors):
        _mark_all(found, index, node)
        return
    for name in node.input:
        found.mark(name)
    found.take_constants(index, node)
    found.share(node.output[0], index, node)


def _mark_where(found: QdqPlacement, _: int, node: onnx.NodeProto) -> None:
    if node.input[1] in found.pairs and node.input[2] in found.pairs:
        found.mark(node.output[0])


def _mark_clamped(found: QdqPlacement, index: int, node: onnx.NodeProto) -> None:
    if found.is_wanted(node.input[0]):
        if found.can_merge(node):
            found.merge(index, node)
        found.mark(node.output[0])


_RULES: dict[str, Callable[[QdqPlacement, int, onnx.NodeProto], None]] = {
    **dict.fromkeys(_MOVING, _mark_moved),
    **dict.fromkeys(CLAMPS, _mark_clamped),
    "Gather": _mark_gathered,
    "GatherElements": _mark_gathered,
    "Pad": _mark_padded,
    "Split": _mark_split,
    "Where": _mark_where,
}


def _is_pad_known(node: onnx.NodeProto, tensors: Tensors) -> bool:
    """Return whether a Pad puts in zeros, or values of its input."""
    mode = _find_text(node, "mode", "constant")
    if mode != "constant":
        return mode in ("edge", "reflect", "wrap")
    if len(node.input) < 3 or not node.input[2]:
        return True
    value = tensors.constants.get(node.input[2])
    return value is not None and not read_values(value).any()


def _is_clamped(node: onnx.NodeProto, tensors: Tensors, grid: Grid) -> bool:
    """Return whether a grid ends, to half a step, inside what a Relu or Clip lets through."""
    ends = read_clamp(node, tensors.constants)
    if ends is None:
        return False
    first, last = grid.find_limits()
    # The zero point is rounded to half a step, and that to float32.
    slack = 0.51 * grid.scale
    return bool(ends[0] <= first + slack and last - slack <= ends[1])


def _find_text(node: onnx.NodeProto, name: str, default: str) -> str:
    return next((entry.s.decode() for entry in node.attribute if entry.name == name), default)
