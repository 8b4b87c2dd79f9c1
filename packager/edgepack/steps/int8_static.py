"""The ``int8-static`` recipe: QDQ in the dialect of one execution provider, from shared ranges."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from edgepack.data import SampleSet
from edgepack.errors import StepError
from edgepack.model.fusion import FloatNode, FusionCoverage, fusion_coverage, is_product
from edgepack.model.graph import Graph, read_graph
from edgepack.model.ir import lower_ir
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.model.running import make_session, run_session
from edgepack.profile import Dialect
from edgepack.quantization.dialect import QUANTIZE, WITHOUT_INT8, require_dialect
from edgepack.quantization.writer import QdqWriter, quantizable
from edgepack.steps.base import MODEL, Inputs, Notes
from edgepack.steps.fp32 import require_ir
from edgepack.steps.ranges import read_ranges

_LONE = "it lies among float operators, and converting for it costs more than it saves"
_ROUNDS = 4
_SHOWN = 3
# Operators that onnxruntime's CPU provider has no integer kernel for (1.31.1: the optimized graphs
# of one-node QDQ models keep them float, 2026-11-21).
_WITHOUT_KERNEL = ("ConvTranspose", "LayerNormalization", "InstanceNormalization")


@dataclass(frozen=True)
class Int8Static:
    """Activations and weights in small integers, as one execution provider wants them.

    Inputs: ``model``; ``ranges``; ``samples``, for the proof.

    For a CPU, what onnxruntime's optimizer would leave as float between integers is not quantized
    in the first place, and a model of which no convolution or matrix product would run as integers
    is refused: it would be slower than the float one.
    """

    name: ClassVar[str] = "int8-static"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    dialect: Dialect
    max_ir: int
    cpu: Literal["x86-64", "aarch64"] | None = None
    """The architecture, where the variant runs on onnxruntime's CPU provider."""
    per_tensor_ops: tuple[str, ...] = ()
    """Operators whose weights have one scale even where the dialect is per channel."""
    every_op: bool = False
    """Quantize operators of every type, as onnxruntime advises for QNN."""

    def check(self, inputs: Inputs) -> None:
        """Accept any model that ranges could be found for."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``.

        Raises:
            StepError: onnxruntime's quantizer fails or finds nothing to quantize, or the CPU would
                run all of it as float.
        """
        model = read_model(inputs["model"] / MODEL)
        lower_ir(model, self.max_ir)
        writer = QdqWriter(
            quantizable(model),
            read_ranges(inputs["ranges"]),
            self.dialect,
            self.per_tensor_ops,
            self.every_op,
        )
        left = writer.unusable()
        write_model(writer.write(left), out / MODEL)
        if not _quantized_tensors(out / MODEL):
            raise StepError("nothing in the model could be quantized", hint=WITHOUT_INT8)
        fused = _FitToCpu(writer, self.cpu, out / MODEL, left).run() if self.cpu else None
        pairs = _quantized_tensors(out / MODEL)
        return Notes(
            f"{self.dialect.activations} activations, {self.dialect.weights} weights:"
            f" {pairs} tensors quantized" + _listed(left),
            {"quantized_tensors": pairs, "left_float": left, **(fused.facts() if fused else {})},
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove the dialect on the file, that it gives finite numbers, and that the CPU fuses it.

        Raises:
            StepError: Nothing was quantized, something was written in another dialect, or nothing
                fuses.
        """
        require_ir(out / MODEL, self.max_ir)
        require_dialect(read_model(out / MODEL), self.dialect, self.per_tensor_ops)
        session = make_session(out / MODEL)
        _require_finite(run_session(session, SampleSet.read(inputs["samples"]).inputs(0)))
        if self.cpu:
            source = read_graph(read_model(inputs["model"] / MODEL))
            _require_integers(fusion_coverage(out / MODEL, self.cpu), source, self.cpu, {})


@dataclass
class _FitToCpu:
    """Leaves float what onnxruntime's optimizer would leave float, without useless conversions."""

    writer: QdqWriter
    cpu: Literal["x86-64", "aarch64"]
    path: Path
    left: dict[str, str]
    """Nodes that are not quantized, with the reason; what is found is added."""

    def run(self) -> FusionCoverage:
        """Write the model again until it fits; return what the optimizer makes of it.

        Raises:
            StepError: Nothing worthwhile would run as integers.
        """
        found = fusion_coverage(self.path, self.cpu)
        for _ in range(_ROUNDS):
            islands = self._float(found, products=True)
            if not islands:
                break
            self.left.update(islands)
            found = self._written(self.left, self.path)
        found = self._without_others(found)
        _require_integers(found, read_graph(self.writer.model), self.cpu, self.left)
        return found

    def _without_others(self, found: FusionCoverage) -> FusionCoverage:
        """Exclude other nodes too, as long as conversions go with that and no product does.

        These are float ones, and integer ones that no integer product is connected with.
        """
        for _ in range(_ROUNDS):
            others = {**self._float(found, products=False), **self._lone(found)}
            if not others:
                break
            with tempfile.TemporaryDirectory(prefix="edgepack-int8-") as scratch:
                path = Path(scratch) / MODEL
                tried = self._written({**self.left, **others}, path)
                fewer = _conversions(tried) < _conversions(found)
                if not fewer or tried.integer_products < found.integer_products:
                    break
                for file in path.parent.glob(f"{MODEL}*"):
                    shutil.move(file, self.path.parent / file.name)
            self.left.update(others)
            found = tried
        return found

    def _lone(self, found: FusionCoverage) -> dict[str, str]:
        if not found.integer_products:
            return {}
        return {name: _LONE for name in found.lone if name in self.writer.candidates()}

    def _float(self, found: FusionCoverage, *, products: bool) -> dict[str, str]:
        """Return the nodes that are quantized and run as float all the same, with the reason."""
        candidates = self.writer.candidates() - self.left.keys()
        return {
            node.name: self._why(node)
            for node in found.float_nodes
            if node.is_product is products and node.name in candidates
        }

    def _written(self, left: Mapping[str, str], path: Path) -> FusionCoverage:
        write_model(self.writer.write(left), path)
        return fusion_coverage(path, self.cpu)

    def _why(self, node: FloatNode) -> str:
        if node.op in _WITHOUT_KERNEL:
            return f"onnxruntime's CPU provider has no integer kernel for {node.op}"
        activations = self.writer.dialect.activations
        if activations == "uint16" or (activations == "int8" and self.cpu == "x86-64"):
            return f"the CPU of {self.cpu} runs {activations} activations as float"
        return f"onnxruntime's optimizer does not fuse this {node.op}"


def _quantized_tensors(model: Path) -> int:
    return sum(node.op_type == QUANTIZE for node in read_structure(model).graph.node)


def _require_finite(outputs: Mapping[str, Any]) -> None:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise StepError(
                f"in int8 the output {name!r} has NaN or infinity on the first calibration sample,"
                " in float it has not: a small number was rounded to 0, and divided by",
                hint=WITHOUT_INT8,
            )


def _conversions(found: FusionCoverage) -> int:
    return found.leftover_quantize + found.leftover_dequantize


def _require_integers(
    found: FusionCoverage, source: Graph, cpu: str, left: Mapping[str, str]
) -> None:
    has_products = any(map(is_product, source.nodes))
    worthwhile = found.integer_products if has_products else found.integer_ops
    if not worthwhile:
        raise StepError(
            f"no {'convolution or matrix product' if has_products else 'operator'} of the model"
            f" would run as integers on {cpu}, so int8 would be slower than fp32{_listed(left)}",
            hint=WITHOUT_INT8,
        )


def _listed(left: Mapping[str, str]) -> str:
    if not left:
        return ""
    shown = "; ".join(f"{name!r}: {why}" for name, why in list(left.items())[:_SHOWN])
    more = f"; and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return f", {len(left)} nodes left float ({shown}{more})"
