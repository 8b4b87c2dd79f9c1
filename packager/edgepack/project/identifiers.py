"""Names of models and projects as identifiers and in comments of Kotlin, Swift and JavaScript.

Identifiers are ASCII: every compiler, shrinker and keyboard takes them. The original name is kept
beside them as a string literal and in the documentation comment.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal

from edgepack.base.resources import find_templates_dir

Language = Literal["kotlin", "swift", "js"]


def _split_words(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Hard keywords: kotlinlang.org/docs/keyword-reference.html. Soft keywords are fine as names.
_KOTLIN_WORDS = _split_words(
    "as break class continue do else false for fun if in interface is null object package return"
    " super this throw true try typealias typeof val var when while"
)
# JLS 17, 3.9: a package's name stands in Java code that the Android build generates.
_JAVA_WORDS = _split_words(
    "abstract assert boolean break byte case catch char class const continue default do double"
    " else enum extends final finally float for goto if implements import instanceof int interface"
    " long native new package private protected public return short static strictfp super switch"
    " synchronized this throw throws transient try void volatile while true false null"
)
# The Swift Programming Language, "Keywords and Punctuation": declarations, statements, expressions.
_SWIFT_WORDS = _split_words(
    "associatedtype borrowing class consuming deinit enum extension fileprivate func import init"
    " inout internal let nonisolated open operator precedencegroup private protocol public"
    " rethrows static struct subscript typealias var break case catch continue default defer do"
    " else fallthrough for guard if in repeat return switch throw where while any as await false"
    " is nil self some super throws true try"
)
# ECMAScript 2024, 12.7.2 (modules are strict code) and 13.1.1, and the words of TypeScript's types.
_JS_WORDS = _split_words(
    "any arguments await boolean break case catch class const continue debugger default delete do"
    " else enum eval export extends false finally for function if implements import in instanceof"
    " interface let never new null number object package private protected public return static"
    " string super switch symbol this throw true try typeof undefined unknown var void while with"
    " yield"
)
# Members that the classes of inputs and outputs have, and names that their code uses.
_KOTLIN_MEMBERS = _split_words(
    "answers clone close copy equals feed finalize getClass hashCode javaClass listOf notify"
    " notifyAll shape toString variant wait"
)
_SWIFT_MEMBERS = _split_words(
    "answers close debugDescription description feed hash hashValue place variant"
)
# Of an object that has a member "then", await would call it.
_JS_MEMBERS = _split_words(
    "answers close constructor feed hasOwnProperty isPrototypeOf propertyIsEnumerable prototype"
    " then toJSON toLocaleString toString valueOf variant"
)
_RESERVED: dict[Language, frozenset[str]] = {
    "kotlin": _KOTLIN_WORDS | _KOTLIN_MEMBERS,
    "swift": _SWIFT_WORDS | _SWIFT_MEMBERS,
    "js": _JS_WORDS | _JS_MEMBERS,
}
_COMMENT_WIDTH = 100
"""Of a documentation comment's lines, indent aside."""
# Android's build generates these into a module's package.
_GENERATED_TYPES = _split_words("BuildConfig R")
_NO_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
"""Comments and strings, in Kotlin and in Swift; strings in double quotes in JavaScript."""
_JS_STRING = re.compile(r"'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`")


def make_identifiers(names: Sequence[str], language: Language, role: str) -> tuple[str, ...]:
    """Return a valid identifier for each name, none of them twice, in camelCase.

    A name that is left without a letter at its beginning, or that the language or the classes
    around it keep for themselves, gets the role; one that is taken, a number.

    Args:
        names: Any texts.
        language: Whose identifiers.
        role: What the names are of, as an identifier: ``input``.
    """
    wanted = [_make_camel_case(name) for name in names]
    made: list[str] = []
    for identifier in (_make_allowed(word, _RESERVED[language], role) for word in wanted):
        number, unique = 2, identifier
        while unique in made or (unique != identifier and unique in wanted):
            unique = f"{identifier}{number}"
            number += 1
        made.append(unique)
    return tuple(made)


def make_type_name(name: str) -> str:
    """Return the name of a project's type, valid in all languages."""
    words = "".join(word[0].upper() + word[1:] for word in _find_words(name))
    named = words if words[:1].isalpha() else f"Model{words}"
    return f"{named}Model" if named in find_taken_types() else named


@cache
def find_taken_types() -> frozenset[str]:
    """Return the types that bundles' sources declare or use, which no app's type may hide."""
    folder = find_templates_dir()
    sources = [*folder.glob("android/kotlin/*"), *folder.glob("apple/**/*.swift*")]
    code = [_NO_CODE.sub(" ", source.read_text("utf-8")) for source in sources]
    scripts = [*folder.glob("web/**/*.js*"), *folder.glob("web/**/*.ts*")]
    code += [_JS_STRING.sub(" ", _NO_CODE.sub(" ", s.read_text("utf-8"))) for s in scripts]
    used = {word for text in code for word in re.findall(r"\b[A-Z]\w*", text)}
    return _GENERATED_TYPES | used


def make_package_segment(name: str) -> str:
    """Return a project's name as one segment of a Java package's."""
    segment = "_".join(word.lower() for word in _find_words(name))
    if not segment or segment[0].isdigit():
        return f"_{segment}" if segment else "model"
    return f"{segment}_" if is_reserved_in_packages(segment) else segment


def make_macro(name: str) -> str:
    """Return what C++ calls the folder of a project's bundle: ``EDGEPACK_BUNDLE_CLASSIFIER``."""
    return f"EDGEPACK_BUNDLE_{re.sub('[^A-Z0-9]', '_', name.upper())}"


def find_version_number(version: str) -> str:
    """Return the numbers with which a version begins, at most four; 0 where it has none.

    CMake compares such versions alone: cmake(1), ``find_package``.
    """
    found = re.match(r"\d+(\.\d+){0,3}", version)
    return found[0] if found else "0"


def is_reserved_in_packages(segment: str) -> bool:
    """Say whether Kotlin or Java keeps a word that a package's name would hold."""
    return segment in _KOTLIN_WORDS | _JAVA_WORDS


def make_comment(text: str) -> str:
    """Return a text that neither ends nor begins a comment, nor a line or code in one."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line.replace("*/", "* /").replace("/*", "/ *").replace("`", "'")


def make_comment_lines(text: str) -> tuple[str, ...]:
    """Return a text of any length as lines of a documentation comment, none for an empty one.

    No line is a tag (``@param``) or a field (``- Parameter``) there: where one would begin with a
    sign, a backslash stands before that, which Markdown does not show.
    """
    lines = textwrap.wrap(make_comment(text), _COMMENT_WIDTH)
    return tuple(line if line[0].isalnum() else f"\\{line}" for line in lines)


def _find_words(name: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.findall(r"[A-Za-z0-9]+", plain)


def _make_camel_case(name: str) -> str:
    first, *rest = _find_words(name) or [""]
    lowered = re.sub(r"^([A-Z]+(?![a-z])|[A-Z])", lambda found: found[0].lower(), first)
    return lowered + "".join(word[0].upper() + word[1:] for word in rest)


def _make_allowed(word: str, reserved: Iterable[str], role: str) -> str:
    if not word[:1].isalpha():
        return f"{role}{word}"
    # Data classes have members component1 and so on.
    if word in reserved or re.fullmatch(r"component\d+", word):
        return f"{word}{role.capitalize()}"
    return word
