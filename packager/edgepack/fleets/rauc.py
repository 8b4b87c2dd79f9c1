"""Writes a bundle as a RAUC bundle: an archive for one class of slots, with the self-test as hook.

RAUC writes slots as a whole. For a slot with a file system it makes that anew and unpacks an
archive into it, so an archive fits a slot of any size. Source: RAUC's documentation, "Basics", and
the manifest in "Reference"; the hook is ``slot-post-install``, which finds the slot mounted at
RAUC_SLOT_MOUNT_POINT, and whose failure fails the installation.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgepack.bundle.archive import write_archive
from edgepack.bundle.reading import AnyBundle
from edgepack.bundle.writing import make_write_error
from edgepack.errors import UsageError
from edgepack.fleets.hooks import read_hook
from edgepack.fleets.tools import run_tool

_HOOK = "edgepack-hook.sh"


def write_rauc(
    found: AnyBundle, to: Path, compatible: str, slot: str, signer: tuple[Path, Path]
) -> Path:
    """Write ``PROJECT-VERSION-TARGET.raucb`` into a folder, and return its path.

    In the slot the bundle lies in a folder with its project's name.

    Args:
        found: The bundle.
        to: The folder.
        compatible: That of the devices' ``system.conf``.
        slot: The class of slots there that the bundle is written to.
        signer: A private key and its certificate, in PEM; RAUC reads them.

    Raises:
        UsageError: ``compatible`` or ``slot`` cannot stand in a manifest.
        ToolError: ``rauc`` is missing or refuses, or the folder cannot be written.
    """
    if not compatible.isprintable() or compatible != compatible.strip():
        raise UsageError(
            f"{compatible!r} is no 'compatible' of RAUC",
            hint="give the text of 'compatible' in the devices' system.conf",
            where="--compatible",
        )
    if not re.fullmatch("[A-Za-z0-9_-]+", slot):
        raise UsageError(
            f"{slot!r} is no class of slots",
            hint="give CLASS of [slot.CLASS.0] in the devices' system.conf",
            where="--slot",
        )
    manifest, (key, cert) = found.manifest, signer
    name = f"{manifest.name}-{manifest.version}-{manifest.target}"
    target = to / f"{name}.raucb"
    archive = f"{manifest.name}.tar.gz"
    try:
        to.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=to) as scratch:
            content, whole = Path(scratch, "content"), Path(scratch, "whole.raucb")
            content.mkdir()
            write_archive(found.path, content / archive, root=manifest.name)
            (content / _HOOK).write_bytes(read_hook("rauc-hook.sh"))
            (content / _HOOK).chmod(0o755)
            lines = _list_lines(compatible, manifest.version, slot, archive)
            (content / "manifest.raucm").write_text("\n".join(lines) + "\n", encoding="utf-8")
            options = [f"--key={key.resolve()}", f"--cert={cert.resolve()}"]
            run_tool(["rauc", "bundle", *options, str(content), str(whole)])
            whole.replace(target)
    except OSError as error:
        raise make_write_error(to, error) from error
    return target


def _list_lines(compatible: str, version: str, slot: str, archive: str) -> Sequence[str]:
    return (
        "[update]",
        f"compatible={compatible}",
        f"version={version}",
        "",
        "[bundle]",
        "format=verity",
        "",
        "[hooks]",
        f"filename={_HOOK}",
        "",
        f"[image.{slot}]",
        f"filename={archive}",
        "hooks=post-install;",
    )
