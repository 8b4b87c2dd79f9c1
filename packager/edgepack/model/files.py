"""Names a model's file in the folder of the step that made it."""

from __future__ import annotations

from pathlib import Path

MODEL = "model.onnx"
"""The file a step that makes a model writes."""
ORT_MODEL = "model.ort"
"""The file that a step writes which converts to onnxruntime's own format."""


def find_model_file(folder: Path) -> Path:
    """Return the model in a step's folder, in whichever format it is."""
    return next((folder / n for n in (ORT_MODEL, MODEL) if (folder / n).is_file()), folder / MODEL)
