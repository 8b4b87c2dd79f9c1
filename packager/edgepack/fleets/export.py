"""``edgepack export``: a bundle in the form of a fleet manager that is there already."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path

from edgepack.bundle.archive import open_folder
from edgepack.bundle.reading import AnyBundle, verify_any
from edgepack.errors import UsageError
from edgepack.fleets.forms import ExportFormat
from edgepack.fleets.mender import write_mender
from edgepack.fleets.packages import PackageSettings, write_package
from edgepack.fleets.rauc import write_rauc
from edgepack.fleets.yocto import write_recipe
from edgepack.project.profile import find_target_files, load_profile
from edgepack.registry.layout import write_layout


@dataclass(frozen=True)
class ExportSettings:
    """What fleet managers need to know beside the bundle."""

    compatible: list[str] = field(default_factory=list)
    """Which devices take it: Mender's device types, or RAUC's ``compatible``, which is one."""
    slot: str = ""
    """RAUC's class of slots that the bundle is written to."""
    key: Path | None = None
    """The private key that signs: needed by RAUC, possible for Mender."""
    cert: Path | None = None
    """The certificate of that key, for RAUC."""
    depends: list[str] = field(default_factory=list)
    """The packages that a package needs, such as one of onnxruntime."""
    vendor_runtime: Path | None = None
    """A libonnxruntime.so for the target, which lies in the package then."""
    maintainer: str = ""
    """Who answers for a package: ``Name <address>``."""
    copyright: Path | None = None
    """A package's ``copyright`` file. By default it says that the model's licence is not known."""


_OF_PACKAGES = dict.fromkeys(("depends", "vendor_runtime", "maintainer", "copyright"), "")
_NEEDS: dict[ExportFormat, dict[str, str]] = {
    "deb": _OF_PACKAGES,
    "ipk": _OF_PACKAGES,
    "mender": {
        "compatible": "name the device types that take it, as your devices have them",
        "key": "",
    },
    "oci": {},
    "rauc": {
        "compatible": "give the text of 'compatible' in the devices' system.conf",
        "slot": "give CLASS of [slot.CLASS.0] in the devices' system.conf",
        "key": "RAUC takes signed bundles only: name the private key",
        "cert": "name the certificate of the key, which the devices' keyring trusts",
    },
    "yocto": {"depends": ""},
}
"""What each format takes, with a hint where it must be given."""


_NOBODY = "Unknown <root@localhost>"
"""The maintainer of a package that names none, which lintian does not accept."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    format: ExportFormat
    project: str
    version: str
    digest: str
    """The sha256 of the bundle's manifest."""
    path: Path
    """The package, artifact or bundle."""


def export_bundle(
    bundle: Path, form: ExportFormat, to: Path, settings: ExportSettings | None = None
) -> Exported:
    """Write a bundle in another form, after checking every file of it.

    Args:
        bundle: Its folder or archive, of a Linux target.
        form: ``deb`` and ``ipk``: a package of Debian or opkg; ``mender``: an artifact of Mender
            with its update module; ``rauc``: a bundle of RAUC; ``oci``: an OCI image layout, which
            tools such as skopeo bring to a registry; ``yocto``: a recipe with its archive.
        to: The folder to write into.
        settings: What the form needs to know beside it.

    Raises:
        UsageError: The bundle is not for Linux, or a setting is missing or not the format's.
        BundleError: The bundle is not as it was built, or has too many files for the form.
        ToolError: A tool is missing or failed, or the folder cannot be written.
    """
    with ExitStack() as stack:
        found = verify_any(open_folder(bundle, stack))
        if found.manifest.family != "linux":
            raise UsageError(
                f"{found.manifest.name} is for {found.manifest.family}, and the self-test needs"
                " Python",
                hint="export a bundle for a Linux target",
            )
        path = _write(found, form, to, settings or ExportSettings())
    manifest = found.manifest
    return Exported(form, manifest.name, manifest.version, found.digest, path)


def _write(found: AnyBundle, form: ExportFormat, to: Path, settings: ExportSettings) -> Path:
    _check_settings(form, settings)
    if form == "mender":
        return write_mender(found, to, settings.compatible, settings.key)
    if form == "rauc" and settings.key and settings.cert:
        signer = (settings.key, settings.cert)
        return write_rauc(found, to, settings.compatible[0], settings.slot, signer)
    if form == "oci":
        return write_layout(found, to)
    _require_linux(found)
    if form in {"deb", "ipk"}:
        maintainer = settings.maintainer or _NOBODY
        return write_package(
            found,
            form,
            to,
            PackageSettings(
                settings.depends, maintainer, settings.copyright, settings.vendor_runtime
            ),
        )
    return write_recipe(found, to, settings.depends)


def is_for_linux(found: AnyBundle) -> bool:
    """Return whether a bundle's target takes packages of Linux.

    A target that is not known here is what its family says.
    """
    if found.manifest.family != "linux":
        return False
    target = found.manifest.target
    return target not in find_target_files() or load_profile(target).device.os == "linux"


def _require_linux(found: AnyBundle) -> None:
    """Raise UsageError for a bundle of a target that has no packages of Linux."""
    if not is_for_linux(found):
        title = load_profile(found.manifest.target).title
        raise UsageError(
            f"{found.manifest.name} is for {title}, which takes no packages of Linux",
            hint="build it for a Linux target and export that, or use --format oci",
        )


def _check_settings(form: ExportFormat, settings: ExportSettings) -> None:
    """Raise UsageError for what a format needs and has not, and for what it would ignore."""
    for each in fields(settings):
        given, needed = getattr(settings, each.name), _NEEDS[form].get(each.name)
        option = f"--{each.name.replace('_', '-')}"
        if needed and not given:
            raise UsageError(
                f"a package of the format {form} needs {option}", hint=needed, where=option
            )
        if given and needed is None:
            raise UsageError(
                f"a package of the format {form} has no {option.strip('-')}",
                hint=f"leave {option} out",
                where=option,
            )
    if form == "rauc" and len(settings.compatible) > 1:
        raise UsageError(
            "a bundle of RAUC is for one 'compatible'",
            hint="export one for each",
            where="--compatible",
        )
