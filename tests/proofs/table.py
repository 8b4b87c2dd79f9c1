"""What was found, printed: a line for each model as it ends, then a table of the kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from planting import Planted
from proving import Outcome

FORMAT = "{:12} {:>7} {:>8} {:>7} {:>7} {:>7} {:>6} {:>13} {:>8} {:>8} {:>8} {:>8}"
HEADINGS = (
    "kind",
    "models",
    "skipped",
    "shipped",
    "refused",
    "broken",
    "weak",
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
    for line in outcome.lines:
        print(f"  {line}", flush=True)


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
    for each in planted:
        print(f"planted {each.name}: {each.told}")
    for outcome in outcomes:
        for line in (*outcome.broken, *outcome.refused_but_good):
            print(f"{outcome.name}: {line}")


def _row(kind: str, outcomes: Sequence[Outcome]) -> str:
    done = [outcome for outcome in outcomes if not outcome.skipped]
    found = [found for outcome in done for found in outcome.found]
    mutants = sum(outcome.caught.count for outcome in done)
    harmful = sum(outcome.caught.harmful for outcome in done)
    return FORMAT.format(
        kind,
        len(done),
        len(outcomes) - len(done),
        len(found),
        sum(len(outcome.refused) for outcome in done),
        sum(len(outcome.broken) for outcome in done),
        sum(bool(each.weak) for each in found),
        sum(len(outcome.refused_but_good) for outcome in done),
        mutants,
        _share(sum(outcome.caught.caught for outcome in done), mutants),
        harmful,
        _share(sum(outcome.caught.harmful_caught for outcome in done), harmful),
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
                "told": o.lines,
                "mutants": o.caught.count,
                "caught": o.caught.caught,
                "harmful": o.caught.harmful,
                "harmful_caught": o.caught.harmful_caught,
                "equivalent": o.caught.equivalent,
            }
            for o in outcomes
        ],
        "planted": [{"name": p.name, "passed": p.passed, "told": p.told} for p in planted],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
