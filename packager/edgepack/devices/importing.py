"""Reads boards from lists that others keep: a CSV file, or an SSH configuration."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from edgepack.errors import ProfileError, UsageError

COLUMNS = ["name", "host", "user", "port", "key", "password_env", "tags", "target", "fingerprint"]
"""What a CSV file may have, in any order."""
_DEPTH = 16
"""Of files that include each other, as for OpenSSH."""


@dataclass(frozen=True)
class ListedDevice:
    """A board as a list names it; what the list does not say is empty."""

    name: str
    host: str
    user: str = ""
    port: str = ""
    key: str = ""
    password_env: str = ""
    ssh_config: str = ""
    tags: tuple[str, ...] = ()
    target: str = ""
    fingerprint: str = ""
    """The host key to expect; then nobody is asked about it."""
    has_password: bool = False
    """Whether the list has a password for it, which is not taken from there."""
    problem: str = ""
    """Why it cannot be taken as it is listed; empty if it can."""
    hint: str = ""
    """What to do about the problem."""


def choose_listed(
    boards: Sequence[ListedDevice], patterns: Sequence[str], path: Path
) -> list[ListedDevice]:
    """Return the boards whose names match one of the patterns: ``*``, ``?`` and ``[...]``.

    Raises:
        UsageError: A pattern matches none, or the list has none.
    """
    for pattern in patterns or ["*"]:
        if not any(fnmatchcase(board.name, pattern) for board in boards):
            names = ", ".join(board.name for board in boards[:5])
            raise UsageError(
                f"no board of {path} matches {pattern!r}",
                hint=f"it has {len(boards)}: {names}{', ...' if len(boards) > 5 else ''}"
                if boards
                else "it names none: is it the right file?",
            )
    return [
        board
        for board in boards
        if any(fnmatchcase(board.name, pattern) for pattern in patterns or ["*"])
    ]


def read_text(path: Path) -> str:
    """Return a list's text.

    Raises:
        ProfileError: It cannot be read, or is no text.
    """
    try:
        return path.expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(
            f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}",
            hint="it must be a UTF-8 text file that your user may read",
        ) from error


def read_csv_devices(path: Path) -> list[ListedDevice]:
    """Read boards from a CSV file: its first line names the columns, :data:`COLUMNS` or some.

    Commas part the cells, or semicolons if the first line has one; spaces part several tags.

    Raises:
        ProfileError: It cannot be read, or a line is not what the first one announces.
    """
    lines = read_text(path).splitlines()
    first = lines[0] if lines else ""
    rows = csv.DictReader(lines, delimiter=";" if ";" in first else ",", strict=True)
    names = [name.strip() for name in rows.fieldnames or []]
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not {"name", "host"} <= set(names) or len(set(names)) < len(names):
        raise ProfileError(
            f"the first line names the columns {', '.join(names) or 'none'}",
            hint=f"name 'name' and 'host', and each once of: {', '.join(COLUMNS[2:])}",
            where=f"{path}:1",
        )
    rows.fieldnames = names
    found: list[ListedDevice] = []
    try:
        for row in rows:
            given = {key: (row[key] or "").strip() for key in names}
            cells = dict.fromkeys(COLUMNS, "") | given
            if None in row or not cells["name"] or not cells["host"]:
                raise ProfileError(
                    "the line has more cells than the first one, or no name or host",
                    hint="give each board a line with as many cells as there are columns",
                    where=f"{path}:{rows.line_num}",
                )
            found.append(
                ListedDevice(
                    name=cells["name"],
                    host=cells["host"],
                    user=cells["user"],
                    port=cells["port"],
                    key=cells["key"],
                    password_env=cells["password_env"],
                    tags=tuple(cells["tags"].split()),
                    target=cells["target"],
                    fingerprint=cells["fingerprint"],
                )
            )
    except csv.Error as error:
        raise ProfileError(
            f"not valid CSV: {error}", hint="check its quotes", where=f"{path}:{rows.line_num}"
        ) from error
    return found


def read_ssh_config_devices(path: Path) -> list[ListedDevice]:
    """Read the hosts that an SSH configuration names, with what it includes; patterns are none.

    How each is reached is asked of ``ssh -G`` whenever it is.

    Raises:
        ProfileError: It cannot be read.
    """
    is_usual = path.expanduser().absolute() == Path("~/.ssh/config").expanduser()
    config = "" if is_usual else str(path.expanduser().absolute())
    names = dict.fromkeys(_list_hosts(path.expanduser(), 0))
    return [ListedDevice(name, name, ssh_config=config) for name in names]


def _list_hosts(path: Path, depth: int) -> Iterator[str]:
    if depth > _DEPTH:
        raise ProfileError(
            f"{path} is included more than {_DEPTH} files deep", hint="look for a loop of Include"
        )
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        keyword, _, rest = re.sub(r"[\s=]+", " ", line.strip(), count=1).partition(" ")
        if keyword.lower() not in ("host", "include"):
            continue
        try:
            words = shlex.split(rest, comments=True)
        except ValueError as error:
            raise ProfileError(
                f"{line.strip()!r} cannot be read: {error}",
                hint="check its quotes",
                where=f"{path}:{number}",
            ) from error
        if keyword.lower() == "host":
            yield from (word for word in words if not re.search(r"[*?!]", word))
            continue
        for word in words:
            # Source: ssh_config(5), Include: "Files without absolute paths are assumed to be in
            # ~/.ssh if included in a user configuration file".
            pattern = (Path("~/.ssh").expanduser() / Path(word).expanduser()).relative_to("/")
            for included in sorted(Path("/").glob(str(pattern))):
                yield from _list_hosts(included, depth + 1)
