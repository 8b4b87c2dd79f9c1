"""What the file of a model is called in the folder of whoever made it."""

from __future__ import annotations

from pathlib import Path

MODEL = "model.onnx"
"""The file a step that makes a model writes."""
ORT_MODEL = "model.ort"
"""The one that a step writes which makes onnxruntime's own format of it."""


def model_file(folder: Path) -> Path:
    """Return the model in a step's folder, in whichever format it is."""
    return next((folder / n for n in (ORT_MODEL, MODEL) if (folder / n).is_file()), folder / MODEL)
