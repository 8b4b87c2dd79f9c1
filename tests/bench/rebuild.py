"""A build that has nothing left to do, as a whole process with its imports, beside the first one.

Each project is built first into an empty cache of its own, then again unchanged. squeezenet1.1 has
100 calibration images and 190 or so for evaluation, from a folder of 1,000 that both sets share:
splitting it means hashing every image, at every build.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.bench.measuring import (
    Row,
    build_command,
    interval_text,
    own_folders,
    process_seconds,
    scratch,
)
from tests.bench.projects import SQUEEZENET, example_project, public_data, write_project

REBUILDS = 10
SAMPLES = (
    "{calibration: {images: images, limit: 100}, evaluation: {images: images, labels: labels.csv}}"
)


def measure() -> Iterator[Row]:
    """Yield one row for each project."""
    with scratch() as folder:
        yield _row("example digits", example_project(), folder)
    data = public_data()
    if data is None:
        return
    with scratch() as folder:
        (folder / "project").mkdir()
        project = write_project(folder / "project", SQUEEZENET, data, SAMPLES)
        yield _row(SQUEEZENET.name, project, folder)


def _row(name: str, project: Path, folder: Path) -> Row:
    command = build_command(project, folder / "dist")
    environment = own_folders(folder)
    first_s = process_seconds(command, environment)
    again_s = [process_seconds(command, environment) for _ in range(REBUILDS)]
    share = [seconds / first_s for seconds in again_s]
    return Row(
        f"unchanged rebuild of {name}, seconds",
        f"{REBUILDS} runs",
        interval_text(again_s),
        "at most 1 s",
        f"first build {first_s:.2f} s, rebuild / first {interval_text(share)}",
    )
