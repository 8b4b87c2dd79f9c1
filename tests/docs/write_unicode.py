"""Write the Unicode tables of the C++ library, of what this Python's ``unicodedata`` says.

C++ has no such tables of its own, as Python, Kotlin, Swift and JavaScript have. Run it with the
Python that CONTRIBUTING's checks run: ``.venv/bin/python -m tests.docs.write_unicode``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from edgepack.base.resources import find_ondevice_dir

HEADER = find_ondevice_dir() / "cpp" / "include" / "edgepack" / "detail" / "unicode_tables.hpp"
WIDTH = 98
_CHARACTERS = range(0x110000)
_SYLLABLES = range(0xAC00, 0xD7A4)
"""Hangul, which is composed by a rule and not by a table. Source: Unicode Standard, 3.12."""
_FIRST_LINES = """\
// Written by tests/docs/write_unicode.py: what Python's unicodedata has of Unicode {version}.

#ifndef EDGEPACK_DETAIL_UNICODE_TABLES_HPP
#define EDGEPACK_DETAIL_UNICODE_TABLES_HPP

#include <cstdint>

namespace edgepack::detail {{

/// Characters that follow each other, the last included.
struct CharacterRange {{
  std::uint32_t first, last;
}};

/// Characters with a number: their combining class, or where their parts begin in `kParts`.
struct NumberedRange {{
  std::uint32_t first, last, number;
}};

/// Characters, each so many behind the other, whose lower case is so far away.
struct LowerRange {{
  std::uint32_t first, last, step;
  std::int32_t away;
}};
"""
_LAST_LINES = """
}  // namespace edgepack::detail

#endif
"""

Row = tuple[int, ...]


def write_header() -> str:
    """Return the header as it is committed."""
    parts = [find_parts(c) for c in _CHARACTERS]
    runs = list(list_runs(lambda c: bool(parts[c])))
    flat = [part for first, last in runs for c in range(first, last + 1) for part in parts[c]]
    starts = [sum(last + 1 - first for first, last in runs[:n]) for n in range(len(runs))]
    places = [(*run, 2 * start) for run, start in zip(runs, starts, strict=True)]
    tables: list[tuple[str, str, str, Sequence[Row]]] = [
        ("Category Mn.", "CharacterRange", "kNonspacing", list_categories("Mn")),
        ("Categories that begin with P.", "CharacterRange", "kPunctuation", list_categories("P")),
        (
            "Categories Cc, Cf, Co and Cs.",
            "CharacterRange",
            "kOthers",
            list_categories("Cc", "Cf", "Co", "Cs"),
        ),
        (
            "Canonical combining classes that are not 0.",
            "NumberedRange",
            "kClasses",
            list(list_classes()),
        ),
        (
            "Lower case of a character by itself; U+0130, whose lower case is two, is not here.",
            "LowerRange",
            "kLower",
            list(list_lower()),
        ),
        (
            "Characters that are two others, or one, but for Hangul.",
            "NumberedRange",
            "kDecomposed",
            places,
        ),
        (
            "What these are: two each; where it is one, 0 follows.",
            "std::uint32_t",
            "kParts",
            [(part,) for part in flat],
        ),
        (
            "Those that two parts do not become again.",
            "CharacterRange",
            "kUncomposed",
            list(list_runs(lambda c: is_uncomposed(c, parts[c]))),
        ),
    ]
    text = _FIRST_LINES.format(version=unicodedata.unidata_version)
    return text + "".join(format_table(*table) for table in tables) + _LAST_LINES


def list_runs(holds: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of characters in a row for which something holds."""
    for held, run in groupby(_CHARACTERS, holds):
        if held:
            characters = list(run)
            yield characters[0], characters[-1]


def list_categories(*begins: str) -> list[Row]:
    """Return the ranges of categories with these beginnings."""
    return list(list_runs(lambda c: unicodedata.category(chr(c)).startswith(begins)))


def list_classes() -> Iterator[Row]:
    """Yield ranges with their combining class."""
    for number, run in groupby(_CHARACTERS, lambda c: unicodedata.combining(chr(c))):
        if number:
            characters = list(run)
            yield characters[0], characters[-1], number


def list_lower() -> Iterator[Row]:
    """Yield ranges with what is between them, and how far away their lower case is.

    Raises:
        ValueError: The lower case of a character is several, and it is not U+0130.
    """
    several = [c for c in _CHARACTERS if len(chr(c).lower()) > 1]
    if several != [0x130]:
        raise ValueError(f"the lower case of {several} is several characters")
    mapped = [(c, ord(chr(c).lower()) - c) for c in _CHARACTERS if c not in several]
    left = [(c, away) for c, away in mapped if away]
    while left:
        first, away = left[0]
        best = max((list_steps(left, step) for step in (1, 2)), key=len)
        yield first, best[-1], best[1] - first if len(best) > 1 else 1, away
        left = [(c, a) for c, a in left if c not in set(best)]


def list_steps(mapped: list[tuple[int, int]], step: int) -> list[int]:
    """Return the first character, and those behind it that are so far apart and as far away."""
    known = dict(mapped)
    first, away = mapped[0]
    found = [first]
    while known.get(found[-1] + step) == away:
        found.append(found[-1] + step)
    return found


def find_parts(character: int) -> tuple[int, ...]:
    """Return the two canonical parts of a character; none for Hangul and where it has none."""
    words = unicodedata.decomposition(chr(character)).split()
    if not words or words[0].startswith("<") or character in _SYLLABLES:
        return ()
    return (*(int(word, 16) for word in words), 0)[:2]


def is_uncomposed(character: int, parts: tuple[int, ...]) -> bool:
    """Return whether a character has two parts that do not become it again."""
    text = chr(character)
    return bool(parts and parts[1]) and unicodedata.normalize("NFC", text) != text


def format_table(about: str, kind: str, name: str, rows: Sequence[Row]) -> str:
    """Return a table as C++."""
    cells = [str(row[0]) if len(row) == 1 else "{" + ",".join(map(str, row)) + "}" for row in rows]
    lines, line = [], ""
    for cell in cells:
        if len(line) + len(cell) + 1 > WIDTH:
            lines.append(line)
            line = ""
        line += cell + ","
    body = "\n".join(["    " + each for each in (*lines, line)])
    return f"\n/// {about}\ninline constexpr {kind} {name}[] = {{\n{body}\n}};\n"


def main() -> None:
    """Write the header."""
    HEADER.write_text(write_header(), encoding="utf-8")


if __name__ == "__main__":
    main()
