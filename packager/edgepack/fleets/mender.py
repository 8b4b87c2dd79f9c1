"""Writes a bundle as a Mender artifact, and the update module that installs it on devices."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.resources import find_ondevice_dir
from edgepack.bundle.archive import write_archive
from edgepack.bundle.reading import AnyBundle
from edgepack.bundle.writing import make_write_error
from edgepack.fleets.tools import run_tool

MODULE = "edgepack"
"""The type of payload, which is also the module's file name on devices."""
_TOOL = "mender-artifact"


def write_mender(
    found: AnyBundle, to: Path, device_types: Sequence[str], key: Path | None = None
) -> Path:
    """Write ``PROJECT-VERSION-TARGET.mender`` and the module into a folder; return the artifact.

    The module goes to ``mender/edgepack`` there; on devices it belongs into
    ``/usr/share/mender/modules/v3``.

    Args:
        found: The bundle.
        to: The folder.
        device_types: Mender's device types that take it, at least one.
        key: A private key for Mender's signature, which ``mender-artifact`` reads.

    Raises:
        ToolError: ``mender-artifact`` is missing or refuses, or the folder cannot be written.
    """
    manifest = found.manifest
    name = f"{manifest.name}-{manifest.version}-{manifest.target}"
    target = to / f"{name}.mender"
    try:
        (to / "mender").mkdir(parents=True, exist_ok=True)
        module = to / "mender" / MODULE
        module.write_bytes(make_module())
        module.chmod(0o755)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=to) as scratch:
            payload, whole = Path(scratch, f"{name}.tar.gz"), Path(scratch, "whole.mender")
            write_archive(found.path, payload, root=name)
            argv = [_TOOL, "write", "module-image", "--type", MODULE, "--artifact-name", name]
            for each in device_types:
                argv += ["--device-type", each]
            argv += ["--software-name", manifest.name, "--software-version", manifest.version]
            argv += ["--file", str(payload), "--output-path", str(whole)]
            argv += ["--key", str(key)] if key else []
            run_tool(argv)
            whole.replace(target)
    except OSError as error:
        raise make_write_error(to, error) from error
    return target


def make_module() -> bytes:
    """Return the update module: a program in one file, which Python runs as it is."""
    agent = find_ondevice_dir() / "agent"
    sources = {"__main__.py": "edgepack_mender.py", "edgepack_releases.py": "edgepack_releases.py"}
    made = io.BytesIO(b"#!/usr/bin/env python3\n")
    made.seek(0, io.SEEK_END)
    with zipfile.ZipFile(made, "a") as archive:
        for name, source in sources.items():
            entry = zipfile.ZipInfo(name)
            archive.writestr(entry, (agent / source).read_bytes())
    return made.getvalue()
