"""Text and tables in Markdown, for comments in pull requests."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.base.terminal import make_printable


def format_markdown_row(cells: Sequence[str]) -> str:
    """Return cells as a row of a table."""
    return f"| {' | '.join(escape_markdown(cell) for cell in cells)} |"


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is: a device's text must not become markup."""
    plain = make_printable(text)
    for character in "\\`*_[]<>|#":
        plain = plain.replace(character, f"\\{character}")
    return plain
