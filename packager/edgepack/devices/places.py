"""Places of a labgrid: acquired while edgepack is connected to their boards, then released.

``labgrid-client`` is asked, of labgrid 26; its place's NetworkService says where the board is.
labgrid keeps other people of the lab off the board, edgepack's own lease other commands of
edgepack. A place that its user has acquired by hand is used, and stays acquired.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter, ValidationError

from edgepack.base.files import locked, writing
from edgepack.base.processes import ProgramResult, run_program
from edgepack.devices.inventory import Device, LabgridEntry, SshEntry
from edgepack.errors import BusyError, DeviceError, ToolError, UnreachableError, UsageError

ASKING_S = 60.0
_OWN = re.compile(r"You have already acquired place \S+\.$", re.MULTILINE)
"""From this host. From another one labgrid names that host after the place, and asks for a command
there before two hosts use the board (``labgrid/remote/client.py``, labgrid 26)."""
_BUSY = re.compile(r"is already acquired by|You have already acquired place \S+ on ")
_NO_COORDINATOR = "Could not connect to coordinator"
_SERVICE = re.compile(r"^(?:Acquired|Matching) resource '[^']*' \([^)\n]*NetworkService[^)\n]*\):$")
"""What ``show`` of labgrid 26 writes above a resource, which follows as Python writes it
(``labgrid/remote/client.py``)."""
_ACQUIRED = b"acquired"
_OWN_KEYS = {"transport", "place", "filters", "waiting_s", "coordinator", "client"}
"""Those of the inventory's entry that an SSH device has not."""


def find_board(device: Device) -> SshEntry:
    """Return how to reach a board over SSH, by its place's NetworkService; nothing is acquired.

    Raises:
        UsageError: There is no such place.
        DeviceError: The coordinator does not answer, or the place has no NetworkService.
        ToolError: ``labgrid-client`` is missing.
    """
    entry = _find_entry(device)
    said = _ask(device, "show")
    if said.exit_code:
        raise _make_error(device, said)
    lines = said.text.splitlines()
    found = [number for number, line in enumerate(lines) if _SERVICE.match(line)]
    if len(found) != 1:
        raise DeviceError(
            f"the place {entry.place!r} has {len(found)} NetworkServices that labgrid knows now,"
            " and one says where a board is",
            hint=f"labgrid-client -p {entry.place} show; is its exporter running?",
            where=device.name,
        )
    values = entry.model_dump(exclude=_OWN_KEYS)
    try:
        service = ast.literal_eval(_take_literal(lines[found[0] + 1 :]))["params"]
        reached = {"host": service["address"], "port": service.get("port")}
        reached["user"] = entry.user or service.get("username") or None
        return TypeAdapter(SshEntry).validate_python({**values, "transport": "ssh", **reached})
    except (ValueError, SyntaxError, TypeError, KeyError, ValidationError) as error:
        raise DeviceError(
            f"labgrid-client shows a NetworkService that cannot be read: {type(error).__name__}",
            hint=f"look at it: labgrid-client -p {entry.place} show",
            where=device.name,
        ) from error


def _take_literal(lines: list[str]) -> str:
    """Return a resource as ``show`` writes it: the indented lines that follow."""
    taken = []
    for line in lines:
        if not line.startswith(" "):
            break
        taken.append(line.strip())
    return "\n".join(taken)


def acquire_place(device: Device) -> IO[bytes]:
    """Acquire a place for this process, beside others of this user here; return what says so.

    Raises:
        BusyError: Somebody else has the place, or its user on another host; the error names them.
        DeviceError: The coordinator does not answer.
        UsageError: There is no such place.
        ToolError: ``labgrid-client`` is missing.
    """
    guard, path = _find_device_files(device)
    with writing("the place's use", path), locked(guard):
        use = path.open("a+b")
        try:
            fcntl.flock(use, fcntl.LOCK_SH)
            said = _ask(device, "acquire")
            if said.exit_code == 0:
                use.write(_ACQUIRED)
                use.flush()
            else:
                _require_own(device, said)
        except BaseException:
            use.close()
            raise
    return use


def release_place(device: Device, use: IO[bytes]) -> None:
    """Release a place that edgepack has acquired, unless other processes here still use it.

    Raises:
        EdgepackError: As :func:`acquire_place` does.
    """
    guard, path = _find_device_files(device)
    with writing("the place's use", path), locked(guard), use:
        try:
            fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        use.seek(0)
        if not use.read():
            return
        said = _ask(device, "release")
        if said.exit_code:
            raise _make_error(device, said)
        use.truncate(0)


@contextmanager
def held_place(device: Device) -> Iterator[None]:
    """Hold a place while the context lasts, as :func:`acquire_place` does.

    Raises:
        EdgepackError: As :func:`acquire_place` and :func:`release_place` do.
    """
    use = acquire_place(device)
    try:
        yield
    finally:
        release_place(device, use)


def switch_place(device: Device, action: str) -> None:
    """Switch the power of a place that is acquired, ``on``, ``off`` or ``cycle``.

    Raises:
        EdgepackError: As :func:`acquire_place` does.
        ToolError: labgrid does not know how, or cannot.
    """
    said = _ask(device, "power", action)
    if said.exit_code and _NO_COORDINATOR.encode() in said.stderr:
        raise _make_error(device, said)
    if said.exit_code:
        raise ToolError(
            f"labgrid cannot switch the power of the place{said.last_lines}",
            hint="a resource such as NetworkPowerPort has to match the place: labgrid-client -p"
            f" {_find_entry(device).place} show",
            where=device.name,
        )


def _require_own(device: Device, said: ProgramResult) -> None:
    """Check that a place was not acquired because its user has it already, on this host."""
    if not _OWN.search(said.stderr.decode("utf-8", "replace")):
        raise _make_error(device, said)


def _find_device_files(device: Device) -> tuple[Path, Path]:
    entry = _find_entry(device)
    return find_files(entry, entry.place or "")


def find_files(entry: LabgridEntry, name: str) -> tuple[Path, Path]:
    """Return the file that guards what this user has of a labgrid, and the one that says it."""
    import platformdirs

    key = hashlib.sha256(f"{_find_coordinator(entry)}\0{name}".encode()).hexdigest()[:16]
    folder = platformdirs.user_data_path("edgepack") / "labgrid"
    return folder / f"{key}.guard", folder / f"{key}.use"


def _find_coordinator(entry: LabgridEntry) -> str:
    return entry.coordinator or os.environ.get("LG_COORDINATOR", "")


def _ask(device: Device, *words: str) -> ProgramResult:
    entry = _find_entry(device)
    return ask_client(entry, "-p", entry.place or "", *words)


def ask_client(
    entry: LabgridEntry,
    *words: str,
    timeout_s: float = ASKING_S,
    environment: Mapping[str, str] | None = None,
) -> ProgramResult:
    """Run ``labgrid-client`` with the entry's coordinator.

    Raises:
        ToolError: It is missing, or took longer than ``timeout_s``.
    """
    coordinator = ["-x", entry.coordinator] if entry.coordinator else []
    return run_program(
        [entry.client, *coordinator, *words], timeout_s=timeout_s, environment=environment
    )


def _find_entry(device: Device) -> LabgridEntry:
    if not isinstance(device.entry, LabgridEntry) or device.entry.place is None:
        raise TypeError(f"{device.name} is no board of a labgrid, or its place is not known yet")
    return device.entry


def _make_error(device: Device, said: ProgramResult) -> DeviceError | UsageError:
    return make_client_error(_find_entry(device), said, device.name)


def make_client_error(
    entry: LabgridEntry, said: ProgramResult, device: str
) -> DeviceError | UsageError:
    """Return the error for what ``labgrid-client`` said of a device, by the device's name."""
    text = said.stderr.decode("utf-8", "replace").strip()
    problem = text.rpartition("Error: ")[2].partition("\n")[0] or f"exit code {said.exit_code}"
    if _BUSY.search(text):
        return BusyError(
            f"labgrid: {problem}", hint="wait until it is released there", where=device
        )
    if _NO_COORDINATOR in text:
        where = _find_coordinator(entry) or "127.0.0.1:20408"
        return UnreachableError(
            f"labgrid's coordinator at {where} does not answer",
            hint="check 'coordinator' in devices.yaml, or LG_COORDINATOR",
            where=device,
        )
    return UsageError(
        f"labgrid: {problem}",
        hint=f"labgrid-client -v places lists them; devices.yaml says {entry.wanted!r}",
        where=device,
    )
