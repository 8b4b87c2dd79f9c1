"""The road of releases on a device with a Python from 3.8 on: push, verify, measure, roll back.

The device is this machine with an interpreter that an inventory names; agent, supervisor, lease,
loader and harness run in it, with the newest onnxruntime that has wheels for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from edgepack.api import bench, build, push, rollback, verify_device
from edgepack.base.resources import find_example_dir
from edgepack.bundle.reading import load_bundle
from edgepack.devices.inventory import Device, LocalEntry

from tests.runtimes.environments import Environment
from tests.runtimes.pins import Pin

OLDEST_PYTHON, NEWEST_PYTHON = 8, 14
"""Of Python 3: what device-side code says, and the newest that onnxruntime 1.31.1 has wheels for.
Source: https://pypi.org/project/onnxruntime/1.31.1/#files (checked 2026-11-23)."""
ANY = Pin("onnxruntime", "newest", ("onnxruntime", "numpy"), f">=3.{OLDEST_PYTHON}")
TARGET = "linux-x86-64"


def two_releases(work: Path) -> list[Path]:
    """Return two bundles of the example that differ in their version."""
    bundles = []
    for version in ("1.0.0", "1.0.1"):
        project = work / version / "edgepack.yaml"
        shutil.copytree(find_example_dir(), project.parent)
        text = project.read_text(encoding="utf-8")
        project.write_text(text.replace("1.0.0", version), encoding="utf-8")
        result = build(project=project, targets=[TARGET], out=work / "dist")
        bundles += [built.bundle.path for built in result.bundles]
    return bundles


def walk(made: Environment, bundles: list[Path], root: Path) -> Iterator[tuple[str, bool]]:
    """Walk the road; yield what has to hold, with whether it does.

    Raises:
        EdgepackError: A part of it failed.
    """
    python = str(made.folder / "bin" / "python")
    entry = LocalEntry(transport="local", target=TARGET, python=python, root=str(root))
    device = Device(f"python{made.interpreter.minor}", entry)
    first, second = (push(bundle, device).release for bundle in bundles)
    yield "two releases are pushed and tried", first != second
    project = load_bundle(bundles[0]).manifest.name
    yield "the second is current, and whole", _current(device) == second
    report = bench(bundles[0], device, preset="smoke")
    yield "a benchmark ran in this Python", report.facts.python == made.interpreter.version
    yield "rollback goes to the first", rollback(project, device).release == first
    yield "the first is current, and whole", _current(device) == first


def _current(device: Device) -> str | None:
    state = verify_device(device)
    state.require_whole()
    return state.projects[0].current_release
