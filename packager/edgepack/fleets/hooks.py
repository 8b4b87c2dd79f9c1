"""The scripts that test a bundle where it was installed, as fleet managers call them."""

from __future__ import annotations

from edgepack.base.resources import find_templates_dir


def read_hook(name: str) -> bytes:
    """Return a script of ``templates/fleets`` behind the self-test that it calls."""
    folder = find_templates_dir() / "fleets"
    return b"".join((folder / each).read_bytes() for each in ("self-test.sh", name))
