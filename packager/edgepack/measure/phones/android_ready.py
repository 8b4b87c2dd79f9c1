"""Brings a bundle to an Android phone, and what measures it: a program, or an app."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from edgepack.base.progress import Progress
from edgepack.bundle.reading import Bundle
from edgepack.deploy.operations import audited
from edgepack.devices.inventory import Device
from edgepack.devices.phones.adb import Adb
from edgepack.devices.transport import Transport
from edgepack.errors import BundleError, EdgepackError, ToolError
from edgepack.measure.phones.android import ABI, RUNTIME, TOOLS, AndroidPhone, require_version
from edgepack.measure.phones.android_app import AppPhone
from edgepack.measure.phones.app_build import build_app
from edgepack.measure.phones.native_build import build_measure, find_package, make_key
from edgepack.measure.phones.plugins import QNN, find_plugin


@contextmanager
def prepare_android(
    bundle: Bundle, device: Device, host: Transport, progress: Progress
) -> Iterator[AndroidPhone]:
    """Put on a phone what a measurement needs; what is there already is not sent again.

    Raises:
        DeviceError: The phone cannot be reached or used, or is too old for the target.
        ToolError: adb, the NDK or the onnxruntime package is missing.
        RemoteCommandError: A copy failed.
    """
    with Adb(device, host) as adb:
        properties = adb.read_properties()
        require_version(device, properties)
        package = find_package(adb.entry.package, RUNTIME, bundle.manifest.runtime)
        phone = _make_phone(adb, bundle, properties, package, progress)
        try:
            with audited("push", device, bundle.path) as operation:
                operation.describe(host_key=host.host_key)
                phone.install(bundle, progress)
            yield phone
        finally:
            with suppress(EdgepackError):  # files that stay do no harm
                phone.clean()


def _make_phone(
    adb: Adb, bundle: Bundle, properties: Mapping[str, str], package: Path, progress: Progress
) -> AndroidPhone:
    """Make the program, or the app, for a phone on which nothing is put yet.

    Variants whose plugin is not on this machine are passed over, which is said.
    """
    root = PurePosixPath(adb.entry.root)
    release = root / bundle.manifest.name / bundle.digest[:16]
    abi = properties.get(ABI, "")
    plugin = None
    try:
        plugin = find_plugin(bundle.manifest, abi)
    except (BundleError, ToolError) as error:
        progress.note(f"without {QNN.provider}: {error.problem}. {error.hint}")
    if adb.entry.inside == "app":
        app = build_app(package, abi, plugin.libraries if plugin else ())
        return AppPhone(adb, release, root / TOOLS / app.stem, properties, [app], plugin)
    built = build_measure(package, abi)
    key = make_key(built.key, abi, plugin.libraries) if plugin else built.key
    programs = [built.program, built.library]
    return AndroidPhone(adb, release, root / TOOLS / key, properties, programs, plugin)
