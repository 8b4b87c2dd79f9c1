"""Writes a bundle as a Debian package, without Debian's tools.

Its bytes depend only on the bundle and on SOURCE_DATE_EPOCH. Source of the format: deb(5),
deb-control(5), deb-md5sums(5), deb-postinst(5), deb-prerm(5) of dpkg 1.21: an ar archive of the
version, the control archive and the data archive; GNU's form of tar is among those that dpkg
reads, pax's is not.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from edgepack.base.resources import find_templates_dir
from edgepack.bundle.reading import AnyBundle
from edgepack.bundle.writing import make_write_error
from edgepack.errors import UsageError
from edgepack.fleets.hooks import read_hook

PLACE = "usr/lib/edgepack"
"""Where bundles are installed, each in a folder with its project's name."""
_EPOCH = "SOURCE_DATE_EPOCH"


def write_deb(found: AnyBundle, to: Path) -> Path:
    """Write ``edgepack-PROJECT-TARGET_VERSION_all.deb`` into a folder, and return its path.

    The package puts the bundle into ``/usr/lib/edgepack/PROJECT``. Its postinst runs the golden
    samples, and dpkg ends with an error where no variant is right. One of another target replaces
    it. In the package's name letters are small and ``_`` is ``-``, as Debian's policy (5.6.1) asks.

    Raises:
        UsageError: The version is none of Debian's, or SOURCE_DATE_EPOCH no number.
        ToolError: The folder cannot be written.
    """
    version = _make_version(found.manifest.version)
    package = _make_package_name(f"{found.manifest.name}-{found.manifest.target}")
    target = to / f"{package}_{version}_all.deb"
    time_s = _read_epoch()
    try:
        to.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{package}-", dir=to) as scratch:
            data, whole = Path(scratch, "data.tar.gz"), Path(scratch, "whole.deb")
            sums = _write_data(found, data, time_s)
            control = _make_control(found, package, version, sums, time_s)
            with whole.open("wb") as file:
                file.write(b"!<arch>\n")
                _add_member(file, "debian-binary", io.BytesIO(b"2.0\n"), 4, time_s)
                _add_member(file, "control.tar.gz", io.BytesIO(control), len(control), time_s)
                with data.open("rb") as content:
                    _add_member(file, "data.tar.gz", content, data.stat().st_size, time_s)
            whole.replace(target)
    except OSError as error:
        raise make_write_error(to, error) from error
    return target


def _make_package_name(name: str) -> str:
    return f"edgepack-{name}".lower().replace("_", "-")


def _make_version(version: str) -> str:
    """Return a version as dpkg orders it: 1.0-rc1 comes before 1.0. Source: deb-version(5)."""
    made = version.replace("-", "~")
    if not re.fullmatch(r"[0-9][A-Za-z0-9.+~]*", made):
        raise UsageError(
            f"the version {version!r} is none for a Debian package",
            hint="it begins with a digit and has digits, letters, '.', '+' and '-': set 'version'"
            " in edgepack.yaml and build again",
        )
    return made


def _read_epoch() -> int:
    text = os.environ.get(_EPOCH, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise UsageError(
            f"{_EPOCH} is {text!r}", hint="give seconds since 1970, or unset it", where=_EPOCH
        )
    return int(text)


def _write_data(found: AnyBundle, archive: Path, time_s: int) -> Mapping[str, str]:
    """Write the files as they will lie on the device, and return the MD5 of each."""
    root = PurePosixPath(PLACE, found.manifest.name)
    sums = {}
    paths = sorted(path for path in found.path.rglob("*") if path.is_file())
    names = {path: root / path.relative_to(found.path).as_posix() for path in paths}
    folders = sorted({parent for name in names.values() for parent in name.parents})
    with archive.open("wb") as file, _open_tar(file, time_s) as tar:
        for folder in folders:
            entry = _make_entry("./" if not folder.name else f"./{folder}/", time_s, mode=0o755)
            entry.type = tarfile.DIRTYPE
            tar.addfile(entry)
        for path, name in names.items():
            with path.open("rb") as content:
                sums[str(name)] = hashlib.file_digest(
                    content, lambda: hashlib.md5(usedforsecurity=False)
                ).hexdigest()
                content.seek(0)
                entry = _make_entry(f"./{name}", time_s, mode=path.stat().st_mode & 0o755)
                entry.size = path.stat().st_size
                tar.addfile(entry, content)
    return sums


def _make_control(
    found: AnyBundle, package: str, version: str, sums: Mapping[str, str], time_s: int
) -> bytes:
    one_of_all = _make_package_name(found.manifest.name)
    kib = sum(-(-path.stat().st_size // 1024) for path in found.path.rglob("*") if path.is_file())
    fields = {
        "Package": package,
        "Version": version,
        "Architecture": "all",
        "Maintainer": "Unknown <root@localhost>",
        "Installed-Size": str(kib),
        "Recommends": "python3",
        **dict.fromkeys(("Provides", "Conflicts", "Replaces"), one_of_all),
        "Section": "misc",
        "Priority": "optional",
        "Description": f"{found.manifest.name} for {found.manifest.target}, made by edgepack\n"
        f" Its manifest has the SHA-256 {found.digest}.",
    }
    texts = {
        "control": "".join(f"{name}: {text}\n" for name, text in fields.items()).encode(),
        "md5sums": "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode(),
        "postinst": _write_name(read_hook("postinst.sh"), found),
        "prerm": _write_name((find_templates_dir() / "fleets" / "prerm.sh").read_bytes(), found),
    }
    made = io.BytesIO()
    with _open_tar(made, time_s) as tar:
        for name, text in texts.items():
            mode = 0o755 if name in ("postinst", "prerm") else 0o644
            entry = _make_entry(f"./{name}", time_s, mode=mode)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return made.getvalue()


def _write_name(script: bytes, found: AnyBundle) -> bytes:
    return script.replace(b"@PROJECT@", found.manifest.name.encode("ascii"))


@contextmanager
def _open_tar(file: IO[bytes], time_s: int) -> Iterator[tarfile.TarFile]:
    # Weights hardly compress; no file name goes into gzip's header.
    with (
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=time_s) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        yield tar


def _make_entry(name: str, time_s: int, *, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime, entry.uname, entry.gname = mode, time_s, "root", "root"
    return entry


def _add_member(file: IO[bytes], name: str, content: IO[bytes], size: int, time_s: int) -> None:
    """Append a member of an ar archive; each begins at an even place."""
    file.write(f"{name:<16}{time_s:<12}{0:<6}{0:<6}{'100644':<8}{size:<10}`\n".encode("ascii"))
    while block := content.read(1 << 20):
        file.write(block)
    file.write(b"\n" * (size % 2))
