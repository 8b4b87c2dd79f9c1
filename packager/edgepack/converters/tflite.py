"""TensorFlow Lite: ``.tflite`` files, converted by tf2onnx and run by LiteRT."""

from __future__ import annotations

from pathlib import Path

from edgepack.converters.base import LOOSE_NETS, Converter
from edgepack.converters.locks import TENSORFLOW
from edgepack.errors import ModelError

# A FlatBuffers file has its identifier in bytes 4 to 7 (tensorflow/lite/schema/schema.fbs,
# file_identifier).
_IDENTIFIER = b"TFL3"


def _recognise(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (".tflite", ".lite")


def _look(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(8)
    if head[4:8] != _IDENTIFIER:
        found = "it is empty" if not head else f"it begins with {head!r}"
        raise ModelError(
            f"this is no TensorFlow Lite model: {found}, and has no {_IDENTIFIER.decode()!r} at"
            " byte 4",
            hint="check that the file was downloaded whole; a pointer of Git LFS is a small text",
            where=path.name,
        )


TFLITE = Converter(
    name="tflite",
    words="TensorFlow Lite",
    recognise=_recognise,
    script="edgepack_tflite",
    packages=("tf2onnx", "ai-edge-litert", "tensorflow-cpu", "tensorflow", "onnx"),
    lock=TENSORFLOW,
    tolerance=LOOSE_NETS,
    look=_look,
)
