"""What the lab saw: each expectation with whether it held, and the record of the boards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab.commands import say
from tests.support.reports.proof_report import Check


class Findings:
    """Collects expectations and facts; nothing that failed is forgotten."""

    def __init__(self, boards: Sequence[str]) -> None:
        self.facts: dict[str, Any] = {}
        self.boards: dict[str, dict[str, Any]] = {name: {} for name in boards}
        self._expected: list[tuple[str, bool]] = []

    def expect(self, what: str, held: bool, found: object = "") -> None:  # noqa: FBT001
        """Note whether something that has to hold does; ``found`` is shown beside it."""
        self._expected.append((what, held))
        shown = f"  ({found})" if str(found) else ""
        say(f"  {'ok  ' if held else 'FAIL'}  {what}{shown}")

    @property
    def failed(self) -> list[str]:
        """What did not hold."""
        return [what for what, held in self._expected if not held]

    @property
    def checks(self) -> list[Check]:
        """Every expectation, for the report of all proofs."""
        return [Check(what, "" if held else "it does not hold") for what, held in self._expected]

    @property
    def count(self) -> int:
        """How many expectations there were."""
        return len(self._expected)

    def write(self, path: Path, *, finished: bool) -> None:
        """Write the record: no host names, no paths of this machine.

        ``finished`` says whether the road was walked to its end.
        """
        document = {
            "schema_version": 1,
            "held": finished and not self.failed,
            "finished": finished,
            **self.facts,
            "boards": self.boards,
            "expectations": [{"what": what, "held": held} for what, held in self._expected],
        }
        local = [text for text in texts_of(document) if text.startswith("/")]
        if local:
            raise ValueError(f"the record has paths of this machine: {local}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def texts_of(value: object) -> Iterator[str]:
    """Yield every text in a document, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of(item)
