"""Files of models that are not read, each with the command that makes one that is."""

from __future__ import annotations

from pathlib import Path

from edgepack.converters.torch_export import EXPORT, explain_archive
from edgepack.errors import ModelError

_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".pts", ".torchscript")
_PICKLES = (".pkl", ".pickle", ".joblib")


def refuse(path: Path) -> None:
    """Refuse a file that is code, or no model without the code that made it.

    Raises:
        ModelError: By the name it is a checkpoint or a pickle.
    """
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in (*_CHECKPOINTS, *_PICKLES):
        return
    if suffix in _CHECKPOINTS:
        raise ModelError(
            explain_archive(path),
            hint=f"{EXPORT}, or name a function that makes it in edgepack.yaml: model: {{python:"
            ' "module:make", framework: torch}',
            where=path.name,
        )
    raise ModelError(
        "this is a pickle: to read it is to run the code in it, and it is read by the versions of"
        " packages that wrote it only",
        hint="name a function of yours that reads it, in edgepack.yaml: model: {python:"
        ' "module:make", framework: sklearn}; or convert it where it was made:'
        ' open("model.onnx", "wb").write(skl2onnx.to_onnx(model, X[:1]).SerializeToString())',
        where=path.name,
    )
