"""``Unused``: why a variant is not used, and at which stage that was decided."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from edgepack.base.schema import StrictModel
from edgepack.errors import EdgepackError

Stage = Literal["refused", "failed", "missed", "left out", "passed over"]
"""In the order in which a variant comes to them.

``refused``: the target, the samples or the provider does not allow it, which is known without
running the model. ``failed``: a step that makes it raised an error. ``missed``: it loses more than
a limit. ``left out``: it is right, and another variant is used in its place. ``passed over``: it
does not work on the device.
"""


class Unused(StrictModel):
    """A variant that is not used, and why."""

    variant: str
    stage: Stage
    reason: str
    hint: Annotated[str, Field(exclude_if=lambda hint: not hint)] = ""
    """What to do about it, where that is known."""

    @property
    def first_line(self) -> str:
        """The reason without the nodes or other lines that stand below it."""
        return self.reason.partition("\n")[0]

    def __str__(self) -> str:
        return f"{self.variant}: {self.reason}" + (f"\n  hint: {self.hint}" if self.hint else "")


def make_failed(variant: str, error: EdgepackError) -> Unused:
    """Return that making a variant raised an error."""
    place = f"{error.where}: " if error.where else ""
    reason = f"{place}{error.problem}"
    return Unused(variant=variant, stage="failed", reason=reason, hint=error.hint)
