"""The converters as a user sees them: what each takes, needs, and has on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgepack.converters.base import Converter
from edgepack.converters.environments import Environment, find_folder, find_python, is_ready
from edgepack.converters.registry import CONVERTERS
from edgepack.errors import UsageError, suggest_nearest


@dataclass(frozen=True)
class ListedConverter:
    """One converter."""

    name: str
    words: str
    """What it takes, for people."""
    packages: tuple[str, ...]
    """Those that decide its result; the first must be there."""
    environment: str
    """The environment that edgepack makes for it; empty where only a Python of the user's does."""
    size: str
    """What that environment takes; empty where there is none."""
    ready: bool
    """Whether it is on this machine."""
    beside: bool
    """Whether builds take the Python that edgepack runs in instead, which has the packages."""
    folder: str
    """Where it is, or would be."""


def list_converters() -> list[ListedConverter]:
    """Return all converters, by name."""
    return [_list(CONVERTERS[name]) for name in sorted(CONVERTERS)]


def install_converter(name: str, tell: Callable[[str], None] = lambda _: None) -> ListedConverter:
    """Make a converter's environment, if it is not there, and return the converter.

    Args:
        name: Its name.
        tell: Gets a line about what is fetched.

    Raises:
        UsageError: There is no such converter, or it runs in a Python of the user's only.
        ToolError: The environment cannot be made.
    """
    if name not in CONVERTERS:
        raise UsageError(
            f"there is no converter {name!r}",
            hint=suggest_nearest(name, CONVERTERS),
            where="CONVERTER",
        )
    converter = CONVERTERS[name]
    if converter.lock is None:
        raise UsageError(
            f"{converter.words} is converted in a Python of yours",
            hint=f"install {converter.packages[0]} there, and name it with --python",
            where="CONVERTER",
        )
    find_python(Environment(converter.lock), tell)
    return _list(converter)


def _list(converter: Converter) -> ListedConverter:
    lock = converter.lock
    return ListedConverter(
        name=converter.name,
        words=converter.words,
        packages=converter.packages,
        environment=lock.name if lock else "",
        size=lock.size if lock else "",
        ready=bool(lock and is_ready(lock)),
        beside=converter.runs_beside,
        folder=str(find_folder(lock)) if lock else "",
    )
