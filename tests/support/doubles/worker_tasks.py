"""Functions that worker processes run in tests."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import onnx
from edgepack.base.worker import report
from edgepack.errors import BugError, ModelError
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, write_model
from edgepack.quantization.search.outside import Outside
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.recipes.int8_static import Int8Static
from edgepack.trying.running import VariantRun, run_variant


@dataclass(frozen=True)
class RefusedDiagnosis:
    """Stands for the step that finds the error of each node, on a model that it cannot take."""

    name: ClassVar[str] = "layer-errors"
    libraries: ClassVar[tuple[str, ...]] = ()
    cacheable = True
    count: int
    processor: str

    def check(self, inputs: Inputs) -> None:
        del inputs
        raise ModelError("no tensor can be looked at", hint="none")

    def run(self, inputs: Inputs, out: Path) -> Notes: ...

    def verify(self, inputs: Inputs, out: Path) -> None: ...


@dataclass(frozen=True)
class RefusedProbing:
    """Stands for the step that runs a variant on other inputs, on a model that it cannot take."""

    name: ClassVar[str] = "outside-errors"
    libraries: ClassVar[tuple[str, ...]] = ()
    cacheable = True
    outside: Outside
    processor: str

    def check(self, inputs: Inputs) -> None:
        del inputs
        raise ModelError("no input can be changed", hint="none")

    def run(self, inputs: Inputs, out: Path) -> Notes: ...

    def verify(self, inputs: Inputs, out: Path) -> None: ...


@dataclass(frozen=True)
class Rounded:
    """The step of a recipe that is made up: weights of few digits, and the samples are counted."""

    name: ClassVar[str] = "rounded"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx")
    cacheable = True
    digits: int

    def check(self, inputs: Inputs) -> None: ...

    def run(self, inputs: Inputs, out: Path) -> Notes:
        self.draft(inputs, out)
        return Notes(f"rounded for {len(SampleSet.read(inputs['calibrated']))} samples")

    def draft(self, inputs: Inputs, out: Path) -> None:
        model = read_model(inputs["model"] / MODEL)
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT:
                values = onnx.numpy_helper.to_array(tensor).round(self.digits)
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        write_model(model, out / MODEL)

    def verify(self, inputs: Inputs, out: Path) -> None: ...


@dataclass(frozen=True)
class TornQuantizer(Int8Static):
    """Stands for a quantizer that meets what nobody foresaw."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        del inputs, out
        raise ZeroDivisionError("7 channels by 0")


@dataclass(frozen=True)
class RefutedQuantizer(Int8Static):
    """Stands for a quantizer that writes what its own proof refutes."""

    def verify(self, inputs: Inputs, out: Path) -> None:
        del inputs, out
        raise BugError("node 'conv' has activations of 8 and of 16 bits")


@dataclass(frozen=True)
class ConstantQuantizer(Int8Static):
    """Stands for a quantizer after which a model gives the same for all samples."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        notes = super().run(inputs, out)
        model = read_model(out / MODEL)
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.INT8:
                tensor.raw_data = bytes(len(tensor.raw_data))
        write_model(model, out / MODEL)
        return notes


def crash() -> None:
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os.abort()


def refuse() -> None:
    raise ModelError("no", hint="other", where="here")


def count(total: int) -> int:
    for done in range(1, total + 1):
        report(done, total)
    return total


def environment(name: str) -> str:
    sys.stdout.write("a library prints this, and it must not get into the answer")
    return os.environ[name]


def run_fp32_alone(folder: Path, variant: str, *rest: Any) -> VariantRun:
    """Stand for :func:`edgepack.trying.running.run_variant` where other models crash."""
    if variant != "cpu-fp32":
        crash()
    return run_variant(folder, variant, *rest)


def leave_files(ends: str) -> None:
    """Make a temporary folder, and never come to remove it."""
    tempfile.mkdtemp(prefix="left-")
    if ends == "crashes":
        os.abort()
    report(1, 1)
    time.sleep(60)


def resident_after_large_blocks() -> int:
    """Take and give back 320 MB in blocks of 16 MB, keep small ones taken after; what stays."""
    bytearray(20 << 20)
    before = _resident()
    blocks = []
    kept = []
    for _ in range(20):
        blocks.append(bytearray(b"x") * (16 << 20))
        kept.append(bytearray(100 << 10))
    del blocks
    return _resident() - before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
