"""Reads the labels of images, of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.arrays import Array
from edgepack.ondevice.runtime.edgepack_images import Placement
from edgepack.samples.boxes import read_image_boxes
from edgepack.samples.label_kinds import LabelKind
from edgepack.samples.label_pictures import read_image_masks, read_image_references
from edgepack.samples.labels import (
    read_image_labels,
    read_image_numbers,
    read_image_sets,
    read_image_texts,
)


@dataclass(frozen=True)
class Labelled:
    """Images, and where their labels are."""

    files: Sequence[Path]
    folder: Path
    """In which the images lie."""
    project: Path
    labels: str
    """As the project file names them."""
    places: Sequence[Placement]
    """Of each image, where labels are in its pixels."""
    classes: Sequence[str]
    """The names of the model's classes; empty where it has none."""
    count: int
    """How many keypoints an object has, or of how many classes several may be right; 0 where
    nobody knows."""

    @property
    def path(self) -> Path:
        """The file or folder of the labels."""
        return self.project / self.labels

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Width and height of each image."""
        return [(place.picture_width, place.picture_height) for place in self.places]


def read_labels(kind: LabelKind, given: Labelled) -> Array:
    """Return the label of each image, as :class:`~edgepack.samples.sample_set.SampleSet` has them.

    Raises:
        SamplesError: A label is missing or wrong.
    """
    return _READERS[kind](given)


_READERS: Mapping[LabelKind, Callable[[Labelled], Array]] = {
    "boxes": lambda g: read_image_boxes(g.files, g.folder, g.path, g.places, g.classes),
    "keypoints": lambda g: read_image_boxes(
        g.files, g.folder, g.path, g.places, g.classes, g.count
    ),
    "masks": lambda g: read_image_masks(g.files, g.folder, g.path, g.sizes),
    "pictures": lambda g: read_image_references(g.files, g.folder, g.path),
    "texts": lambda g: read_image_texts(g.files, g.folder, g.path),
    "numbers": lambda g: read_image_numbers(g.files, g.folder, g.path),
    "class sets": lambda g: read_image_sets(g.files, g.folder, g.path, g.count or None),
    "classes": lambda g: read_image_labels(g.files, g.folder, g.labels, g.project),
}
