"""Write the table of rooms in docs/architecture.md: what each is for, and whom it may use.

The first sentence of a room's docstring is its job; whom it may use is ``MAY_USE`` of
tests/unit/test_architecture.py. Run it after changing either:
``.venv/bin/python -m tests.docs.write_rooms``.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.unit.test_architecture import MAY_USE, PACKAGE

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- rooms: written by tests/docs/write_rooms.py -->\n"
END = "<!-- end of rooms -->\n"


def table() -> str:
    """Return the table as it is committed: callers first, each room's own rooms behind it."""
    lines = ["| room | what it does | may use |", "|---|---|---|"]
    for room, used in reversed(MAY_USE.items()):
        may_use = ", ".join(sorted(used.split())) or "nothing"
        lines.append(f"| `{room}` | {job(room)} | {may_use} |")
        lines += [f"| &nbsp; `{inner}` | {job(inner)} | |" for inner in inner_rooms(room)]
    return "\n".join(lines) + "\n"


def inner_rooms(room: str) -> list[str]:
    """Return the rooms within one, by their paths."""
    found = sorted((PACKAGE / room).glob("*/__init__.py"))
    return [path.parent.relative_to(PACKAGE).as_posix() for path in found]


def job(room: str) -> str:
    """Return the first sentence of a room's docstring, or of a module that is one.

    Raises:
        ValueError: It has no sentence.
    """
    package = PACKAGE / room / "__init__.py"
    path = package if package.is_file() else PACKAGE / f"{room}.py"
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
    first = re.match(r".+?\.(?=\s|$)", text)
    if first is None:
        raise ValueError(f"{path} has no docstring that begins with a sentence")
    return first.group().replace("``", "`")


def with_table(text: str) -> str:
    """Return the page with a fresh table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main() -> None:
    """Write the table."""
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
