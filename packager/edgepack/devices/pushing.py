"""Pushing a bundle: one stream to a small receiver on the device, which keeps all of it or none."""

from __future__ import annotations

import shlex
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgepack.bundle import MANIFEST, MANIFEST_DIGEST, Bundle, Manifest, verify
from edgepack.devices.inventory import Device
from edgepack.devices.transport import CommandResult, Stream, Transport
from edgepack.devices.transports import connect
from edgepack.errors import BundleError, DeviceError, RemoteCommandError
from edgepack.progress import Progress, Silent
from edgepack.resources import harness_dir

STALL_S = 300.0
"""How long the device may neither read nor answer: it hashes and syncs as it goes."""


@dataclass(frozen=True)
class PushedRelease:
    """A bundle as it lies on a device."""

    device: str
    release: str
    """The first 16 hex digits of the manifest's SHA-256."""
    path: PurePosixPath
    """The release's folder on the device."""
    bytes_sent: int
    already_there: bool


def push(
    bundle: Path,
    device: Device,
    transport: Transport,
    *,
    switch: bool = True,
    progress: Progress | None = None,
) -> PushedRelease:
    """Put a bundle on a device, and with ``switch`` make it the project's ``current`` one.

    Whatever breaks, ``current`` and the other releases stay as they were.

    Raises:
        BundleError: The bundle is not whole; nothing was sent.
        DeviceError: The device is not the bundle's target, and nothing was sent; or the
            connection broke, or the device's disk is full.
        RemoteCommandError: The device refused the bundle.
    """
    verified = read_for(device, bundle)
    manifest, digest = verified.manifest, verified.digest
    argv = _receiver(device, manifest.name, digest, switch=switch)
    bytes_sent = 0
    with transport.stream(argv, timeout_s=STALL_S) as stream:
        answer = stream.read(len(b"have\n"))
        try:
            if answer == b"send\n":
                bytes_sent = _send(bundle, manifest, stream, progress or Silent())
        except RemoteCommandError:
            pass  # the receiver gave up: its exit code says why
        result = stream.wait()
    _check(answer, result, device.name)
    return PushedRelease(
        device=device.name,
        release=digest[:16],
        path=PurePosixPath(result.text.strip()),
        bytes_sent=bytes_sent,
        already_there=answer == b"have\n",
    )


def read_for(device: Device, path: Path) -> Bundle:
    """Return a bundle after checking that it is whole and for the target that a device is.

    Raises:
        BundleError: It is no bundle's folder, or not whole.
        DeviceError: The bundle is for another target.
    """
    if path.is_file():
        raise BundleError(
            f"{str(path)!r} is a file, not a bundle's folder",
            hint="name the bundle's folder, not its archive: 'edgepack build' writes both; tar -xf"
            " unpacks the archive",
        )
    bundle = verify(path)
    if bundle.manifest.target != device.target:
        raise DeviceError(
            f"the bundle is for {bundle.manifest.target}, the device {device.name} is a"
            f" {device.target}",
            hint=f"edgepack build --target {shlex.quote(device.target)}, or change the 'target' of"
            f" {device.name!r} in devices.yaml",
            where=device.name,
        )
    return bundle


def push_bundle(
    bundle: Path, device: Device, *, switch: bool = True, progress: Progress | None = None
) -> PushedRelease:
    """Connect to a device and push a bundle to it; see :func:`push`."""
    with connect(device) as transport:
        return push(bundle, device, transport, switch=switch, progress=progress)


def _receiver(device: Device, project: str, digest: str, *, switch: bool) -> list[str]:
    source = (harness_dir() / "edgepack_receiver.py").read_text(encoding="utf-8")
    python = [device.plain_python, "-IS", "-c", source]
    return [*python, device.entry.root, project, digest, "switch" if switch else "stay"]


class _Sink:
    """Where the tar stream is written to."""

    def __init__(self, stream: Stream) -> None:
        self.bytes_sent = 0
        self._stream = stream

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self.bytes_sent += len(data)
        return len(data)


def _send(bundle: Path, manifest: Manifest, stream: Stream, progress: Progress) -> int:
    """Send the manifest first: the receiver checks everything else against it."""
    sink = _Sink(stream)
    names = (MANIFEST, MANIFEST_DIGEST, *(file.path for file in manifest.files))
    with (
        progress.task("push", total=len(names)) as advance,
        tarfile.open(fileobj=sink, mode="w|", bufsize=1 << 17) as archive,  # type: ignore[call-overload]
    ):
        for name in names:
            path = bundle / name
            member = tarfile.TarInfo(name)
            member.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(member, file)
            advance(name)
    return sink.bytes_sent


def _check(answer: bytes, result: CommandResult, device: str) -> None:
    if answer and answer not in (b"have\n", b"send\n"):
        raise DeviceError(
            f"the device printed {(answer + result.stdout)[:60]!r} before the receiver spoke",
            hint="its login must print nothing without a terminal: look into ~/.bashrc there",
            where=device,
        )
    if result.exit_code == 28:
        said = result.stderr.decode("utf-8", "replace").strip()
        raise DeviceError(
            f"there is no space left on the device: {said}",
            hint="free some (old releases lie under <root>/<project>/releases), or set 'root' in"
            " devices.yaml to a larger disk",
            where=device,
        )
    result.check(
        "putting the bundle in its place",
        device=device,
        hint="nothing was changed on the device; look at the message above and push again",
    )
