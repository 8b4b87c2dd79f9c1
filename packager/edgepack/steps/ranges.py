"""The range of every float tensor over the calibration samples, from which int8 scales are made.

It does not depend on a dialect: all targets share one calibration. This module is the only one
that knows how ranges are collected; what it writes is all that others read.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgepack.data import SampleSet
from edgepack.errors import StepError
from edgepack.model.reading import read_structure
from edgepack.model.running import make_session, run_session
from edgepack.quantization.dialect import WITHOUT_INT8
from edgepack.quantization.errors import quantizer_errors
from edgepack.steps.base import MODEL, Inputs, Notes
from edgepack.steps.quantized import require_unquantized

if TYPE_CHECKING:
    import onnx

RANGES = "ranges.json"
"""``{tensor: [lowest, highest]}`` in the tensor's unit, over all values of all samples; null where
a value was infinite or NaN. Sorted by name; tensors are those of the model that are float and no
constants."""


@dataclass(frozen=True)
class Ranges:
    """Lowest and highest value of every float tensor. Inputs: ``model``; ``samples``."""

    name: ClassVar[str] = "ranges"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True

    def check(self, inputs: Inputs) -> None:
        """Make sure that the model is a float32 one and gives finite numbers on the first sample.

        Raises:
            StepError: It is quantized already, or float16, or an output has NaN or infinity.
        """
        model = read_structure(inputs["model"] / MODEL)
        require_unquantized(model)
        _require_float32(model)
        session = make_session(inputs["model"] / MODEL)
        _require_finite(run_session(session, SampleSet.read(inputs["samples"]).inputs(0)))

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``ranges.json``.

        Raises:
            StepError: onnxruntime's calibrator fails.
        """
        samples = SampleSet.read(inputs["samples"])
        ranges = _collect(inputs["model"], samples)
        (out / RANGES).write_text(json.dumps(ranges, sort_keys=True, indent=0), encoding="utf-8")
        found = sum(limits is not None for limits in ranges.values())
        return Notes(
            f"ranges of {found} tensors from {len(samples)} samples",
            {"tensors": found, "without_range": len(ranges) - found, "samples": len(samples)},
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that there are ranges, that they are in order, and that the inputs have theirs.

        Raises:
            StepError: They are not.
        """
        ranges = read_ranges(out)
        for name, (low, high) in ranges.items():
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise _broken(f"the tensor {name!r} has the range {low} to {high}")
        sample = SampleSet.read(inputs["samples"]).inputs(0)
        for name, array in sample.items():
            if array.dtype.kind == "f" and array.size and name in ranges:
                low, high = ranges[name]
                if not (low <= array.min() and array.max() <= high):
                    raise _broken(f"the first sample's {name!r} lies outside {low} to {high}")
        if not ranges:
            raise StepError("no float tensor of the model has a finite range", hint=WITHOUT_INT8)


def read_ranges(folder: Path) -> dict[str, tuple[float, float]]:
    """Return the ranges that :class:`Ranges` wrote, without the tensors that have none."""
    read = json.loads((folder / RANGES).read_text(encoding="utf-8"))
    return {name: (limits[0], limits[1]) for name, limits in read.items() if limits is not None}


def _require_finite(outputs: dict[str, Any]) -> None:
    """Refuse NaN and infinity in a model's outputs.

    Raises:
        StepError: An output has one.
    """
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise StepError(
                f"the output {name!r} has NaN or infinity on the first calibration sample",
                hint="check the samples' scale and 'inputs' in edgepack.yaml",
            )


def _collect(model: Path, samples: SampleSet) -> dict[str, list[float] | None]:
    """Return the ranges as the file holds them, collected by onnxruntime's MinMax calibrator."""
    from onnxruntime.quantization.calibrate import create_calibrator

    with tempfile.TemporaryDirectory(prefix="edgepack-ranges-") as scratch:
        # The calibrator writes beside the model it reads.
        for file in model.glob(f"{MODEL}*"):
            shutil.copyfile(file, Path(scratch) / file.name)
        with quantizer_errors("calibrator"):
            calibrator = create_calibrator(
                Path(scratch) / MODEL,
                augmented_model_path=str(Path(scratch) / "augmented.onnx"),
                use_external_data_format=True,
            )
            calibrator.collect_data(_reader(samples))
            found = calibrator.compute_data()
            limits = {name: data.range_value for name, data in found.items()}
    return {name: _plain(*limits[name]) for name in sorted(limits)}


def _plain(low: object, high: object) -> list[float] | None:
    pair = [float(np.asarray(limit).squeeze()) for limit in (low, high)]
    return pair if all(map(math.isfinite, pair)) else None


def _reader(samples: SampleSet) -> object:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        """Hands the calibrator one sample at a time."""

        def __init__(self) -> None:
            self._samples: Iterator[dict[str, Any]] = iter(samples)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._samples, None)

    return Reader()


def _require_float32(model: onnx.ModelProto) -> None:
    from onnx import TensorProto

    half = [t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT16]
    if half:
        raise StepError(
            f"the model is float16: {len(half)} constants, {half[0]!r} first; int8 is made from"
            " float32",
            hint="give the float32 model, or " + WITHOUT_INT8,
        )


def _broken(found: str) -> StepError:
    return StepError(
        f"the calibration is wrong: {found}",
        hint="this is a fault in edgepack or in onnxruntime's calibrator: please report it",
    )
