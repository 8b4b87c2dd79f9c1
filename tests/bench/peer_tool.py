"""Quantizes one model with another tool, in that tool's own environment, and prints what it took.

::

    python peer_tool.py TOOL MODEL INPUT SAMPLES.npy OUT.onnx [OPTION=VALUE ...]

The samples are one float32 array; sample ``k`` is ``array[k : k + 1]``. The last line printed is a
JSON document: ``seconds`` of the quantizer's own call, without imports and without reading the
model; ``peak_bytes`` of the whole process. With the option ``calibration=yes`` it stops before
anything is written. It knows nothing of edgepack.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnx

Feeds = list[dict[str, Any]]


def nncf(model: str, feeds: Feeds, out: str, options: Mapping[str, str]) -> dict[str, float]:
    """Quantize with NNCF; ``calibration`` stops after the ranges, without bias correction."""
    import nncf
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters

    nncf.set_log_level(logging.ERROR)
    loaded = onnx.load(model)
    advanced = AdvancedQuantizationParameters(disable_bias_correction="calibration" in options)
    started = time.perf_counter()
    made = nncf.quantize(
        loaded,
        nncf.Dataset(feeds),
        preset=nncf.QuantizationPreset(options.get("preset", "performance")),
        fast_bias_correction=options.get("fast", "yes") == "yes",
        subset_size=len(feeds),
        advanced_parameters=advanced,
    )
    seconds = time.perf_counter() - started
    onnx.save(made, out)
    return {"seconds": seconds}


def onnxruntime(model: str, feeds: Feeds, out: str, options: Mapping[str, str]) -> dict[str, float]:
    """Quantize with onnxruntime's ``quantize_static``, or with ``calibration`` only calibrate."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.calibrate import create_calibrator

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._feeds: Iterator[dict[str, Any]] = iter(feeds)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._feeds, None)

    logging.disable(logging.WARNING)
    types = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8, "uint16": QuantType.QUInt16}
    symmetric = options.get("symmetric", "no") == "yes"
    method = CalibrationMethod[options.get("method", "MinMax")]
    started = time.perf_counter()
    if "calibration" in options:
        calibrator = create_calibrator(model, augmented_model_path=out, calibrate_method=method)
        calibrator.collect_data(Reader())
        calibrator.compute_data()
        return {"seconds": time.perf_counter() - started}
    quantize_static(
        model,
        out,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=options.get("per_channel", "yes") == "yes",
        activation_type=types[options.get("activations", "uint8")],
        weight_type=types[options.get("weights", "int8")],
        calibrate_method=method,
        extra_options={"ActivationSymmetric": symmetric},
    )
    return {"seconds": time.perf_counter() - started}


def onnxsim(model: str, feeds: Feeds, out: str, options: Mapping[str, str]) -> dict[str, float]:
    """Quantize with onnxsim's ``quantize_full_qdq``, or with ``calibration`` only calibrate."""
    from onnxsim.calibration import calibrate
    from onnxsim.full_qdq import quantize_full_qdq

    loaded = onnx.load(model)
    method = options.get("method", "minmax")
    started = time.perf_counter()
    if "calibration" in options:
        calibrate(loaded, feeds, method=method)
        return {"seconds": time.perf_counter() - started}
    made = quantize_full_qdq(
        loaded,
        feeds,
        activation_dtype=options.get("activations", "uint8"),
        method=method,
        per_channel=options.get("per_channel", "yes") == "yes",
    )
    seconds = time.perf_counter() - started
    onnx.save(made, out)
    return {"seconds": seconds}


TOOLS: dict[str, Callable[[str, Feeds, str, Mapping[str, str]], dict[str, float]]] = {
    "nncf": nncf,
    "onnxruntime": onnxruntime,
    "onnxsim": onnxsim,
}


def peak_bytes() -> int:
    """Return the most memory that this program had resident.

    Linux keeps ``ru_maxrss`` over exec, so there it may be the parent's (getrusage(2)).
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(each for each in status.read_text().splitlines() if each.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(arguments: list[str]) -> None:
    """Quantize, and print what it took."""
    tool, model, name, samples, out, *options = arguments
    array = np.load(samples, mmap_mode="r")
    feeds = [{name: np.ascontiguousarray(array[k : k + 1])} for k in range(len(array))]
    took = TOOLS[tool](model, feeds, out, dict(option.split("=", 1) for option in options))
    print(json.dumps({**took, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main(sys.argv[1:])
