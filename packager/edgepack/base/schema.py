"""Base types of all documents: strict models, identifiers, and values that are not measured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
"""A name in lower case: of a target, a variant, a device's target."""
Positive = Annotated[int, Field(gt=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class StrictModel(BaseModel):
    """Base of everything read from a file: frozen, no unknown keys, no coercion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NotMeasured(StrictModel):
    """Stands for a value that was not measured, or that a device or a run does not report."""

    kind: Literal["not-measured"] = "not-measured"
    reason: Annotated[str, Field(max_length=10_000)]
