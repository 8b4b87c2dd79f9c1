"""Grades: how far each variant of a target has been proven, from evidence files beside profiles.

``targets/evidence/*.json`` each record one thing that was seen. A variant's grade is that of its
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

Grade = Literal["verified", "simulated", "emulated", "compiled", "rendered"]
GRADES: tuple[Grade, ...] = ("verified", "simulated", "emulated", "compiled", "rendered")
"""Best first."""
How = Literal["device", "simulator", "emulation", "compiler"]
HOW: dict[How, Grade] = {
    "device": "verified",
    "simulator": "simulated",
    "emulation": "emulated",
    "compiler": "compiled",
}
"""The grade that each kind of evidence is worth."""


class SeenMetric(StrictModel):
    """A variant's metric over evaluation samples, where it ran."""

    name: str
    value: float
    fp32: float
    """Of the float model on the build host."""
    samples: int


class SeenVariant(StrictModel):
    """What one variant did."""

    id: Id
    golden_sqnr_db: float
    """How near its golden outputs were, in the worst output of the worst sample."""
    nodes: dict[str, int]
    """How many nodes ran on each execution provider."""
    verdict: Literal["VALID", "INVALID", "INCONCLUSIVE", "not measured"]
    """The verdict on the measurement; emulated time is never VALID."""
    predicted_share: Annotated[float | None, Field(exclude_if=lambda given: given is None)] = None
    """The share of the nodes that edgepack predicted on the first provider, 0 to 1."""
    metric: Annotated[SeenMetric | None, Field(exclude_if=lambda given: given is None)] = None
    """What it answered there to evaluation samples."""


class Evidence(StrictModel):
    """One thing that was seen of a target."""

    schema_version: Literal[1]
    target: Id
    how: How
    """On such a device; in the vendor's simulator, or in the provider's own software on another
    processor; on an emulated processor of that architecture; compiled by a real compiler, against
    the runtime that ``runtime`` names, where ``variants`` are empty: the code is all variants'."""
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
        if self.how != "compiler" and not self.variants:
            raise ValueError("nothing ran | name the variants, or say how: compiler")
        if self.how == "device" and all(v.verdict != "VALID" for v in self.variants):
            raise ValueError("no measurement is VALID | measure again, or say how: emulation")
        if self.how != "device" and any(v.verdict == "VALID" for v in self.variants):
            raise ValueError("only a device's time can be VALID | it says nothing of a device")
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


def find_variant_evidence(
    profile: Profile, variant: str, evidence: list[Evidence]
) -> Evidence | None:
    """Return the evidence that a variant's grade rests on, or None.

    A device counts only if it is the target's kind of machine, and for variants whose measurement
    there was VALID.
    """
    fitting = [
        seen for seen in evidence if seen.target == profile.id and _is_about(seen, profile, variant)
    ]
    return min(fitting, key=lambda seen: GRADES.index(seen.grade), default=None)


def _is_about(seen: Evidence, profile: Profile, variant: str) -> bool:
    if seen.how == "compiler":
        return not seen.variants or any(each.id == variant for each in seen.variants)
    found = [each for each in seen.variants if each.id == variant]
    if seen.how != "device":
        return bool(found)
    is_such = (seen.os, seen.arch) == (profile.device.os, profile.device.arch)
    return is_such and any(each.verdict == "VALID" for each in found)


def find_grades(profile: Profile, evidence: list[Evidence], path: Path) -> dict[str, Grade]:
    """Return the grade of each variant of the profile in a file.

    Evidence is about what edgepack ships: another file of the same id is ``rendered``.
    """
    if path.resolve().parent != find_targets_dir().resolve():
        evidence = []
    best = {v.id: find_variant_evidence(profile, v.id, evidence) for v in profile.variants}
    return {name: seen.grade if seen else "rendered" for name, seen in best.items()}
