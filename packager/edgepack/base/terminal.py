"""What may be written on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return words of a model or device without what a terminal would obey: escape sequences."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
