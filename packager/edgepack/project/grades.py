"""Grades: how far a target has been proven, from the evidence files beside the profiles.

``targets/evidence/*.json`` each record one thing that was seen. A target's grade is that of its
best evidence; without any it is ``rendered``, which means that only files were made.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from edgepack.base.resources import find_targets_dir
from edgepack.base.schema import Id, StrictModel
from edgepack.errors import ProfileError
from edgepack.project.profile import Profile

Grade = Literal["verified", "emulated", "compiled", "compiled-elsewhere", "rendered"]
GRADES: tuple[Grade, ...] = ("verified", "emulated", "compiled", "compiled-elsewhere", "rendered")
"""Best first."""
HOW: dict[str, Grade] = {
    "device": "verified",
    "emulation": "emulated",
    "compiler": "compiled",
    "compiler-elsewhere": "compiled-elsewhere",
}
"""The grade that each kind of evidence is worth."""
NOTHING_RAN = ("compiler", "compiler-elsewhere")


class SeenVariant(StrictModel):
    """What one variant did."""

    id: Id
    golden_sqnr_db: float
    """How near its golden outputs were, in the worst output of the worst sample."""
    nodes: dict[str, int]
    """How many nodes ran on each execution provider."""
    verdict: Literal["VALID", "INVALID", "INCONCLUSIVE", "not measured"]
    """The verdict on the measurement; emulated time is never VALID."""


class Evidence(StrictModel):
    """One thing that was seen of a target."""

    schema_version: Literal[1]
    target: Id
    how: Literal["device", "emulation", "compiler", "compiler-elsewhere"]
    """On such a device; on that architecture or that provider's software; compiled against the
    target's own system and runtime; compiled for another system, against its runtime, in place of
    the target's."""
    date: date
    os: str
    arch: Literal["x86-64", "aarch64"]
    device: str
    """The kind of machine in words: a board's model, a processor, an emulator."""
    runtime: dict[str, str]
    """Versions of Python and of the packages that ran."""
    model: str
    """The model that ran."""
    variants: list[SeenVariant]
    reproduce: Annotated[str, Field(min_length=1)]
    """The command that shows it again."""

    @model_validator(mode="after")
    def _check_claim(self) -> Self:
        if self.how not in NOTHING_RAN and not self.variants:
            raise ValueError("nothing ran | name the variants, or say how: compiler")
        if self.how == "device" and all(v.verdict != "VALID" for v in self.variants):
            raise ValueError("no measurement is VALID | measure again, or say how: emulation")
        if self.how == "emulation" and any(v.verdict == "VALID" for v in self.variants):
            raise ValueError("emulated time cannot be VALID | it says nothing of a device")
        return self

    @property
    def grade(self) -> Grade:
        """The grade that this is worth."""
        return HOW[self.how]


def read_evidence() -> list[Evidence]:
    """Return all evidence that edgepack ships.

    Raises:
        ProfileError: A file is not what it should be.
    """
    found = []
    for path in sorted((find_targets_dir() / "evidence").glob("*.json")):
        try:
            found.append(Evidence.model_validate_json(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            raise ProfileError(
                f"the evidence {path.name!r} is wrong: {error.errors()[0]['msg']}",
                hint="write it again with python -m tests.docs.write_evidence",
                where=str(path),
            ) from error
    return found


def find_best_evidence(profile: Profile, evidence: list[Evidence]) -> Evidence | None:
    """Return the evidence that a target's grade rests on, or None.

    A device counts only if it is the target's kind of machine.
    """
    kind = (profile.device.os, profile.device.arch)
    fitting = [
        seen
        for seen in evidence
        if seen.target == profile.id and (seen.how != "device" or (seen.os, seen.arch) == kind)
    ]
    return min(fitting, key=lambda seen: GRADES.index(seen.grade), default=None)


def find_target_grade(profile: Profile, evidence: list[Evidence], path: Path) -> Grade:
    """Return the grade of the profile in a file.

    Evidence is about what edgepack ships: another file of the same id is ``rendered``.
    """
    if path.resolve().parent != find_targets_dir().resolve():
        return "rendered"
    best = find_best_evidence(profile, evidence)
    return best.grade if best else "rendered"
