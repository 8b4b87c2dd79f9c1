"""Makes text safe for a terminal."""

from __future__ import annotations


def make_printable(text: str) -> str:
    """Return a model's or device's text without escape sequences, which a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
