"""Every error that edgepack raises on purpose, in one tree.

::

    EdgepackError
    ├── UsageError          2   the command line asks for something that is not there
    │   └── BudgetError     2   the time that is given for measuring is too short
    ├── ProfileError        3   a YAML file (project, profile, inventory) is wrong
    ├── ModelError          4   the model cannot be read, or cannot be taken
    │   └── SamplesError    4   the samples do not fit the model
    ├── ToolError           5   a program or library that a step needs is missing or failed
    │   ├── DatabaseError       5   a database does not answer, or others write to it
    │   └── RegistryError       5   a registry refuses what it is asked
    │       └── RegistryAwayError   5   a registry does not answer, or not now
    ├── StepError           6   a step did not do, or could not prove, what it was asked
    │   └── BugError       70   it met what edgepack did not foresee
    ├── BundleError         7   a bundle is incomplete, altered or unreadable
    ├── DeviceError         8   a device cannot be reached, trusted or used
    │   ├── UnreachableError  8   a device did not answer, or the connection was lost
    │   ├── BusyError           8   others use the device
    │   │   └── LostJobError    8   a worker's job was given to another one
    │   └── PythonMissingError  8   a device has no Python, or not where it should be
    ├── RemoteCommandError  9   a command on a device failed
    │   ├── VariantRefusedError  9   a device cannot use a variant
    │   └── TooSlowError    9   it took longer than it may
    ├── LimitError         10   a variant misses a limit that the project sets
    └── InconclusiveError  11   the measurement does not settle the question

Exit code 130 is Ctrl-C, which is not raised from here. Outside of steps a bug is no error of this
tree: the command line reports it, with 70 too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar


class EdgepackError(Exception):
    """A problem with a remedy: what was found, where, and what to do about it.

    Args:
        problem: What was found, with the values that were received.
        hint: What to do: a command, a line to add, or the values that are allowed.
        where: A file with line and column, a flag or a device, where that helps.
    """

    exit_code: ClassVar[int] = 1
    transient: ClassVar[bool] = False
    """Whether it may pass by itself, so that another try may succeed."""

    def __init__(self, problem: str, *, hint: str, where: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        self.where = where

    @property
    def first_line(self) -> str:
        """The problem without a program's last output, which follows on the lines below it."""
        return self.problem.partition("\n")[0]

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.problem}\n  hint: {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors are pickled between processes; keyword arguments need this method for that.
        return (_rebuild, (type(self), self.problem, self.hint, self.where), vars(self))


def _rebuild(kind: type[EdgepackError], problem: str, hint: str, where: str) -> EdgepackError:
    return kind(problem, hint=hint, where=where)


REPORT_IT = "please report it with the lines above and, if you can, the model"
"""What to do about a bug."""


class UsageError(EdgepackError):
    """The command line or a function's argument asks for something that is not there."""

    exit_code = 2


class BudgetError(UsageError):
    """The time that the user gives for measuring is too short for an answer."""

    needed_s: int = 0
    """What would do, in seconds."""


class ProfileError(EdgepackError):
    """A YAML file (project, profile, inventory) is wrong."""

    exit_code = 3


class ModelError(EdgepackError):
    """The model cannot be read, or edgepack or the target cannot take it."""

    exit_code = 4


class SamplesError(ModelError):
    """The samples do not fit the model, or cannot be read."""


class ToolError(EdgepackError):
    """A program or library that a step needs is missing or failed, or a place cannot be written."""

    exit_code = 5


class DatabaseError(ToolError):
    """A database does not answer, or others write to it; a device that needs it is pending."""

    transient = True


class RegistryError(ToolError):
    """A registry refuses what it is asked, or answers what is no answer."""

    status: int = 0
    """The answer's, as HTTP has it; 0 where there was none."""


class RegistryAwayError(RegistryError):
    """A registry does not answer, or not now, although it was asked several times."""

    transient = True
    wait_s: float = 0.0
    """How long it asks to wait, in seconds."""


class StepError(EdgepackError):
    """A step did not do, or could not prove, what it was asked."""

    exit_code = 6


class BugError(StepError):
    """A step failed in a way that edgepack did not foresee, or its own proof refuted its output.

    If a worker process raises it, it carries what is needed to fix it: see
    :func:`~edgepack.base.bugs.format_bug`.
    """

    exit_code = 70

    def __init__(self, problem: str, *, hint: str = REPORT_IT, where: str = "") -> None:
        super().__init__(problem, hint=hint, where=where)


class BundleError(EdgepackError):
    """A bundle is incomplete, altered or unreadable."""

    exit_code = 7


class DeviceError(EdgepackError):
    """A device cannot be reached, trusted or used."""

    exit_code = 8


class UnreachableError(DeviceError):
    """A device did not answer, or the connection to it was lost."""

    transient = True


class BusyError(DeviceError):
    """Others use a device or its files at the moment, and will finish."""

    transient = True


class LostJobError(BusyError):
    """A job was taken from a worker that was not heard of for too long."""


class PythonMissingError(DeviceError):
    """There is no Python on a device, or not where the inventory says."""


class RemoteCommandError(EdgepackError):
    """A command on a device failed, or took longer than it may."""

    exit_code = 9


class VariantRefusedError(RemoteCommandError):
    """The loader on a device, or a phone, cannot use a variant."""


class TooSlowError(RemoteCommandError):
    """A command on a device took longer than it may, and was stopped."""


class LimitError(EdgepackError):
    """A variant misses a limit that the project sets."""

    exit_code = 10


class InconclusiveError(EdgepackError):
    """The measurement does not settle the question that was asked."""

    exit_code = 11


NEAR = 3
AS_NEAR = 0.05
"""The largest difference in similarity between the nearest word and others that are named too."""
LISTED = 16


def suggest_nearest(word: str, allowed: Iterable[str]) -> str:
    """Return which allowed words are near to the one received, or list them.

    Returns:
        ``did you mean 'x'?`` or ``did you mean 'x' or 'y'?`` when some are as near as a typo is,
        the nearest first; else ``one of: a, b, c``, with at most 16 of them.
    """
    choices = sorted(allowed)
    if close := difflib.get_close_matches(word, choices, n=1, cutoff=0.6):
        best = difflib.SequenceMatcher(None, close[0], word).ratio()
        close = difflib.get_close_matches(word, choices, n=NEAR, cutoff=best - AS_NEAR)
        *others, last = map(repr, close)
        return f"did you mean {' or '.join([', '.join(others), last] if others else [last])}?"
    return f"one of: {format_list(choices, LISTED)}" if choices else "there are none"


def format_list(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first items as one line, and how many more there are: ``a, b, and 5 more``.

    Args:
        items: What to list, each as it is to be read.
        most: How many are shown.
        separator: Between two of them.
    """
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return separator.join([*items[:most], *more])


def format_one_line(problem: str, most: int = 300) -> str:
    """Return an error's problem as one line, without a program's last output below it."""
    text = " ".join(problem.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
