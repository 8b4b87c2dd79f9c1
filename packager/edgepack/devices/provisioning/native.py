"""What measures on a board without Python: the measuring program and onnxruntime's library.

Both lie under ``<root>/native``. The library is that of the wheel that the target pins.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from packaging.specifiers import SpecifierSet

from edgepack.base.schema import StrictModel
from edgepack.devices.answers import read_answer
from edgepack.devices.inventory import Device
from edgepack.devices.probing import ProbedFacts
from edgepack.devices.provisioning.native_program import PROGRAM, build_program, find_compiler
from edgepack.devices.provisioning.wheels import list_platform_tags
from edgepack.devices.transport import Transport
from edgepack.errors import DeviceError, EdgepackError, ToolError
from edgepack.project.profile import Profile
from edgepack.records.run import Count, Name

FOLDER = "native"
LIBRARY = "libonnxruntime.so"
RUNTIME = "onnxruntime"
"""The package whose wheel has the library."""
ASK_S = 60.0
_SEND_S = 1800.0
_REFUSED_EXIT = 3
_SIGNAL_EXIT = 128
"""A shell says so, and the signal's number above it."""


class About(StrictModel):
    """What the runtime on a device is, as the measuring program prints it."""

    onnxruntime: Name
    providers: list[Name]
    cpu_count: Count
    plugin: str = ""
    """Why a plugin that was asked for gives no provider."""


class _Refusal(StrictModel):
    refused: Name
    message: str


def list_native_problems(facts: ProbedFacts, profile: Profile) -> Iterator[str]:
    """Yield what prevents measuring on a board without Python, each with what to do about it."""
    if facts.lacks:
        yield f"no {', '.join(facts.lacks)} for what needs no Python: install busybox"
    if facts.lacks_library:
        yield (
            f"no {facts.lacks_library}, which onnxruntime loads: install it (Debian: libstdc++6;"
            " Yocto: libstdc++)"
        )
    if RUNTIME not in profile.runtime.packages:
        yield (
            f"target {profile.id!r} takes another onnxruntime, which is measured with Python:"
            " install python3 on the device, or choose a target for its CPU"
        )
    for check in (lambda: list_platform_tags(facts.arch, facts.libc), lambda: _compile(facts)):
        try:
            check()
        except EdgepackError as error:
            yield f"{error.problem}: {error.hint}"


def _compile(facts: ProbedFacts) -> None:
    find_compiler(facts.arch)


def require_native(device: Device, facts: ProbedFacts, profile: Profile) -> None:
    """Check that a board without Python can be measured.

    Raises:
        DeviceError: It cannot; or this machine lacks a compiler for it.
    """
    if problems := list(list_native_problems(facts, profile)):
        raise DeviceError(
            "the device has no Python, and cannot be measured without"
            + "".join(f"\n  {problem}" for problem in problems),
            hint=f"fix that, or install python3 there; then: edgepack device check {device.name}",
            where=device.name,
        )


def find_folder(facts: ProbedFacts) -> PurePosixPath:
    """Return where the program and the library lie on a board."""
    return facts.root / FOLDER


def send_program(device: Device, transport: Transport, facts: ProbedFacts) -> None:
    """Compile the measuring program, and put it on a board that has not this one.

    Raises:
        DeviceError: There is no onnxruntime for the board's processor.
        ToolError: There is no compiler for it here.
        RemoteCommandError: It cannot be put there.
    """
    program = build_program(facts.arch)
    _send(program, find_folder(facts) / PROGRAM, device, transport, mode="755")


def send_library(wheel: Path, device: Device, transport: Transport, facts: ProbedFacts) -> None:
    """Put the library out of a wheel on a board that has not this one.

    Raises:
        ToolError: The wheel has none.
        RemoteCommandError: It cannot be put there.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder, zipfile.ZipFile(wheel) as held:
        names = [n for n in held.namelist() if n.startswith("onnxruntime/capi/libonnxruntime.so.")]
        if len(names) != 1:
            raise ToolError(
                f"{wheel.name} has {len(names)} files onnxruntime/capi/libonnxruntime.so.*",
                hint="give a wheel of onnxruntime as PyPI has it: --wheel FILE",
            )
        library = Path(held.extract(names[0], folder))
        _send(library, find_folder(facts) / LIBRARY, device, transport, mode="644")


def ask_runtime(device: Device, transport: Transport, facts: ProbedFacts) -> About:
    """Return what the runtime on a board is.

    Raises:
        DeviceError: It does not load there; or the program does not start.
    """
    found = _ask_runtime(device, transport, facts)
    if isinstance(found, About):
        return found
    raise _make_not_loaded_error(found, device, facts)


def _ask_runtime(device: Device, transport: Transport, facts: ProbedFacts) -> About | str:
    """Return what the runtime on a board is, or why what is there does not load.

    Raises:
        DeviceError: The program does not start.
    """
    folder = find_folder(facts)
    argv = [str(folder / PROGRAM), "about", "--runtime", str(folder / LIBRARY)]
    result = transport.run(argv, timeout_s=ASK_S, supervisor="shell")
    if result.exit_code == 0:
        return read_answer(About, result.stdout, device=device.name, what="the runtime's answer")
    if result.exit_code == _REFUSED_EXIT:
        what = "the measuring program's refusal"
        return read_answer(_Refusal, result.stdout, device=device.name, what=what).message
    ended = f"the measuring program ended with exit code {result.exit_code}{result.last_lines}"
    if result.exit_code > _SIGNAL_EXIT:  # a library that is cut off can kill who loads it
        return ended
    raise _make_not_loaded_error(ended, device, facts)


def _make_not_loaded_error(why: str, device: Device, facts: ProbedFacts) -> DeviceError:
    return DeviceError(
        f"onnxruntime does not load on the device: {why}",
        hint=f"look at the message above; 'root' in devices.yaml ({facts.root}) has to be where"
        " programs may run",
        where=device.name,
    )


def find_runtime(
    device: Device, transport: Transport, facts: ProbedFacts, profile: Profile
) -> About | None:
    """Return what the runtime on a board is; None if none loads there, or not the target's."""
    there = ["test", "-f", str(find_folder(facts) / LIBRARY)]
    if transport.send(there, [], timeout_s=ASK_S).exit_code:
        return None
    found = _ask_runtime(device, transport, facts)
    pin = SpecifierSet(profile.runtime.packages[RUNTIME])
    return found if isinstance(found, About) and found.onnxruntime in pin else None


# Arguments: the file.
_DIGEST = 'mkdir -p "${1%/*}" && { [ ! -f "$1" ] || sha256sum "$1"; }'


def _send(
    local: Path, remote: PurePosixPath, device: Device, transport: Transport, *, mode: str
) -> None:
    hint = "its user must be able to write there: give that right, or set 'root' in devices.yaml"
    digest = hashlib.sha256(local.read_bytes()).hexdigest()
    found = transport.send(["sh", "-c", _DIGEST, "sh", str(remote)], [], timeout_s=ASK_S)
    found.check(f"looking for {remote}", device=device.name, hint=hint)
    if not found.text.startswith(f"{digest} "):
        transport.put(local, remote, timeout_s=_SEND_S)
    argv = ["chmod", mode, str(remote)]
    transport.send(argv, [], timeout_s=ASK_S).check("chmod", device=device.name, hint=hint)


def install_native(
    device: Device,
    transport: Transport,
    facts: ProbedFacts,
    profile: Profile,
    fetch: Callable[[Path], Path],
) -> About:
    """Put on a board what measures there, as far as it is missing; return what its runtime is.

    ``fetch`` returns the wheel of the runtime in a folder; it is called if the board has not the
    one that the target pins.

    Raises:
        DeviceError: It does not load there.
        ToolError: There is no compiler for the board here; or the wheel cannot be fetched.
        RemoteCommandError: The board does not take a file.
    """
    send_program(device, transport, facts)
    if about := find_runtime(device, transport, facts, profile):
        return about
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        send_library(fetch(Path(folder)), device, transport, facts)
    return ask_runtime(device, transport, facts)
