"""``--target all`` beside each target built alone, every build from an empty cache of its own.

squeezenet1.1 with 100 calibration and 100 evaluation images, one build of each kind: the sum of
fourteen builds is long enough to average over the machine's noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgepack.project.profile import find_target_files

from tests.bench.measuring import EDGEPACK, Row, own_folders, process_seconds, scratch
from tests.bench.projects import SQUEEZENET, public_data, write_project

SAMPLES = (
    "{calibration: {images: images, limit: 100},"
    " evaluation: {images: images, labels: labels.csv, limit: 100}}"
)


def measure() -> Iterator[Row]:
    """Yield one row, if the public model is there."""
    data = public_data()
    if data is None:
        return
    with scratch() as folder:
        (folder / "project").mkdir()
        project = write_project(folder / "project", SQUEEZENET, data, SAMPLES)
        alone = {name: _seconds(project, name, folder / name) for name in find_target_files()}
        together = _seconds(project, "all", folder / "all")
        total = sum(alone.values())
        slowest = max(alone, key=lambda name: alone[name])
        yield Row(
            "all targets together / the sum of each alone, squeezenet1.1, empty caches",
            f"{len(alone)} builds against one",
            f"{together / total:.3f}",
            "at most 0.5",
            f"{together:.1f} s against {total:.1f} s; longest {slowest}, {alone[slowest]:.1f} s",
        )


def _seconds(project: Path, target: str, folder: Path) -> float:
    folder.mkdir()
    out = str(folder / "dist")
    command = [EDGEPACK, "build", "--project", str(project), "--target", target, "--out", out]
    command += ["--simulate", "0"]
    return process_seconds(command, own_folders(folder))
