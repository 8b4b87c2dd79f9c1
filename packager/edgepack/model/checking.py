"""What ``onnx.checker`` says of a model: worth knowing, while onnxruntime has the last word."""

from __future__ import annotations

from pathlib import Path

from edgepack.model.finding import Finding
from edgepack.model.reading import fits_a_message, read_model


def checker_findings(model: Path) -> list[Finding]:
    """Return a note if the checker refuses a model, else nothing.

    Raises:
        ModelError: The file cannot be read as a model.
    """
    import onnx
    from onnx.checker import ValidationError

    loaded = read_model(model)
    try:
        # The checker takes what protobuf can hold in memory; larger models it reads itself.
        small = fits_a_message(loaded, onnx.checker.MAXIMUM_PROTOBUF)
        onnx.checker.check_model(loaded if small else str(model))
    except ValidationError as error:
        reason = f"onnx.checker refuses the model: {' '.join(str(error).split())}"
        remedy = "nothing to do if it runs; else export the model again"
        return [Finding("onnx", "note", "", reason, remedy)]
    return []
