"""What was found, printed: a line for each model as it ends, then a table of the kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.proofs.mutations import total
from tests.proofs.planting import Planted
from tests.proofs.proving import Outcome

FORMAT = "{:12} {:>7} {:>8} {:>7} {:>7} {:>7} {:>6} {:>6} {:>13} {:>8} {:>8} {:>8} {:>8}"
MOST_SHOWN = {"frail": 2, "missed mutant": 2, "not judged": 1}
HEADINGS = (
    "kind",
    "models",
    "skipped",
    "shipped",
    "refused",
    "broken",
    "weak",
    "frail",
    "refused, good",
    "mutants",
    "caught",
    "harmful",
    "caught",
)


def print_outcome(outcome: Outcome) -> None:
    """Print a line for a model, and one for each thing that was found."""
    if outcome.skipped:
        print(f"{outcome.name}: skipped: {outcome.skipped}", flush=True)
        return
    shares = ", ".join(
        f"{found.variant.id} {found.worst.share:.3f}" if found.worst else f"{found.variant.id} -"
        for found in outcome.found
    )
    print(f"{outcome.name} ({outcome.kind}, {outcome.seconds:.0f} s): {shares}", flush=True)
    for what, lines in outcome.told.items():
        shown = MOST_SHOWN.get(what, len(lines))
        for line in lines[:shown]:
            print(f"  {what}: {line}", flush=True)
        if len(lines) > shown:
            print(f"  {what}: and {len(lines) - shown} more (--record has them)", flush=True)


def print_table(outcomes: Sequence[Outcome], planted: Sequence[Planted]) -> None:
    """Print a row for each kind and one for all, and what became of what was planted."""
    print()
    print(FORMAT.format(*HEADINGS))
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        print(_row(kind, [outcome for outcome in outcomes if outcome.kind == kind]))
    print(_row("all", outcomes))
    print()
    print("broken, weak: of the files that are shipped, as judging.py has it. caught: by the")
    print(
        "goldens, of mutants that change an output, and of those that are harmful (mutations.py)."
    )
    for recipe in sorted({recipe for outcome in outcomes for recipe in outcome.by_recipe}):
        caught = total(o.by_recipe[recipe] for o in outcomes if recipe in o.by_recipe)
        print(
            f"{recipe}: goldens catch {_share(caught.caught, caught.count)} of {caught.count}"
            f" mutants, {_share(caught.harmful_caught, caught.harmful)} of {caught.harmful}"
            f" harmful ones; {caught.equivalent} were equivalent"
        )
    claims = [b for o in outcomes for f in o.found for b in f.below_claim.values()]
    print(
        f"R² of unseen samples is below the manifest's 95 % interval for {sum(claims)} of"
        f" {len(claims)} outputs"
    )
    for each in planted:
        print(f"planted {each.name}: {each.told}")
    for outcome in outcomes:
        for line in (*outcome.broken, *outcome.refused_but_good, *outcome.bugs):
            print(f"{outcome.name}: {line}")


def _row(kind: str, outcomes: Sequence[Outcome]) -> str:
    done = [outcome for outcome in outcomes if not outcome.skipped]
    found = [found for outcome in done for found in outcome.found]
    caught = total(outcome.caught for outcome in done)
    return FORMAT.format(
        kind,
        len(done),
        len(outcomes) - len(done),
        len(found),
        sum(len(outcome.refused) for outcome in done),
        sum(len(outcome.broken) for outcome in done),
        sum(bool(each.weak) for each in found),
        sum(bool(each.frail) for each in found),
        sum(len(outcome.refused_but_good) for outcome in done),
        caught.count,
        _share(caught.caught, caught.count),
        caught.harmful,
        _share(caught.harmful_caught, caught.harmful),
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def write_record(path: Path, outcomes: Sequence[Outcome], planted: Sequence[Planted]) -> None:
    """Write all that was found as JSON."""
    document = {
        "models": [
            {
                "name": o.name,
                "kind": o.kind,
                "skipped": o.skipped,
                "seconds": round(o.seconds, 1),
                "shipped": {
                    f.variant.id: {n: vars(s) if s else None for n, s in f.skills.items()}
                    for f in o.found
                },
                "told": {what: lines for what, lines in o.told.items() if lines},
                "goldens": {recipe: vars(caught) for recipe, caught in o.by_recipe.items()},
            }
            for o in outcomes
        ],
        "planted": [{"name": p.name, "passed": p.passed, "told": p.told} for p in planted],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
