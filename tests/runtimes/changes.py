"""What a release of onnxruntime changes of the facts that edgepack rests on, as a diff.

::

    python -m tests.runtimes.changes [NEW] [OLD] [--record FILE]

NEW is the newest release that the package index has, OLD the one that is installed here. Of both,
environments are made under ``.runtimes``; compared are the highest IR version and opset, the
execution providers, the CPU's kernels with their types, the operators with their attributes, and
the keys of session settings. Run it when a release is out, from cron: it exits 0 if nothing
changed, 1 if something did, so that somebody looks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.runtimes.environments import environment, interpreters, locked
from tests.runtimes.findings import say
from tests.runtimes.models import write_limits
from tests.runtimes.pins import Pin, list_releases
from tests.runtimes.run import ENVIRONMENTS, INSIDE, highest

SECTIONS = ("operators", "kernels", "session keys")
LIMITS = {"ir": "highest IR version", "opset": "highest opset", "qdq": "highest opset of int8"}
_SHOWN = 20
"""Changes of one section, unless there is a record."""


def main() -> int:
    """Compare two releases, print what changed, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("new", nargs="?", help="default: the newest release")
    parser.add_argument("old", nargs="?", default=version("onnxruntime"))
    parser.add_argument("--record", type=Path, help="write all changes, as JSON, to this file")
    arguments = parser.parse_args()
    new = arguments.new or list_releases()[0]
    with locked(ENVIRONMENTS), tempfile.TemporaryDirectory(prefix="edgepack-changes-") as name:
        write_limits(Path(name))
        before, after = (read_facts(each, Path(name)) for each in (arguments.old, new))
    changes = {section: list(compare(before[section], after[section])) for section in before}
    say(f"onnxruntime {arguments.old} to {new}")
    for section, lines in changes.items():
        say(f"{section}: {f'{len(lines)} changes' if lines else 'no change'}")
        for line in lines[:_SHOWN]:
            say(f"  {line}")
        if len(lines) > _SHOWN:
            say(f"  and {len(lines) - _SHOWN} more: --record FILE has them")
    if arguments.record:
        document = {"old": arguments.old, "new": new, "changes": changes}
        arguments.record.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if any(changes.values()) else 0


def read_facts(release: str, limits: Path) -> dict[str, dict[str, Any]]:
    """Return the facts of a release by section, each a fact's name and its values.

    Raises:
        ToolError: It cannot be installed, or does not work.
    """
    pin = Pin("onnxruntime", release, (f"onnxruntime=={release}", "numpy"), ">=3.11")
    found = interpreters()
    python = found.get(f"3.{sys.version_info.minor}") or next(reversed(found.values()))
    facts = environment(pin, python, ENVIRONMENTS).run(INSIDE, "facts", limits)
    highests = {LIMITS[kind]: [str(highest(facts["loads"], kind))] for kind in LIMITS}
    return {
        "limits": highests,
        "providers": {name: [] for name in facts["providers"]},
        **{section: facts[section] for section in SECTIONS},
    }


def compare(before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield what changed between two sets of facts, a line each."""
    for name in sorted({*before, *after}):
        if name not in after:
            yield f"- {name}"
        elif name not in before:
            yield f"+ {name}{_join(after[name])}"
        elif before[name] != after[name]:
            gone = [each for each in before[name] if each not in after[name]]
            come = [each for each in after[name] if each not in before[name]]
            yield f"~ {name}: {'; '.join([*(f'- {e}' for e in gone), *(f'+ {e}' for e in come)])}"


def _join(values: list[str]) -> str:
    return f": {'; '.join(values)}" if values else ""


if __name__ == "__main__":
    sys.exit(main())
