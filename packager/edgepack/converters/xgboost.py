"""XGBoost: ``.json`` and ``.ubj`` files, converted by onnxmltools and run by XGBoost itself."""

from __future__ import annotations

from pathlib import Path

from edgepack.converters.base import TREES, Converter
from edgepack.converters.locks import XGBOOST as LOCK
from edgepack.errors import ModelError

_SUFFIXES = (".json", ".ubj", ".model", ".xgb", ".bin")
# JSON and UBJSON both begin with an object that has the key "learner" (xgboost.readthedocs.io,
# "Introduction to Model IO"); what older versions wrote begins so in binary.
_KEY, _OLD = b"learner", b"binf"
_HEAD = 64


def _recognise(path: Path) -> bool:
    if not path.is_file() or path.suffix.lower() not in _SUFFIXES:
        return False
    head = _read_head(path)
    return head.startswith(_OLD) or (head.startswith(b"{") and _KEY in head)


def _look(path: Path) -> None:
    if _read_head(path).startswith(_OLD):
        raise ModelError(
            "XGBoost's old binary format is read by no version from 3.1 on",
            hint="load it with the version that wrote it, and save it as JSON:"
            " booster.save_model('model.json')",
            where=path.name,
        )


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


XGBOOST = Converter(
    name="xgboost",
    words="XGBoost",
    recognise=_recognise,
    script="edgepack_xgboost",
    packages=(
        "onnxmltools",
        "xgboost-cpu",
        "xgboost",
        "skl2onnx",
        "onnx",
        "scipy",
        "scikit-learn",
        "onnxconverter-common",
    ),
    lock=LOCK,
    tolerance=TREES,
    look=_look,
    makes="an xgboost.Booster, or a fitted estimator of XGBoost",
)
