"""TensorFlow's SavedModel: a folder with ``saved_model.pb``, converted by tf2onnx."""

from __future__ import annotations

from pathlib import Path

from edgepack.converters.base import NETS, Converter
from edgepack.converters.locks import TENSORFLOW
from edgepack.errors import ModelError

_GRAPH = "saved_model.pb"


def _recognise(path: Path) -> bool:
    return path.is_dir() and (path / _GRAPH).is_file()


def _look(path: Path) -> None:
    if not (path / _GRAPH).stat().st_size:
        raise ModelError(f"{_GRAPH!r} is empty", hint="copy the folder again", where=path.name)
    for each in path.rglob("*"):
        if each.is_symlink() and each.is_dir():
            raise ModelError(
                f"{each.relative_to(path).as_posix()!r} is a link to a folder",
                hint="put the folder itself in its place",
                where=path.name,
            )
        if not each.resolve().is_relative_to(path.resolve()):
            raise ModelError(
                f"{each.relative_to(path).as_posix()!r} leads out of the model's folder",
                hint="copy the file into the folder",
                where=path.name,
            )


SAVED_MODEL = Converter(
    name="saved-model",
    words="TensorFlow",
    recognise=_recognise,
    script="edgepack_saved_model",
    packages=("tf2onnx", "tensorflow-cpu", "tensorflow", "keras", "onnx"),
    lock=TENSORFLOW,
    tolerance=NETS,
    look=_look,
)
