"""The converters, and which of them takes a file."""

from __future__ import annotations

from pathlib import Path

from edgepack.converters.base import Converter
from edgepack.converters.keras import KERAS
from edgepack.converters.lightgbm import LIGHTGBM
from edgepack.converters.refused import refuse
from edgepack.converters.saved_model import SAVED_MODEL
from edgepack.converters.sklearn import SKLEARN
from edgepack.converters.tflite import TFLITE
from edgepack.converters.torch_export import TORCH_EXPORT
from edgepack.converters.xgboost import XGBOOST

CONVERTERS = {
    each.name: each
    for each in (KERAS, LIGHTGBM, SAVED_MODEL, SKLEARN, TFLITE, TORCH_EXPORT, XGBOOST)
}


def find_converter(path: Path) -> Converter | None:
    """Return what converts a file or folder; None for ONNX, and for what is no model.

    Raises:
        ModelError: The file is of a kind that must not be read, with the command that exports it.
    """
    found = next((each for each in CONVERTERS.values() if each.recognise(path)), None)
    if found is None:
        refuse(path)
    return found
