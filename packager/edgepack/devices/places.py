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
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter, ValidationError

from edgepack.base.files import locked, writing
from edgepack.base.processes import ProgramResult, run_program
from edgepack.devices.inventory import Device, LabgridEntry, SshEntry
from edgepack.errors import BusyError, DeviceError, UnreachableError, UsageError

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
    values = entry.model_dump(exclude={"transport", "place", "coordinator", "client"})
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
    guard, path = _find_files(device)
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
    guard, path = _find_files(device)
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


def _require_own(device: Device, said: ProgramResult) -> None:
    """Check that a place was not acquired because its user has it already, on this host."""
    if not _OWN.search(said.stderr.decode("utf-8", "replace")):
        raise _make_error(device, said)


def _find_files(device: Device) -> tuple[Path, Path]:
    import platformdirs

    entry = _find_entry(device)
    key = hashlib.sha256(f"{_find_coordinator(entry)}\0{entry.place}".encode()).hexdigest()[:16]
    folder = platformdirs.user_data_path("edgepack") / "labgrid"
    return folder / f"{key}.guard", folder / f"{key}.use"


def _find_coordinator(entry: LabgridEntry) -> str:
    return entry.coordinator or os.environ.get("LG_COORDINATOR", "")


def _ask(device: Device, *words: str) -> ProgramResult:
    entry = _find_entry(device)
    coordinator = ["-x", entry.coordinator] if entry.coordinator else []
    return run_program([entry.client, *coordinator, "-p", entry.place, *words], timeout_s=ASKING_S)


def _find_entry(device: Device) -> LabgridEntry:
    if not isinstance(device.entry, LabgridEntry):
        raise TypeError(f"{device.name} is no board of a labgrid")
    return device.entry


def _make_error(device: Device, said: ProgramResult) -> DeviceError | UsageError:
    entry = _find_entry(device)
    text = said.stderr.decode("utf-8", "replace").strip()
    problem = text.rpartition("Error: ")[2].partition("\n")[0] or f"exit code {said.exit_code}"
    if _BUSY.search(text):
        return BusyError(
            f"labgrid: {problem}", hint="wait until it is released there", where=device.name
        )
    if _NO_COORDINATOR in text:
        where = _find_coordinator(entry) or "127.0.0.1:20408"
        return UnreachableError(
            f"labgrid's coordinator at {where} does not answer",
            hint="check 'coordinator' in devices.yaml, or LG_COORDINATOR",
            where=device.name,
        )
    return UsageError(
        f"labgrid: {problem}",
        hint=f"labgrid-client places lists them; this is {entry.place!r} in devices.yaml",
        where=device.name,
    )
