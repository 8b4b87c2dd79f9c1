"""Checks a whole model: with ``onnx.checker``, with onnxruntime, and for bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.errors import ModelError
from edgepack.model.custom_ops import registered
from edgepack.model.facts import ModelFacts, require_plain_signature
from edgepack.model.finding import Finding
from edgepack.model.ir import loadable
from edgepack.model.reading import can_fit_message, list_external_files, read_model, read_outline
from edgepack.model.running import make_session

if TYPE_CHECKING:
    import onnx


def run_checker(model: Path) -> list[Finding]:
    """Return a note if the checker refuses a model, else nothing: onnxruntime decides.

    Raises:
        ModelError: The file cannot be read as a model.
    """
    import onnx.checker
    from onnx.checker import ValidationError

    try:
        onnx.checker.check_model(_read_checkable(model))
    except ValidationError as error:
        reason = f"onnx.checker refuses the model: {' '.join(str(error).split())}"
        remedy = "nothing to do if it runs; else export the model again"
        return [Finding("onnx", "note", "", reason, remedy)]
    return []


def _read_checkable(model: Path) -> onnx.ModelProto | str:
    """Return what the checker takes: a path where it can read the file, which takes less memory.

    The checker has its own rules for the place of external data, so edgepack reads them for it, as
    far as protobuf allows.
    """
    import onnx

    if not list_external_files(read_outline(model)):
        return str(model)
    loaded = read_model(model)
    return loaded if can_fit_message(loaded, onnx.checker.MAXIMUM_PROTOBUF) else str(model)


def check_carrying(facts: ModelFacts) -> list[Finding]:
    """Return a blocking finding if no bundle can carry the model's inputs or outputs."""
    try:
        require_plain_signature(facts)
    except ModelError as error:
        return [Finding("edgepack", "blocks", "", error.problem, error.hint)]
    return []


def check_session(model: Path, library: Path | None = None) -> list[Finding]:
    """Return a blocking finding if onnxruntime makes no session of a model, else nothing.

    Args:
        model: The model.
        library: Of its custom operators, where it has some.
    """
    try:
        with registered(library), loadable(model) as source:
            make_session(source)
    except ModelError as error:
        return [Finding("onnxruntime", "blocks", "", error.problem, error.hint)]
    return []
