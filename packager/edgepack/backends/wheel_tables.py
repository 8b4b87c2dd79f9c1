"""Lists of operators that come inside the onnxruntime wheel, for NNAPI and CoreML.

onnxruntime ships them for its own mobile usability checker. Read from the installed version, they
follow what that version can do; what they say in words (notes) is encoded in the backends.

Errors of 1.31.1's lists, fixed here: the MLProgram list writes ``Argmax`` for ArgMax, and the
NeuralNetwork list ``ai.onnx.ReduceSum`` with a dot for the colon; both hide from the checker.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from edgepack.errors import ToolError

TableName = Literal[
    "nnapi_supported_ops",
    "coreml_supported_mlprogram_ops",
    "coreml_supported_neuralnetwork_ops",
]

_ROW = re.compile(r"^\|(ai\.onnx|com\.microsoft)[:.](\w+)\|(.*)\|\s*$")
_SPELLINGS = {"Argmax": "ArgMax"}


@dataclass(frozen=True)
class WheelOpTable:
    """The operators that one provider takes according to its list."""

    notes: Mapping[str, str]
    """Operator, with its domain unless that is ai.onnx, to the list's note on it, which may be
    empty."""
    respelled: frozenset[str]
    """Operators that the list spells so that an exact comparison does not find them."""

    def __contains__(self, op: object) -> bool:
        return op in self.notes


def parse_table(text: str) -> WheelOpTable:
    """Return the table in the text of a list: rows of ``|domain:Operator|note|``."""
    notes, respelled = {}, set()
    for line in text.splitlines():
        row = _ROW.match(line.strip())
        if row is None:
            continue
        domain, written, note = row.groups()
        op = _SPELLINGS.get(written, written)
        name = op if domain == "ai.onnx" else f"{domain}:{op}"
        notes[name] = " ".join(note.replace("<br/>", " ").split())
        if f"{domain}:{op}" not in line:
            respelled.add(name)
    return WheelOpTable(notes, frozenset(respelled))


@lru_cache
def load_op_table(name: TableName, folder: Path | None = None) -> WheelOpTable:
    """Return one of the lists.

    Args:
        name: Which one, its file's name without ``.md``.
        folder: Where the lists are; inside the installed onnxruntime unless given.

    Raises:
        ToolError: onnxruntime is not installed, or has no such list, or one without rows.
    """
    path = (folder or _find_shipped_folder()) / f"{name}.md"
    if not path.is_file():
        raise ToolError(
            f"onnxruntime {_find_version()} comes without the list of operators {name}.md",
            hint="install the onnxruntime that constraints.txt pins: pip install onnxruntime -c"
            " constraints.txt",
            where=str(path),
        )
    table = parse_table(path.read_text(encoding="utf-8"))
    if not table.notes:
        raise ToolError(
            f"the list of operators of onnxruntime {_find_version()} has no rows that edgepack can"
            " read",
            hint="install the onnxruntime that constraints.txt pins, or report this version",
            where=str(path),
        )
    return table


def _find_shipped_folder() -> Path:
    # find_spec reads no code: importing onnxruntime would take a second and load its library.
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        raise ToolError(
            "onnxruntime is not installed, and with it come the lists of operators",
            hint="pip install onnxruntime",
        )
    return Path(spec.origin).parent / "tools" / "mobile_helpers"


def _find_version() -> str:
    try:
        return importlib.metadata.version("onnxruntime")
    except importlib.metadata.PackageNotFoundError:
        return "(of another name)"
