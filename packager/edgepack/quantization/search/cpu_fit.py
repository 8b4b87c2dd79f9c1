"""Leaves float, from the start, what onnxruntime's optimizer would leave float on a CPU."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepack.model.files import MODEL
from edgepack.model.fusion import Architecture, FloatNode, FusionCoverage, measure_fusion_coverage
from edgepack.model.reading import write_model
from edgepack.quantization.qdq.kept_float import write_qdq
from edgepack.quantization.qdq.writer import QdqWriter

_LONE = "it lies among float operators, and converting for it costs more than it saves"
_ROUNDS = 4
# Operators that onnxruntime's CPU provider has no integer kernel for (1.31.1: the optimized graphs
# of one-node QDQ models keep them float, 2026-11-21).
_WITHOUT_KERNEL = ("ConvTranspose", "LayerNormalization", "InstanceNormalization")


@dataclass(frozen=True)
class CpuFit:
    """A QDQ model without useless conversions on a CPU."""

    left: Mapping[str, str]
    """Nodes that are not quantized, with the reason."""
    coverage: FusionCoverage
    """What the optimizer makes of the model."""


def fit_to_cpu(writer: QdqWriter, cpu: Architecture, path: Path, left: Mapping[str, str]) -> CpuFit:
    """Write a model again and again, leaving more nodes float, until it fits a CPU.

    Float products between integers are left float first. Other nodes follow, as long as that
    removes conversions and no integer product: float ones, and integer ones that no integer product
    is connected with.

    Args:
        writer: Writes the model.
        cpu: The architecture.
        path: Where the model lies, written without ``left``; it is replaced.
        left: Nodes that are not quantized anyway, with the reason.

    Raises:
        ModelError: onnxruntime refuses a model.
    """
    fitting = _Fitting(writer, cpu, path, dict(left))
    found = fitting.run()
    return CpuFit(fitting.left, found)


@dataclass
class _Fitting:
    writer: QdqWriter
    cpu: Architecture
    path: Path
    left: dict[str, str]

    def run(self) -> FusionCoverage:
        found = measure_fusion_coverage(self.path, self.cpu)
        for _ in range(_ROUNDS):
            islands = self._find_float(found, products=True)
            if not islands:
                break
            self.left.update(islands)
            found = self._write_model(self.left, self.path)
        return self._drop_others(found)

    def _drop_others(self, found: FusionCoverage) -> FusionCoverage:
        for _ in range(_ROUNDS):
            others = {**self._find_float(found, products=False), **self._find_lone(found)}
            if not others:
                break
            with tempfile.TemporaryDirectory(prefix="edgepack-int8-") as scratch:
                path = Path(scratch) / MODEL
                tried = self._write_model({**self.left, **others}, path)
                fewer = _count_conversions(tried) < _count_conversions(found)
                if not fewer or tried.integer_products < found.integer_products:
                    break
                for file in path.parent.glob(f"{MODEL}*"):
                    shutil.move(file, self.path.parent / file.name)
            self.left.update(others)
            found = tried
        return found

    def _find_lone(self, found: FusionCoverage) -> dict[str, str]:
        candidates = self.writer.list_candidates() if found.integer_products else ()
        return {name: _LONE for name in found.lone if name in candidates}

    def _find_float(self, found: FusionCoverage, *, products: bool) -> dict[str, str]:
        """Return the nodes that are quantized and run as float all the same, with the reason."""
        candidates = self.writer.list_candidates() - self.left.keys()
        return {
            node.name: self._explain_node(node)
            for node in found.float_nodes
            if node.is_product is products and node.name in candidates
        }

    def _write_model(self, left: Mapping[str, str], path: Path) -> FusionCoverage:
        write_model(write_qdq(self.writer, left), path)
        return measure_fusion_coverage(path, self.cpu)

    def _explain_node(self, node: FloatNode) -> str:
        if node.op in _WITHOUT_KERNEL:
            return f"onnxruntime's CPU provider has no integer kernel for {node.op}"
        activations = self.writer.dialect.activations
        if activations == "uint16" or (activations == "int8" and self.cpu == "x86-64"):
            return f"the CPU of {self.cpu} runs {activations} activations as float"
        return f"onnxruntime's optimizer does not fuse this {node.op}"


def _count_conversions(found: FusionCoverage) -> int:
    return found.leftover_quantize + found.leftover_dequantize
