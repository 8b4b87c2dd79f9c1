"""Cleans a model of what its exporter left, before anything is planned, and proves it by running.

A cleaning changes what a plan is made from: the operator sets that a model imports, the names of
dimensions, and outputs that no tensor of numbers holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar

from edgepack.errors import format_list
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, read_outline, write_model
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.cleaning.dim_names import name_dims
from edgepack.steps.cleaning.draft import Draft
from edgepack.steps.cleaning.labels import number_labels
from edgepack.steps.cleaning.operators import (
    list_unrunnable,
    prove_stand_ins,
    replace_operators,
)
from edgepack.steps.cleaning.proof import Sides, find_batched_outputs, have_one_batch, prove_outputs
from edgepack.steps.cleaning.signature import (
    merge_opset_imports,
    replace_zip_maps,
    unpack_sequences,
)

if TYPE_CHECKING:
    import onnx

_NAMED = 5
_LABELS = "labels.json"
"""By output, the file with its labels, if there are any."""

CLEANINGS: Mapping[str, Callable[[Draft], list[str]]] = {
    "one-opset-import": merge_opset_imports,
    "standard-operators": replace_operators,
    "named-dims": name_dims,
    "zip-map-to-tensor": replace_zip_maps,
    "labels-to-numbers": number_labels,
    "unpacked-sequences": unpack_sequences,
}
"""Name to function, in order: it changes the model and says what it did."""


@dataclass(frozen=True)
class Cleaned:
    """The model after its cleanings. Input: ``source``, a model file or the folder of a step.

    Output: ``model.onnx``, and files with labels, one a line, where numbers or columns took the
    place of texts: :func:`find_label_files` has them by output.
    """

    name: ClassVar[str] = "cleaned"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    kept_dims: tuple[str, ...] = ()
    """Names of dimensions that stay, because the project uses them."""
    sizes: tuple[tuple[str, int], ...] = ()
    """Sizes of symbolic dimensions, for the proof."""

    def check(self, inputs: Inputs) -> None:
        """Accept any model: one without need stays as it is."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``, and the labels."""
        source, sizes = find_source(inputs), dict(self.sizes)
        with _runnable(source) as runnable:
            batched = find_batched_outputs(runnable, sizes)
            one_batch = have_one_batch(runnable, sizes)
        draft = Draft(read_model(source), frozenset(self.kept_dims), batched, one_batch)
        done = _clean(draft)
        write_model(draft.model, out / MODEL)
        _write_labels(draft.labels, out)
        told = "; ".join(f"{name}: {format_list(what, _NAMED)}" for name, what in done.items())
        return Notes(told or "nothing to clean", {"cleanings": done})

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that it gives what the source gives.

        Raises:
            BugError: It does not.
            StepError: Random inputs do not fit the model.
        """
        labels = {
            output: path.read_text(encoding="utf-8").splitlines()
            for output, path in find_label_files(out).items()
        }
        source, sizes = find_source(inputs), dict(self.sizes)
        prove_stand_ins(list_unrunnable(read_outline(source)))
        with _runnable(source) as before:
            prove_outputs(Sides(before, out / MODEL, labels, sizes))


@contextmanager
def _runnable(source: Path) -> Iterator[Path]:
    """Give a model, or a copy in which operators that onnxruntime has not are replaced."""
    if not list_unrunnable(read_outline(source)):
        yield source
        return
    with TemporaryDirectory(prefix="edgepack-cleaned-") as folder:
        draft = Draft(read_model(source))
        replace_operators(draft, plain=True)
        write_model(draft.model, Path(folder) / MODEL)
        yield Path(folder) / MODEL


def find_source(inputs: Inputs) -> Path:
    """Return the model file of a step whose source may be the folder of another step."""
    source = inputs["source"]
    return source / MODEL if source.is_dir() else source


def list_cleanings(model: onnx.ModelProto, kept_dims: Collection[str] = ()) -> list[str]:
    """Return the names of the cleanings that a model needs; it is not changed.

    None where an input is no tensor of numbers: no bundle can carry it, clean or not.

    Args:
        model: As :func:`~edgepack.model.reading.read_outline` reads it.
        kept_dims: Names of dimensions that stay.
    """
    import onnx

    if not all(spec.is_plain for spec in read_signature(model)[0]):
        return []
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return [*_clean(Draft(copy, frozenset(kept_dims)))]


def _clean(draft: Draft) -> dict[str, list[str]]:
    done = {name: clean(draft) for name, clean in CLEANINGS.items()}
    return {name: what for name, what in done.items() if what}


def _write_labels(labels: Mapping[str, Iterable[str]], out: Path) -> None:
    """Write one file for all outputs with the same labels, and which output has which."""
    files: dict[tuple[str, ...], str] = {}
    for listed in map(tuple, labels.values()):
        files.setdefault(listed, f"labels{f'-{len(files) + 1}' if files else ''}.txt")
    for listed, name in files.items():
        (out / name).write_text("".join(f"{label}\n" for label in listed), encoding="utf-8")
    if files:
        named = {output: files[tuple(listed)] for output, listed in labels.items()}
        (out / _LABELS).write_text(json.dumps(named, sort_keys=True), encoding="utf-8")


def find_label_files(folder: Path) -> dict[str, Path]:
    """Return the files with labels that a cleaning wrote, by the output they are about."""
    path = folder / _LABELS
    if not path.is_file():
        return {}
    named: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return {output: folder / name for output, name in named.items()}
