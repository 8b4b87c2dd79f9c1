"""Scripts that test a bundle where it was installed, and other files of ``templates/fleets``."""

from __future__ import annotations

from edgepack.base.resources import find_templates_dir


def read_template(name: str) -> bytes:
    """Return a file of ``templates/fleets``."""
    return (find_templates_dir() / "fleets" / name).read_bytes()


def read_hook(name: str) -> bytes:
    """Return a script of ``templates/fleets`` behind the self-test that it calls."""
    return read_template("self-test.sh") + read_template(name)


def fill(template: bytes, **values: str) -> bytes:
    """Return a template with each ``@NAME@`` replaced."""
    for name, value in values.items():
        template = template.replace(f"@{name}@".encode("ascii"), value.encode())
    return template
