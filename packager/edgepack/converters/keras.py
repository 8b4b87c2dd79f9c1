"""Keras: ``.keras`` and ``.h5``, converted by tf2onnx."""

from __future__ import annotations

from pathlib import Path

from edgepack.converters.archives import require_whole_zip
from edgepack.converters.base import NETS, Converter
from edgepack.converters.locks import TENSORFLOW
from edgepack.errors import ModelError

# HDF5 File Format Specification, III.A: the superblock begins with these bytes.
_HDF5 = b"\x89HDF\r\n\x1a\n"
_NEEDED = ("config.json", "model.weights.h5")


def _recognise(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (".keras", ".h5", ".hdf5")


def _look(path: Path) -> None:
    if path.suffix.lower() == ".keras":
        require_whole_zip(path, _NEEDED, "a Keras model")
        return
    with path.open("rb") as file:
        head = file.read(len(_HDF5))
    if head != _HDF5:
        raise ModelError(
            f"this is no HDF5 file: it begins with {head!r}",
            hint="check that the file was copied whole",
            where=path.name,
        )


KERAS = Converter(
    name="keras",
    words="Keras",
    recognise=_recognise,
    script="edgepack_keras",
    packages=("keras", "tf2onnx", "tensorflow-cpu", "tensorflow", "onnx"),
    lock=TENSORFLOW,
    tolerance=NETS,
    look=_look,
    makes="a keras.Model",
)
