"""The small model in every bundle that shows whether the device or the model is slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from edgepack.base.schema import NotMeasured, StrictModel
from edgepack.records.run import Canary

CANARY = "harness/edgepack_canary.py"
"""The canary's path in a bundle."""


class CanaryRun(StrictModel):
    """One process's result for the canary."""

    model_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    median_ns: Annotated[int, Field(gt=0)]


def join_runs(runs: Sequence[CanaryRun | NotMeasured]) -> Canary | NotMeasured:
    """Return the canary of a session; where any of its runs failed, why.

    A canary from one side of the measurement alone could miss the device's change during it.
    """
    measured = [run for run in runs if isinstance(run, CanaryRun)]
    failed = [run for run in runs if isinstance(run, NotMeasured)]
    if failed or not measured:
        return next(iter(failed), NotMeasured(reason="the measurement ended before"))
    return Canary(
        model_sha256=measured[0].model_sha256, medians_ns=[run.median_ns for run in measured]
    )
