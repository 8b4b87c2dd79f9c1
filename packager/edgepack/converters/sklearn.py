"""scikit-learn: ``.skops`` files, converted by skl2onnx and run by scikit-learn itself."""

from __future__ import annotations

from pathlib import Path

from edgepack.converters.archives import require_whole_zip
from edgepack.converters.base import TABLES, Converter
from edgepack.converters.locks import SKLEARN as LOCK

# A zip archive whose index is this file (skops.io, "The skops format").
_INDEX = "schema.json"


def _recognise(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() == ".skops"


def _look(path: Path) -> None:
    require_whole_zip(path, (_INDEX,), "a file of skops")


SKLEARN = Converter(
    name="sklearn",
    words="scikit-learn",
    recognise=_recognise,
    script="edgepack_sklearn",
    packages=("skl2onnx", "scikit-learn", "skops", "onnx", "scipy", "onnxconverter-common"),
    lock=LOCK,
    tolerance=TABLES,
    look=_look,
    makes="a fitted estimator of scikit-learn",
)
