"""Reads a folder of photos for ``edgepack init``: its path, and its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.errors import SamplesError
from edgepack.model.facts import ModelFacts
from edgepack.samples.images import find_unreadable, list_image_files, read_image_pixels
from edgepack.samples.labels import read_image_labels
from edgepack.samples.spreading import choose_spread

_LABELS = "labels.csv"
_READ, _LOOKED_AT = 100, 32
"""The most photos that are read, and the most that ways to make the input are tried on."""
_MEASURED = 8


@dataclass(frozen=True)
class Photos:
    """The photos, and how the project file names them."""

    folder: Path
    project: Path
    """The project's folder."""
    files: list[Path]
    written: str
    """The folder's path."""
    labels: str
    """``folders``, or the path of a CSV of labels; nothing where there are none."""
    unlabelled: str
    """Why possible labels are not used; empty where there are none."""
    looked_at: list[Path]
    """Some of the photos, which can be read."""
    broken: list[SamplesError]
    """The problems of photos that cannot be read."""

    @classmethod
    def of(cls, folder: Path, project: Path, facts: ModelFacts) -> Photos:
        """Read a folder of photos.

        Labels are a ``labels.csv`` in it or beside it, or the names of its folders where each is a
        class. They are used where the model's first output has a score for each class.

        Raises:
            SamplesError: There is no image in it.
        """
        folder, project = folder.resolve(), project.resolve()
        files = list_image_files(folder)
        labels, why_not = _find_labels(folder, project, files, facts)
        some = choose_spread(files, _READ)
        broken = find_unreadable(some)
        whole = choose_spread([path for path in some if path not in broken], _LOOKED_AT)
        written = format_path(folder, project)
        return cls(folder, project, files, written, labels, why_not, whole, [*broken.values()])

    def is_of_size(self, height: int, width: int) -> bool:
        """Return whether the photos have this size already, judging by some of them."""
        sizes = {
            read_image_pixels(path).shape[:2] for path in choose_spread(self.looked_at, _MEASURED)
        }
        return sizes == {(height, width)}

    def find_labels(self, files: Sequence[Path]) -> list[int] | None:
        """Return the class of each of some photos; None where there are no labels."""
        if not self.labels:
            return None
        found = read_image_labels(files, self.folder, self.labels, self.project)
        return [int(label) for label in found]


def format_path(path: Path, project: Path) -> str:
    """Return a path as a project file names it: relative where it is near, else absolute.

    Near is within the project's folder or the one above it: these are moved together. A path that
    climbs further breaks when either is moved, and does not show where it leads.
    """
    if path == project.parent:
        return ".."
    if path.is_relative_to(project):
        return path.relative_to(project).as_posix()
    # The root and the folder of all users' homes are above everything.
    if len(project.parent.parts) > 2 and path.is_relative_to(project.parent):
        return f"../{path.relative_to(project.parent).as_posix()}"
    return path.as_posix()


def _find_labels(
    folder: Path, project: Path, files: Sequence[Path], facts: ModelFacts
) -> tuple[str, str]:
    """Return the value for ``labels``, and why possible labels are not used."""
    shape = facts.outputs[0].shape or ()
    if len(shape) not in (2, 4) or any(size != 1 for size in shape[2:]):
        return "", ""
    classes = shape[1] if isinstance(shape[1], int) else None
    for table in dict.fromkeys((folder / _LABELS, folder.parent / _LABELS, project / _LABELS)):
        if table.is_file():
            return _check_labels(format_path(table, project), folder, project, files, classes)
    groups = {path.relative_to(folder).parts[0] for path in files if path.parent != folder}
    if len(groups) < 2 or any(path.parent == folder for path in files):
        return "", ""
    if classes is not None and len(groups) != classes:
        return "", f"{len(groups)} folders are not the model's {classes} classes: give labels.csv"
    return _check_labels("folders", folder, project, files, classes)


def _check_labels(
    labels: str, folder: Path, project: Path, files: Sequence[Path], classes: int | None
) -> tuple[str, str]:
    """Return the labels if each photo has a valid class, else why not."""
    try:
        highest = int(read_image_labels(files, folder, labels, project).max())
    except SamplesError as error:
        return "", f"{labels} was not taken: {error.problem.splitlines()[0]}"
    if classes is not None and highest >= classes:
        beyond = f"label {highest}, and classes are 0 to {classes - 1}"
        return "", f"{labels} was not taken: {beyond}"
    return labels, ""
