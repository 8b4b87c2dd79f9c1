"""Finds the files that ship with edgepack: profiles, templates, the example.

In a wheel they are in ``edgepack/_data``; in a checkout they are at its top. Only this module knows
it.
"""

from __future__ import annotations

from pathlib import Path

from edgepack.errors import ToolError

_PACKAGE = Path(__file__).resolve().parents[1]


def find_data_root() -> Path:
    """Return the folder that holds ``targets/``, ``templates/`` and ``examples/``.

    Raises:
        ToolError: The installation lacks its data files.
    """
    for root in (_PACKAGE / "_data", _PACKAGE.parents[1]):
        if (root / "targets").is_dir() and (root / "templates").is_dir():
            return root
    raise ToolError(
        f"this installation of edgepack has no data files beside {_PACKAGE}",
        hint="install it again: pip install --force-reinstall edgepack",
    )


def find_targets_dir() -> Path:
    """Return the folder of the shipped profiles, one ``<id>.yaml`` each."""
    return find_data_root() / "targets"


def find_templates_dir() -> Path:
    """Return the folder of the template families."""
    return find_data_root() / "templates"


def find_example_dir() -> Path:
    """Return the folder of the bundled example project."""
    return find_data_root() / "examples" / "digits"


def find_ondevice_dir() -> Path:
    """Return the folder of what runs on devices."""
    return _PACKAGE / "ondevice"
