"""LightGBM: text files of ``save_model``, converted by onnxmltools and run by LightGBM itself."""

from __future__ import annotations

from pathlib import Path

from edgepack.converters.base import TREES, Converter
from edgepack.converters.locks import LIGHTGBM as LOCK
from edgepack.errors import ModelError

# How GBDT::SaveModelToString begins (LightGBM, src/boosting/gbdt_model_text.cpp).
_FIRST_LINES = [b"tree", b"version=v"]
_AFTER_TREES = b"end of trees"
_SUFFIXES = (".txt", ".lgb", ".lgbm", ".lightgbm", ".model")


def _recognise(path: Path) -> bool:
    if not path.is_file() or path.suffix.lower() not in _SUFFIXES:
        return False
    with path.open("rb") as file:
        lines = [file.readline(80).strip() for _ in _FIRST_LINES]
    return lines[0] == _FIRST_LINES[0] and lines[1].startswith(_FIRST_LINES[1])


def _look(path: Path) -> None:
    """LightGBM ends its process at a file that is cut off, instead of giving an error."""
    with path.open("rb") as file:
        if not any(line.strip() == _AFTER_TREES for line in file):
            raise ModelError(
                f"the file is not whole: it has no line {_AFTER_TREES.decode()!r}",
                hint="copy it again, or save it again: booster.save_model('model.txt')",
                where=path.name,
            )


LIGHTGBM = Converter(
    name="lightgbm",
    words="LightGBM",
    recognise=_recognise,
    script="edgepack_lightgbm",
    packages=(
        "onnxmltools",
        "lightgbm",
        "skl2onnx",
        "onnx",
        "scipy",
        "scikit-learn",
        "onnxconverter-common",
    ),
    lock=LOCK,
    tolerance=TREES,
    look=_look,
    makes="a lightgbm.Booster, or a fitted estimator of LightGBM",
)
