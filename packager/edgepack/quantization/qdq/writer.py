"""Writes a QDQ model from known ranges, in time linear in the number of nodes.

Every tensor that becomes integers is written as QuantizeLinear -> DequantizeLinear; constants are
stored as integers behind a DequantizeLinear. :mod:`~edgepack.quantization.qdq.operators` says which
tensors these are, :mod:`~edgepack.quantization.qdq.grid` what their scales are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import BugError, StepError
from edgepack.model.editing import take_name
from edgepack.model.facts import STANDARD, find_default_opset
from edgepack.project.profile import Dialect
from edgepack.quantization.qdq.dialect import (
    DEQUANTIZE,
    QUANTIZE,
    WITHOUT_INT8,
    find_weight_axes,
    find_wide_type,
)
from edgepack.quantization.qdq.grid import (
    Grid,
    make_bias_grid,
    make_constant_grid,
    make_range_grid,
    make_room,
    make_scaled_grid,
    round_bias,
)
from edgepack.quantization.qdq.operators import (
    ConstantUse,
    Options,
    Tensors,
    find_role,
    is_quantized,
    place_integers,
    read_tensors,
    settle_ranges,
)
from edgepack.quantization.qdq.preparation import (
    infer_types,
    list_read_names,
    read_declared_types,
    read_values,
)

if TYPE_CHECKING:
    import onnx


_NO_RANGE = "the tensor {!r} has no known type or no finite range"
_FLAT_BIAS = "its bias is no vector, and integer kernels add one number per column"
_LEAST_OPSET = 13
"""The first with one scale per channel (onnx/docs/Changelog.md, QuantizeLinear)."""
_OPSET_OF_16_BITS = 21
"""The first whose QuantizeLinear has 16 bits (the same); onnxruntime's own has them at any."""
_ONNXRUNTIME = "com.microsoft"


def find_observed_tensors(model: onnx.ModelProto, *, every_op: bool = False) -> frozenset[str]:
    """Return the activations that can get a Q/DQ pair in any dialect: those that need a range.

    Where no type is known, neither to the model nor to shape inference, a tensor is among them.

    Args:
        model: A float model, prepared or not. It is not changed.
        every_op: As in :class:`QdqWriter`.
    """
    tensors = read_tensors(model, infer_types(model), ())
    touched: set[str] = set()
    for node in model.graph.node:
        if is_quantized(node, every_op=every_op):
            touched.update(_list_pairable(node))
    return frozenset(touched) & (tensors.floats | tensors.untyped)


@dataclass(frozen=True)
class QdqWriter:
    """Writes QDQ models of one dialect. Nothing is calibrated: the ranges are given.

    The model is what :func:`~edgepack.quantization.qdq.preparation.prepare_model` returned; it is
    not changed. Every node of the main graph reads the dequantized value of a tensor that has a
    pair: X -> QuantizeLinear -> ``X_DequantizeLinear_Output``. A model's output X keeps its name
    behind the pair: ``X_QuantizeLinear_Input`` -> QuantizeLinear -> X. A tensor without a pair
    keeps its name, or disappears where a Relu or Clip went into its integers. Bodies of If, Loop
    and Scan stay float: their nodes are no candidates, they read tensors of the main graph as
    float, and constants that they share with it stay.

    16-bit pairs below opset 21 are of the domain com.microsoft; in a model all of whose activations
    have 16 bits, so is every QuantizeLinear and DequantizeLinear.
    """

    model: onnx.ModelProto
    ranges: Mapping[str, tuple[float, float]]
    """Lowest and highest value of the activations, in their unit; finite."""
    dialect: Dialect
    per_tensor_ops: tuple[str, ...] = ()
    """Operators whose weights have one scale even where the dialect is per channel."""
    every_op: bool = False
    """Quantize operators of every type, instead of
    :data:`~edgepack.quantization.qdq.operators.QUANTIZED_OPS`."""
    least_span: float = 0.0
    """The least range of an activation, in its unit: a narrower one is made as wide."""
    output_grids: tuple[tuple[str, str, float, int], ...] = ()
    """Outputs with a scale and zero point whatever their range: operator, integer type, scale, zero
    point."""
    weight_scales: Mapping[str, Array] = field(default_factory=dict)
    """By name of a constant that is a weight: its scale, or scales along the axis that
    :func:`~edgepack.quantization.qdq.dialect.find_weight_axes` says, float32. Its values are
    multiples of them, and are exact as integers. A scale with which a bias would not fit int32 is
    not used."""
    unpaired: frozenset[str] = frozenset()
    """Activations that stay float though the rules would give them a pair. Three other kinds stay
    float with them: tensors that all of their values are moved to (by a Reshape, say), the input of
    a Relu or Clip that writes one and alone reads it, and the constants that are combined with
    them. A part of their values (by a Slice or Split) can have a pair."""
    wide: frozenset[str] = frozenset()
    """Activations that have 16 bits: uint16, and int16 in a symmetric dialect. They have a grid of
    their own, unless they only move values of another one. What moves their values, and constants
    other than weights that are combined with them, have 16 bits too. No integer kernel of an 8-bit
    dialect takes them: those operators compute in float between conversions."""

    def list_candidates(self) -> frozenset[str]:
        """Return the names of the nodes that are quantized unless they are excluded."""
        return frozenset(self.model.graph.node[index].name for index in self._candidates)

    def explain_unusable(self) -> dict[str, str]:
        """Return the candidates that cannot be quantized, each with the reason."""
        found: dict[str, str] = {}
        for index in sorted(self._candidates):
            node = self.model.graph.node[index]
            unknown = next((name for name in _list_pairable(node) if not self._is_known(name)), "")
            endless = next(
                (name for name in self._list_operands(node) if name in self._endless), ""
            )
            if unknown or endless:
                found[node.name] = _NO_RANGE.format(unknown or endless)
            elif node.op_type == "Gemm" and len(node.input) > 2:
                bias = self._tensors.constants.get(node.input[2])
                if bias is not None and len(bias.dims) != 1:
                    found[node.name] = _FLAT_BIAS
        return found

    def write(self, excluded: Collection[str]) -> onnx.ModelProto:
        """Return the QDQ model; nodes named in ``excluded`` are left as they are.

        Raises:
            StepError: A tensor that gets a pair has no range, the opset is below 13, or a scale of
                ``weight_scales`` does not fit its constant.
        """
        if find_default_opset(self.model) < _LEAST_OPSET:
            raise StepError(
                f"the model's opset is {find_default_opset(self.model)}, and scales per channel"
                f" came with {_LEAST_OPSET}",
                hint=f"export the model with opset {_LEAST_OPSET} or higher, or {WITHOUT_INT8}",
            )
        nodes = self.model.graph.node
        chosen = frozenset(k for k in self._candidates if nodes[k].name not in excluded)
        return _Writing(self, self._tensors, chosen).run()

    @cached_property
    def _candidates(self) -> frozenset[int]:
        nodes = enumerate(self.model.graph.node)
        return frozenset(k for k, node in nodes if is_quantized(node, every_op=self.every_op))

    @cached_property
    def _tensors(self) -> Tensors:
        return read_tensors(self.model, read_declared_types(self.model), self.ranges.keys())

    @cached_property
    def _endless(self) -> frozenset[str]:
        """Names of constants whose range no float32 scale can express; masks have infinity."""
        found = set()
        for name in filter(self._tensors.is_constant, self._tensors.constants):
            values = read_values(self._tensors.constants[name])
            if values.size:
                with np.errstate(over="ignore", invalid="ignore"):
                    span = values.max() - values.min()
                if not np.isfinite(span):
                    found.add(name)
        return frozenset(found)

    def _is_known(self, name: str) -> bool:
        """Return whether a tensor has a range, or needs none: it is no float32 one."""
        of_other_type = name not in self._tensors.floats and name not in self._tensors.untyped
        return name in self._tensors.constants or name in self.ranges or of_other_type

    def _list_operands(self, node: onnx.NodeProto) -> Iterator[str]:
        for place, name in enumerate(node.input):
            if find_role(node, place) != "plain":
                yield name


def _list_pairable(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors of a node that can get a pair; constants may be among them."""
    for place, name in enumerate(node.input):
        if name and find_role(node, place) in ("data", "weight"):
            yield name
    yield from filter(None, node.output)


class _Writing:
    """One QDQ model in the making."""

    def __init__(self, settings: QdqWriter, tensors: Tensors, chosen: frozenset[int]) -> None:
        import onnx

        self._settings = settings
        self._dialect = settings.dialect
        self._tensors = tensors
        self._nodes = list(settings.model.graph.node)
        self._ranges = settle_ranges(self._nodes, chosen, tensors, settings.ranges)
        self._grids: dict[str, Grid] = dict(self._list_given_grids(chosen))
        """By activation with a grid of its own, or stem of a constant."""
        self._opset = find_default_opset(settings.model)
        self._place = place_integers(
            self._nodes, tensors, self._make_options(chosen), self._find_own_grid
        )
        self._written = onnx.ModelProto()
        self._graph = self._written.graph
        self._taken = set(tensors.names)
        self._named: dict[str, str] = {}
        self._stored: set[str] = set()

    def run(self) -> onnx.ModelProto:
        """Return the model: pairs follow their tensors, constants precede their first reader."""
        source = self._settings.model
        _copy_fields(source, self._written, without=("graph",))
        _copy_fields(source.graph, self._graph, without=("node", "initializer", "value_info"))
        for value in source.graph.input:
            self._add_pair(value.name)
        for index, node in enumerate(self._nodes):
            if index not in self._place.removed:
                self._add_node(index, node)
        self._keep_constants()
        self._keep_types()
        self._import_domain()
        return self._written

    # --- decisions ----------------------------------------------------------------------------

    def _make_options(self, chosen: frozenset[int]) -> Options:
        return Options(
            chosen=chosen,
            merges=not self._dialect.symmetric,
            # onnxruntime 1.31.1 does not load a model in which two operators share an int8 constant
            # where session.x64quantprecision is set, as it is on x86-64 without VNNI ("Attempt to
            # replace the existing tensor", measured 2026-11-21).
            shares_constants=self._dialect.activations != "int8",
            biases=self._dialect.bias == "int32",
            unpaired=self._settings.unpaired,
            wide=self._settings.wide,
        )

    def _find_type(self, *, is_wide: bool) -> str:
        if not is_wide or self._dialect.activations == "uint16":
            return self._dialect.activations
        return find_wide_type(self._dialect)

    def _find_own_grid(self, name: str) -> Grid:
        """Return the grid of an activation that has its own.

        Raises:
            StepError: It has no range.
        """
        if name not in self._grids:
            if name not in self._ranges:
                raise BugError(f"the tensor {name!r} is to be quantized and has no range")
            low, high = (np.asarray(end, np.float32) for end in self._ranges[name])
            kind = self._find_type(is_wide=name in self._settings.wide)
            symmetric = self._dialect.symmetric
            self._grids[name] = make_range_grid(
                low, high, kind, symmetric=symmetric, least_span=self._settings.least_span
            )
        return self._grids[name]

    def _list_given_grids(self, chosen: frozenset[int]) -> Iterator[tuple[str, Grid]]:
        given = {(op, kind): grid for op, kind, *grid in self._settings.output_grids}
        for index in chosen:
            node = self._nodes[index]
            kind = self._find_type(is_wide=node.output[0] in self._settings.wide)
            if node.domain in STANDARD and (node.op_type, kind) in given:
                scale, zero = given[node.op_type, kind]
                yield node.output[0], Grid(np.asarray(scale, np.float32), np.asarray(zero, kind))

    def _find_grid_at(self, index: int, place: int) -> Grid:
        """Return the grid of a node's input that is integer."""
        use = self._place.constants.get((index, place))
        if use:
            return self._grids[use.stem]
        return self._find_own_grid(self._place.pairs[self._nodes[index].input[place]])

    # --- constants ----------------------------------------------------------------------------

    def _store_constant(self, index: int, place: int, use: ConstantUse) -> str:
        """Store a constant as integers, unless it is stored; return the name that readers use."""
        output = self._make_name(f"{use.stem}_DequantizeLinear_Output")
        if use.stem in self._stored:
            return output
        self._stored.add(use.stem)
        name = self._nodes[index].input[place]
        values = read_values(self._tensors.constants[name])
        parameters = use.stem
        if use.role == "bias":
            grid = make_bias_grid(self._find_grid_at(index, 0), self._find_grid_at(index, 1))
            integers = round_bias(values, grid)
            parameters = f"{use.stem}_quantized"
        else:
            if use.role == "weight":
                grid = self._make_weight_grid(index, name, values)
            else:
                grid = self._make_operand_grid(values, use)
            integers = grid.round_to_integers(values)
        self._grids[use.stem] = grid
        stored = self._store_values(f"{use.stem}_quantized", integers)
        self._add_conversion(DEQUANTIZE, use.stem, stored, output, grid, parameters)
        return output

    def _make_operand_grid(self, values: Array, use: ConstantUse) -> Grid:
        kind = self._find_type(is_wide=use.is_wide)
        return make_constant_grid(
            values, kind, symmetric=self._dialect.symmetric, least_span=self._settings.least_span
        )

    def _make_weight_grid(self, index: int, name: str, values: Array) -> Grid:
        """Return the grid of a weight.

        Raises:
            StepError: A given scale does not fit.
        """
        node, kind = self._nodes[index], self._dialect.weights
        axis = None
        if self._dialect.per_channel:
            dims = {name: values.shape}
            axis = find_weight_axes([node], dims, self._settings.per_tensor_ops).get(name)
        # Integer kernels need one zero point in all channels, which only symmetric ones have.
        symmetric = kind == "int8" or axis is not None
        given = self._settings.weight_scales.get(name)
        if given is not None:
            _require_fit(name, given, 1 if axis is None else values.shape[axis])
            grid = make_scaled_grid(values, given, kind, symmetric=symmetric, axis=axis)
        else:
            span = self._settings.least_span
            grid = make_constant_grid(values, kind, symmetric=symmetric, axis=axis, least_span=span)
        bias = self._place.constants.get((index, 2))
        if kind == "int8" and bias and bias.role == "bias":
            floats = read_values(self._tensors.constants[node.input[2]])
            return make_room(floats, self._find_grid_at(index, 0), grid)
        return grid

    # --- the graph ----------------------------------------------------------------------------

    def _add_node(self, index: int, node: onnx.NodeProto) -> None:
        inputs = [self._read_input(index, place, name) for place, name in enumerate(node.input)]
        outputs = [self._find_output(name) for name in node.output]
        copy = self._graph.node.add()
        copy.CopyFrom(node)
        copy.input[:] = inputs
        copy.output[:] = [self._name_before_pair(name) for name in outputs]
        for name in outputs:
            self._add_pair(name)

    def _read_input(self, index: int, place: int, name: str) -> str:
        use = self._place.constants.get((index, place))
        if use:
            return self._store_constant(index, place, use)
        return self._name_behind_pair(name) if name in self._place.pairs else name

    def _find_output(self, name: str) -> str:
        """Return the name of an output that goes through removed nodes."""
        while name in self._place.merged:
            name = self._place.merged[name]
        return name

    def _is_kept(self, name: str) -> bool:
        """Return whether a tensor has to keep its name behind its pair."""
        return name in self._tensors.outputs and name not in self._tensors.inputs

    def _name_before_pair(self, name: str) -> str:
        paired = name in self._place.pairs and self._is_kept(name)
        return self._make_name(f"{name}_QuantizeLinear_Input") if paired else name

    def _name_behind_pair(self, name: str) -> str:
        return name if self._is_kept(name) else self._make_name(f"{name}_DequantizeLinear_Output")

    def _add_pair(self, name: str) -> None:
        if name not in self._place.pairs:
            return
        source = self._place.pairs[name]
        grid = self._find_own_grid(source)
        integers = self._make_name(f"{name}_QuantizeLinear_Output")
        self._add_conversion(QUANTIZE, name, self._name_before_pair(name), integers, grid, source)
        self._add_conversion(DEQUANTIZE, name, integers, self._name_behind_pair(name), grid, source)

    def _add_conversion(
        self, op: str, stem: str, before: str, behind: str, grid: Grid, parameters: str
    ) -> None:
        """Add a QuantizeLinear or DequantizeLinear."""
        node = self._graph.node.add()
        node.op_type, node.name = op, f"{stem}_{op}"
        node.domain = self._find_domain(grid)
        node.input.append(before)
        node.input.append(self._store_values(f"{parameters}_scale", grid.scale))
        node.input.append(self._store_values(f"{parameters}_zero_point", grid.zero_point))
        node.output.append(behind)
        if grid.axis is not None:
            node.attribute.add(name="axis", type=2, i=grid.axis)

    def _find_domain(self, grid: Grid) -> str:
        all_wide = self._dialect.activations == "uint16"
        needs = all_wide or grid.zero_point.dtype.itemsize == 2
        return _ONNXRUNTIME if needs and self._opset < _OPSET_OF_16_BITS else ""

    def _store_values(self, wanted: str, values: Array) -> str:
        """Add an initializer, unless it is there, and return its name."""
        import onnx

        new = wanted not in self._named
        name = self._make_name(wanted)
        if new:
            tensor = self._graph.initializer.add()
            tensor.name = name
            tensor.data_type = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
            tensor.dims.extend(values.shape)
            tensor.raw_data = values.astype(values.dtype.newbyteorder("<")).tobytes()
        return name

    def _make_name(self, wanted: str) -> str:
        """Return a name that the float model does not use; the same request gets the same name."""
        if wanted not in self._named:
            self._named[wanted] = take_name(wanted, self._taken)
        return self._named[wanted]

    def _keep_constants(self) -> None:
        """Add the float constants that are still read."""
        read = list_read_names(self._graph)
        for tensor in self._settings.model.graph.initializer:
            if tensor.name in read:
                self._graph.initializer.add().CopyFrom(tensor)

    def _keep_types(self) -> None:
        """Add the types of the tensors that are still there."""
        there = {name for node in self._graph.node for name in node.output}
        kept = (v for v in self._settings.model.graph.value_info if v.name in there)
        self._graph.value_info.extend(kept)

    def _import_domain(self) -> None:
        known = any(entry.domain == _ONNXRUNTIME for entry in self._written.opset_import)
        used = any(node.domain == _ONNXRUNTIME for node in self._graph.node)
        if used and not known:
            self._written.opset_import.add(domain=_ONNXRUNTIME, version=1)


def _require_fit(name: str, scales: Array, channels: int) -> None:
    if np.size(scales) != channels or not (np.isfinite(scales).all() and np.all(scales > 0)):
        raise BugError(
            f"the weight {name!r} was given {np.size(scales)} scales for {channels} channels, or"
            " one that is not positive"
        )


def _copy_fields(source: Any, target: Any, without: Collection[str]) -> None:  # noqa: ANN401
    """Copy the fields of a protobuf message, except the excluded ones, which would cost memory."""
    for field_of, value in source.ListFields():
        if field_of.name in without:
            continue
        if hasattr(value, "MergeFrom"):
            getattr(target, field_of.name).MergeFrom(value)
        else:
            setattr(target, field_of.name, value)
