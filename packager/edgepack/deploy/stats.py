"""Reads what bundles have counted on a device: inferences, times, errors, inputs out of range."""

from __future__ import annotations

import io
import tarfile
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import Field, ValidationError

from edgepack.base.schema import StrictModel
from edgepack.devices.answers import make_answer_error, read_answer
from edgepack.devices.inventory import Device
from edgepack.devices.programs import open_device_program
from edgepack.devices.transport import CommandResult, Transport
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, PythonMissingError

FOLDER = "stats"
"""Under a device's root: where files of counters are looked for."""
READ_S = 60.0
"""How long a device may take to read them."""

# Argument: the folder.
_SCRIPT = """
case $1 in "~"/*) cd "$HOME/${1#??}" ;; *) cd "$1" ;; esac 2>/dev/null || { echo none; exit; }
set -- ./*.ring
[ ! -e "$1" ] || tar -cf - "$@"
"""

_Text = Annotated[str, Field(max_length=4096)]
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_Seconds = Annotated[int, Field(ge=0, lt=253_402_300_800)]
"""Since 1970, and before the year 10000."""
_Counts = Annotated[dict[_Text, _Count], Field(max_length=100)]


class VariantCounts(StrictModel):
    """What one variant has done since its file was made."""

    inferences: _Count = 0
    took_ns: _Count = 0
    buckets: _Counts = {}
    """How many inferences took how long, by the number of the bucket in ``bounds_ms``."""
    errors: _Counts = {}
    checked: _Count = 0
    """The calls whose inputs were held against the ranges that int8 was calibrated with."""
    outside: _Counts = {}
    """How many of those had values outside, by input."""


class Counts(StrictModel):
    """What a release of a bundle has counted on a device, over all its processes."""

    model: _Text
    version: _Text
    release: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    bounds_ms: Annotated[list[Annotated[float, Field(gt=0)]], Field(max_length=100)]
    """Upper ends of the buckets of times, included; one more has what is above."""
    since_s: _Seconds
    """When its file was made, and below when it was written last, by the device's clock."""
    written_s: _Seconds
    loads: _Count
    failed_writes: _Count
    passed_over: Annotated[dict[_Text, _Text], Field(max_length=100)]
    """Variants that did not work there at the last load, each with the reason."""
    variants: Annotated[dict[_Text, VariantCounts], Field(max_length=100)]
    budget: Annotated[dict[_Text, float], Field(exclude=True)]
    """What the device needs to keep writes few."""

    def find_bound_ms(self, variant: str, share: float) -> float | None:
        """Return the time within which that share of a variant's inferences was done.

        Returns:
            The upper end of a bucket in milliseconds, infinity for the last one; None if there
            were no inferences.
        """
        buckets = self.variants[variant].buckets
        reached = list(accumulate(buckets.get(str(n), 0) for n in range(len(self.bounds_ms) + 1)))
        if not reached[-1]:
            return None
        return [*self.bounds_ms, float("inf")][bisect_left(reached, share * reached[-1])]


class _File(StrictModel):
    name: _Text
    problem: _Text
    record: dict[str, Any] | None


class _Answer(StrictModel):
    is_there: bool
    files: Annotated[list[_File], Field(max_length=1000)]


@dataclass(frozen=True)
class DeviceStats:
    """What a device says that its bundles have counted."""

    device: str
    folder: str
    is_there: bool
    """Whether the folder is there: no program counted into it otherwise."""
    counts: tuple[Counts, ...]
    unreadable: tuple[str, ...]
    """Files without a whole record, each with what is wrong."""

    def require_readable(self) -> None:
        """Check that every file had a record.

        Raises:
            DeviceError: One had none.
        """
        if self.unreadable:
            lines = "".join(f"\n  {line}" for line in self.unreadable)
            raise DeviceError(
                f"files of counters in {self.folder} cannot be read{lines}",
                hint="look at the device's disk (dmesg); a program that counts there begins a"
                " damaged file anew, others may be removed",
                where=self.device,
            )


def read_stats(
    device: Device, project: str | None = None, folder: str | None = None
) -> DeviceStats:
    """Return what programs on a device have counted that were started with EDGEPACK_STATS.

    Args:
        device: The device.
        project: Only this project's.
        folder: On the device, as EDGEPACK_STATS has it there; by default ``stats`` in its root.

    Raises:
        DeviceError: The device cannot be reached or trusted, lacks the Python that the inventory
            names, or answers nonsense.
        RemoteCommandError: It took longer than :data:`READ_S`, or failed.
    """
    folder = folder or f"{device.entry.root}/{FOLDER}"
    with connect(device) as transport:
        try:
            answer = _ask_python(transport, device, folder, project or "")
        except PythonMissingError:
            if not device.may_lack_python:
                raise
            answer = _ask_shell(transport, folder, project or "")
    counts, unreadable = [], []
    for file in answer.files:
        try:
            counts.append(Counts.model_validate(file.record or {}))
        except ValidationError as error:
            why = "it has another form" if file.record else "it has no whole record"
            unreadable.append(f"{file.name}: {file.problem or why}")
            if file.record:
                unreadable[-1] += f": {error.errors()[0]['loc']}"
    return DeviceStats(device.name, folder, answer.is_there, tuple(counts), tuple(unreadable))


def _ask_python(transport: Transport, device: Device, folder: str, project: str) -> _Answer:
    words = ("edgepack_ring", folder, project)
    with open_device_program(transport, device, *words, timeout_s=READ_S) as stream:
        result = _check(stream.wait(), device.name, folder)
    what = "what it says of its counters"
    return read_answer(_Answer, result.stdout, device=device.name, what=what)


def _ask_shell(transport: Transport, folder: str, project: str) -> _Answer:
    """Return the same of a device without Python: its files are copied and read here."""
    from edgepack.ondevice.runtime import edgepack_ring as ring  # needs fcntl

    argv = ["sh", "-c", _SCRIPT, "sh", folder]
    result = _check(transport.send(argv, [], timeout_s=READ_S), transport.name, folder)
    files = []
    with tempfile.TemporaryDirectory(prefix="edgepack-") as copies:
        for name, data in _unpack(result.stdout, transport.name):
            copy = Path(copies) / "ring"
            copy.write_bytes(data)
            record = ring.read(str(copy))
            if project in ("", (record or {}).get("model")):
                files.append(_File(name=name, problem="", record=record))
    return _Answer(is_there=result.stdout != b"none\n", files=files)


def _unpack(archive: bytes, device: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the bytes of the plain files in a tar archive."""
    if archive in (b"none\n", b""):
        return
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            for member in sorted(opened, key=lambda each: each.name):
                content = opened.extractfile(member) if member.isreg() else None
                name = PurePosixPath(member.name).name.encode("utf-8", "surrogateescape")
                yield name.decode("utf-8", "backslashreplace"), content.read() if content else b""
    except tarfile.TarError as error:
        raise make_answer_error("its counters are no archive", archive, device=device) from error


def _check(result: CommandResult, device: str, folder: str) -> CommandResult:
    hint = f"look at the message above; the counters are in {folder} on the device"
    return result.check("reading the counters there", device=device, hint=hint)
