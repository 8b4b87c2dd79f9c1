"""Functions that worker processes run in tests."""

from __future__ import annotations

import os
import sys

from edgepack.errors import ModelError
from edgepack.worker import report


def crash() -> None:
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os.abort()


def refuse() -> None:
    raise ModelError("no", hint="other", where="here")


def count(total: int) -> int:
    for done in range(1, total + 1):
        report(done, total)
    return total


def environment(name: str) -> str:
    sys.stdout.write("a library prints this, and it must not get into the answer")
    return os.environ[name]
