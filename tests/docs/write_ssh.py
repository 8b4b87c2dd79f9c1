"""Write the table of ssh_config's keywords in docs/ssh.md.

What becomes of each is ``KEYWORDS`` of edgepack.devices.ssh.keywords. Run it after changing that:
``.venv/bin/python -m tests.docs.write_ssh``.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from edgepack.devices.ssh.keywords import KEYWORDS, Use

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "ssh.md"
BEGIN = "<!-- keywords: written by tests/docs/write_ssh.py -->\n"
END = "<!-- end of keywords -->\n"


def table() -> str:
    """Return the table as it is committed: a row for each use, its keywords in order."""
    lines = ["| what becomes of it | keywords |", "|---|---|"]
    for use in get_args(Use):
        keywords = sorted((k for k, is_for in KEYWORDS.items() if is_for == use), key=str.lower)
        lines.append(f"| {use} | {', '.join(f'`{keyword}`' for keyword in keywords)} |")
    return "\n".join(lines) + "\n"


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
