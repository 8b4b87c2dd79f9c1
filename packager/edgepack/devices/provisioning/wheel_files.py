"""Looks at wheel files: whole or not, what they bring, and which devices load them."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.tags import compatible_tags, cpython_tags, mac_platforms
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from edgepack.errors import UsageError


def require_wheel(path: Path) -> None:
    """Check that a file is a whole wheel.

    Raises:
        UsageError: It is not there, is cut short, or its name is none of a wheel's (PEP 427).
    """
    if not path.is_file():
        raise UsageError(f"there is no wheel {str(path)!r}", hint="check the path")
    try:
        parse_wheel_filename(path.name)
        zipfile.ZipFile(path).close()
    except (InvalidWheelFilename, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{str(path)!r} is no whole wheel: {error}",
            hint="copy or download it again, under the name that it was published with",
        ) from error


def brings_onnxruntime(wheel: Path) -> bool:
    """Return whether a wheel has the module ``onnxruntime``, under whatever name."""
    with zipfile.ZipFile(wheel) as archive:
        return "onnxruntime/__init__.py" in archive.namelist()


def fits(wheel: str, python: str, platforms: Sequence[str]) -> bool:
    """Return whether a device's pip would take a wheel, by its name.

    Args:
        wheel: The file's name.
        python: The version of the device's Python, such as 3.11.2.
        platforms: The wheel platforms that the device loads.
    """
    version = tuple(map(int, python.split(".")[:2]))
    platforms = [*platforms, *_list_older(platforms)]
    tag = f"cp{version[0]}{version[1]}"
    loaded = {
        *cpython_tags(version, [tag], platforms),
        *compatible_tags(version, tag, platforms),
    }
    return not loaded.isdisjoint(parse_wheel_filename(wheel)[3])


def _list_older(platforms: Sequence[str]) -> Iterator[str]:
    """Yield the older platforms that pip takes too: PEP 513, 571 and 600, and older macOS."""
    for platform in platforms:
        if found := re.fullmatch(r"macosx_(\d+)_(\d+)_(\w+)", platform):
            yield from mac_platforms((int(found[1]), int(found[2])), found[3])
        elif found := re.fullmatch(r"manylinux2014_(\w+)", platform):
            yield from (f"manylinux_2_{minor}_{found[1]}" for minor in range(5, 17))
            yield from (f"{name}_{found[1]}" for name in ("manylinux2010", "manylinux1"))
