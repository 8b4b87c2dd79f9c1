"""What a proof is: a name, and a function that looks, and says in a few words what it saw."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".mobile"
"""What proofs fetch and make once; git ignores it."""


class NotHeldError(Exception):
    """What a proof was to show is not so; the message says what was found instead."""


@dataclass(frozen=True)
class Proof:
    """One thing that is shown to be so."""

    name: str
    look: Callable[[Path], str]
    """Takes an empty folder to work in, and returns what it saw (``12 models, 40 goldens``).

    Raises:
        NotHeldError: It is not so.
        EdgepackError: A program that it needs is missing or failed, or edgepack itself did.
    """


def require(held: bool, otherwise: str) -> None:  # noqa: FBT001  (as assert has it)
    """Raise NotHeldError with ``otherwise`` unless ``held``."""
    if not held:
        raise NotHeldError(otherwise)


def findings_beside(planted: str, said: str) -> list[str]:
    """Return a linter's findings (``FILE:LINE:COLUMN: ...``) in other files than the planted one.

    Raises:
        NotHeldError: It found nothing in that one, which is wrong on purpose.
    """
    found = [line for line in said.splitlines() if re.match(r"\S+:\d+:\d+: ", line)]
    others = [line for line in found if Path(line.split(":")[0]).name != planted]
    require(len(others) < len(found), f"nothing is found in {planted}, which is wrong:\n{said}")
    return others
