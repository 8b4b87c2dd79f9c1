"""The result of an evaluation: as the manifest holds it, as a line, and without fp32."""

from __future__ import annotations

import json
from typing import Any

from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Accuracy, Drift

NO_FP32 = "the model came quantized or float16, so there is no fp32 model to compare it with"


def drop_comparison(result: dict[str, Any]) -> dict[str, Any]:
    """Return what is left of an evaluation whose reference was the model itself.

    That is the value of a metric of labels or of the user's. How near a model is to itself says
    nothing: the function removes drop, agreement and closeness, and everything if the metric is
    agreement.
    """
    missing = NotMeasured(reason=NO_FP32).model_dump()
    if "metric" not in result:
        return missing
    if result.get("output", ""):
        return missing
    compared = dict.fromkeys(("drop", "drop_interval", "agreement", "worst"))
    compared |= {"outputs": {}, "r2": {}, "says_nothing": "", "says_little": "", "drift": None}
    values = {n: {**each, "fp32": None} for n, each in result.get("values", {}).items()}
    return {**result, **compared, "fp32": missing, "values": values}


def make_accuracy(result: dict[str, Any]) -> Accuracy | NotMeasured:
    """Return an evaluation as the manifest holds it."""
    if "metric" not in result:
        return NotMeasured.model_validate(result)
    return Accuracy.model_validate_json(json.dumps(result))


def describe_evaluation(accuracy: Accuracy | NotMeasured) -> str:
    """Return an evaluation as one line."""
    if isinstance(accuracy, NotMeasured):
        return f"not measured: {accuracy.reason}"
    found = f"{accuracy.metric} {accuracy.value:.4f}"
    if isinstance(accuracy.fp32, NotMeasured) or accuracy.worst is None:
        return f"{found} on {accuracy.samples} samples"
    return (
        f"{accuracy.metric} {accuracy.fp32:.4f} to {accuracy.value:.4f}"
        f" on {accuracy.samples} samples, worst output {accuracy.worst.sqnr_db:.1f} dB"
        f"{_format_drift(accuracy.drift)}"
    )


def _format_drift(found: Drift | None) -> str:
    if found is None:
        return ""
    return f", R² {found.first:.4f} at the beginning of streams and {found.last:.4f} at their end"
