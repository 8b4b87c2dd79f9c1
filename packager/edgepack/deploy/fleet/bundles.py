"""Finds the bundles of one project for the targets of a fleet."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from edgepack.bundle.manifest import MANIFEST
from edgepack.bundle.reading import AnyBundle, load_any
from edgepack.bundle.signing import require_signature
from edgepack.devices.inventory import Device
from edgepack.errors import BundleError, DeviceError, UsageError


def load_bundles_by_target(paths: Sequence[Path]) -> dict[str, AnyBundle]:
    """Return bundles by their targets; this reads only the manifests.

    Args:
        paths: Folders of bundles, and folders that hold such, as ``dist``.

    Raises:
        BundleError: A path is no bundle and contains none, or a manifest was changed.
        UsageError: Two are for the same target, or they are of several projects.
    """
    found: dict[str, AnyBundle] = {}
    for folder in dict.fromkeys(folder for path in paths for folder in _find_folders(path)):
        bundle = load_any(folder)
        other = found.setdefault(bundle.manifest.target, bundle)
        if other is not bundle:
            raise UsageError(
                f"two bundles are for {bundle.manifest.target}: {other.path} and {bundle.path}",
                hint="name the bundles themselves, one for each target",
            )
    projects = sorted({bundle.manifest.name for bundle in found.values()})
    if len(projects) > 1:
        raise UsageError(
            f"the bundles are of several projects: {', '.join(projects)}",
            hint="name the bundles themselves; each project is pushed by itself",
        )
    return found


def find_bundle(device: Device, bundles: Mapping[str, AnyBundle]) -> AnyBundle:
    """Return the bundle of a device's target.

    Raises:
        DeviceError: There is none.
    """
    if device.target in bundles:
        return bundles[device.target]
    what = "the bundle is" if len(bundles) == 1 else "the bundles are"
    raise DeviceError(
        f"{what} for {', '.join(sorted(bundles))}, the device {device.name} for {device.target}",
        hint=f"edgepack build --target {shlex.quote(device.target)}, or change the 'target' of"
        f" {device.name!r} in devices.yaml",
        where=device.name,
    )


def require_signatures(
    bundles: Mapping[str, AnyBundle], allowed_signers: Path | None = None
) -> None:
    """Check that one of the allowed signers has signed each bundle.

    Args:
        bundles: By target.
        allowed_signers: Who may sign. Default: ``~/.ssh/allowed_signers``.

    Raises:
        BundleError: A bundle is not signed, or not by an allowed signer, or was changed after that.
        UsageError: There is no such file of allowed signers.
        ToolError: ssh-keygen is missing or too old.
    """
    for bundle in bundles.values():
        signature = require_signature(bundle.path, allowed_signers)
        if signature.manifest_sha256 != bundle.digest:
            raise BundleError(
                f"{str(bundle.path)!r} was changed while its signature was checked",
                hint="push again when nothing builds or signs it any more",
            )


def _find_folders(path: Path) -> Iterator[Path]:
    within = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST}"))
    yield from [path] if (path / MANIFEST).exists() or not within else within
