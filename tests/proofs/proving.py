"""One case from its model to what is said of it: built, judged, mutated, and its refusals tried."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.proofs.building import Built, build_case, build_unjudged
from tests.proofs.cases import CannotMakeError, Case, Made
from tests.proofs.judging import Found, elsewhere, judge, look_elsewhere
from tests.proofs.mutations import Caught, mutate, total
from tests.proofs.running import collect, median_ms, single
from tests.proofs.shipped import Bundle, Variant, is_about_accuracy

SLOWER = 1.1
_RAISED = re.compile(
    r"(?<=BUG in edgepack).*^(\w+(Error|Exception): .*?)$", re.DOTALL | re.MULTILINE
)


@dataclass
class Outcome:
    """What was found of a case."""

    name: str
    kind: str
    skipped: str = ""
    seconds: float = 0.0
    found: list[Found] = field(default_factory=list)
    """Of each file that is shipped; variants of the same bytes are one."""
    not_judged: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Variants left out because of what they say."""
    bugs: list[str] = field(default_factory=list)
    """Variants at which edgepack met what it did not foresee."""
    failed: list[str] = field(default_factory=list)
    """Variants that could not be made."""
    refused_but_good: list[str] = field(default_factory=list)
    by_recipe: dict[str, Caught] = field(default_factory=dict)
    """What the goldens caught."""
    notes: list[str] = field(default_factory=list)
    """Order, size and time: told, and no failure."""

    @property
    def caught(self) -> Caught:
        """What the goldens of all files caught."""
        return total(self.by_recipe.values())

    @property
    def broken(self) -> list[str]:
        """Variants that are shipped and broken, and why."""
        lines = [f"{f.variant.id}: {line}" for f in self.found for line in f.broken]
        return lines + self.caught.changed_goldens

    @property
    def told(self) -> dict[str, list[str]]:
        """All that is to be told, the worst first."""
        return {
            "BROKEN": self.broken,
            "REFUSED BUT GOOD": self.refused_but_good,
            "BUG": self.bugs,
            "weak": [f"{f.variant.id}: {line}" for f in self.found for line in f.weak],
            "note": self.notes,
            "refused": self.refused,
            "failed": self.failed,
            "frail": [f"{f.variant.id}: {line}" for f in self.found for line in f.frail],
            "missed mutant": self.caught.missed,
            "not judged": self.not_judged,
        }


def prove(case: Case, folder: Path) -> Outcome:
    """Make a case, build it, and hold what was built against fp32."""
    outcome = Outcome(case.name, case.kind)
    began = time.monotonic()
    folder.mkdir(parents=True)
    try:
        made = case.make(folder)
    except CannotMakeError as reason:
        outcome.skipped = str(reason)
        return outcome
    built = build_case(folder, made, case.targets, folder / "dist")
    _judge_shipped(outcome, built.bundles, made)
    _try_refused(outcome, case, built, made, folder)
    outcome.seconds = time.monotonic() - began
    return outcome


def _judge_shipped(outcome: Outcome, bundles: Sequence[Bundle], made: Made) -> None:
    reference = collect(made.model, made.unseen, made.state)
    others = elsewhere(made)
    seen: set[str] = set()
    for bundle in bundles:
        found: list[Found] = []
        for variant in bundle.variants:
            if variant.not_judged:
                outcome.not_judged.append(f"{variant.id}: {variant.not_judged}")
                continue
            found.append(judge(variant, made, reference))
            if variant.entry["model_sha256"] in seen:
                continue
            seen.add(variant.entry["model_sha256"])
            outcome.found.append(found[-1])
            if not found[-1].broken:
                look_elsewhere(found[-1], made, others)
            caught = outcome.by_recipe.setdefault(variant.entry["recipe"], Caught())
            caught.add(mutate(bundle, variant, made))
        outcome.notes += _order(bundle, found)
        outcome.notes += _slower_and_larger(bundle, made)


def _order(bundle: Bundle, found: Sequence[Found]) -> list[str]:
    """Return a line where int8 loses by its own measure and is first, or stands alone."""
    lines = []
    for one in found:
        if not one.variant.is_quantized or not (one.weak or one.broken):
            continue
        floats = [v.entry["id"] for v in bundle.variants if not v.is_quantized]
        ids = [variant.entry["id"] for variant in bundle.variants]
        place = ids.index(one.variant.entry["id"])
        later = [each for each in floats if ids.index(each) > place]
        if not floats:
            lines.append(f"{one.variant.id} loses, and nothing in float is in the bundle")
        elif later:
            lines.append(f"{one.variant.id} loses, and is taken before {', '.join(later)}")
    return lines


def _slower_and_larger(bundle: Bundle, made: Made) -> list[str]:
    """Return a line for each variant that is larger and slower than fp32 on this CPU."""
    plain = next((v for v in bundle.variants if v.entry["recipe"] == "fp32"), None)
    if plain is None or plain.not_judged:
        return []
    feed = single(made.unseen, made.state, 1)[0]
    size, took = plain.model.stat().st_size, median_ms(plain.model, feed)
    lines = []
    for variant in bundle.variants:
        if variant.not_judged or variant.entry["backend"] != "cpu" or not variant.is_quantized:
            continue
        if (own := variant.model.stat().st_size) > size:
            ms = median_ms(variant.model, feed)
            if ms > SLOWER * took:
                lines.append(
                    f"{variant.id} is larger and slower than fp32: {own} against {size} bytes,"
                    f" {ms:.3f} against {took:.3f} ms"
                )
    return lines


def _try_refused(outcome: Outcome, case: Case, built: Built, made: Made, folder: Path) -> None:
    """Build what was refused for its accuracy all the same, and judge it."""
    refused = [(b.manifest["target"], v, reason) for b in built.bundles for v, reason in b.unused]
    reference = None
    for target, name, reason in dict.fromkeys([*refused, *built.missing]):
        line = f"{target} {name}: {' '.join(reason.split())[:220]}"
        if raised := _RAISED.search(reason):
            outcome.bugs.append(f"{target} {name}: {raised[1]}")
            continue
        if not is_about_accuracy(reason):
            if (target, name, reason) in built.missing:
                outcome.failed.append(line)
            continue
        outcome.refused.append(line)
        again = build_unjudged(folder, made, case.targets, target, name, folder / "unjudged")
        if again is None or not again.bundles:
            outcome.notes.append(f"{target} {name} cannot be built unjudged")
            continue
        reference = reference or collect(made.model, made.unseen, made.state)
        variant: Variant = again.bundles[0].variants[0]
        found = judge(variant, made, reference)
        if not variant.not_judged and found.is_good and found.worst is not None:
            skill = found.worst
            outcome.refused_but_good.append(
                f"{line} | here {skill.what} {skill.measure:.4f}, {skill.lost_points:.2f} lost"
            )
