"""What labels of pictures are: by the metric that takes them, or by what their path is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from edgepack.project.samples import EvaluationSource, SampleSource
from edgepack.samples.images import SUFFIXES

LabelKind = Literal[
    "classes", "class sets", "texts", "numbers", "boxes", "keypoints", "masks", "pictures"
]
IN_PICTURES: tuple[LabelKind, ...] = ("boxes", "keypoints", "masks")
"""What is in the pixels of the picture that it belongs to."""
_BY_METRIC: Mapping[str, LabelKind] = {
    "cer": "texts",
    "wer": "texts",
    "spearman": "numbers",
    "miou": "masks",
    "psnr": "pictures",
    "oks": "keypoints",
}


def find_label_kind(source: SampleSource, project: Path, kinds: Collection[str]) -> LabelKind:
    """Return what the labels of a source of pictures are.

    Args:
        source: With ``labels``.
        project: The folder of the project file.
        kinds: The kinds of outputs that the project describes.
    """
    metric = source.metric if isinstance(source, EvaluationSource) else None
    if source.labels == "folders":
        return "classes"
    if isinstance(metric, str) and metric in _BY_METRIC:
        return _BY_METRIC[metric]
    path = project / str(source.labels)
    if path.suffix == ".json" or path.is_dir():
        return "boxes"
    if "classification" not in kinds and metric == "f1" and "probability" in kinds:
        return "class sets"
    if "classification" not in kinds and metric is None and "text" in kinds:
        return "texts"
    return "classes"


def list_label_files(labels: Path, kind: LabelKind) -> list[Path]:
    """Return the files that labels are read from, sorted by path."""
    if not labels.is_dir():
        return [labels]
    suffixes = SUFFIXES if kind in ("masks", "pictures") else {".txt"}
    return sorted(path for path in labels.rglob("*") if path.suffix.lower() in suffixes)
