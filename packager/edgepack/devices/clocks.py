"""Sets a device's clocks to their highest during a measurement, and restores them.

A small program on the device (``edgepack_clocks.py``) does both, at the other end of a stream: when
this process ends for any reason, the stream ends and the program restores the clocks. When the
connection dies silently, the program restores them after :data:`SILENCE_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from edgepack.base.schema import StrictModel
from edgepack.devices.answers import make_answer_error, read_answer
from edgepack.devices.inventory import Device
from edgepack.devices.programs import open_device_program
from edgepack.devices.transport import Stream, Transport
from edgepack.errors import DeviceError, EdgepackError

SILENCE_S = 120.0
_EVERY_S = 30.0
_ANSWER_S = 60.0
"""Setting one governor may take a call of sudo."""
_LINE_BYTES = 1 << 16


class HeldSetting(StrictModel):
    """A setting of the device that is changed for a while."""

    name: str
    before: str
    during: str
    given_back: bool = False


class _Answer(StrictModel):
    settings: list[HeldSetting] | None = None
    given_back: list[str] | None = None
    problem: str = ""
    hint: str = ""


@contextmanager
def held_clocks(
    transport: Transport, device: Device, *, sysfs: str = "/"
) -> Iterator[list[HeldSetting]]:
    """Hold the clocks during the context; afterwards the list says what was restored.

    Args:
        transport: Connected to the device, which nobody else measures on meanwhile.
        device: Which.
        sysfs: The root of the file system with ``sys/devices/system/cpu/cpufreq``.

    Raises:
        DeviceError: The clocks cannot be held, because a permission or the clocks are missing; or,
            if the context ends without an error, they could not be restored.
    """
    with _open_program(transport, device, "hold", sysfs) as stream:
        settings = _read_answer(stream, device).settings or []
        try:
            with _speaking(stream):
                yield settings
        except BaseException:
            with suppress(EdgepackError):  # the error that ended the measurement matters more
                _restore(stream, device, settings)
            raise
        _restore(stream, device, settings)


def _restore(stream: Stream, device: Device, settings: list[HeldSetting]) -> None:
    """Restore the clocks, and note in the settings which were restored."""
    stream.close_stdin()
    given = _read_answer(stream, device).given_back or []
    settings[:] = [each.model_copy(update={"given_back": each.name in given}) for each in settings]


def give_back_clocks(transport: Transport, device: Device) -> list[str]:
    """Restore the settings that a killed program left changed, and return their names.

    Settings of a running measurement stay as they are.

    Raises:
        DeviceError: Restoring them failed.
    """
    with _open_program(transport, device, "give-back", "/") as stream:
        return _read_answer(stream, device).given_back or []


def _open_program(
    transport: Transport, device: Device, do: str, sysfs: str
) -> AbstractContextManager[Stream]:
    words = ("edgepack_clocks", do, device.entry.root, sysfs, str(SILENCE_S))
    # Not supervised: the supervisor would kill it before it has restored the clocks.
    return open_device_program(transport, device, *words, timeout_s=_ANSWER_S, supervised=False)


@contextmanager
def _speaking(stream: Stream) -> Iterator[None]:
    """Send a sign of life from time to time."""
    stopped = threading.Event()

    def speak() -> None:
        with suppress(EdgepackError):  # the next use of the connection finds that it is broken
            while not stopped.wait(_EVERY_S):
                stream.write(b"\n")

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _read_answer(stream: Stream, device: Device) -> _Answer:
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES:
        more = stream.read(1)
        if not more:
            break
        line += more
    if not line:
        stream.wait().check(
            "holding the device's clocks", device=device.name, hint="measure without --tune"
        )
        raise make_answer_error("the answer about clocks is missing", line, device=device.name)
    found = read_answer(_Answer, line, device=device.name, what="the answer about clocks")
    if found.problem:
        raise DeviceError(found.problem, hint=found.hint, where=device.name)
    return found
