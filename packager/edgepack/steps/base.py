"""What a step is, and how one is run: check, run, verify."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

from edgepack.model.custom_ops import registered

EXACT = "exact.onnx"
"""The float model of which the int8 model is an image, where it is not the one that was given: the
same outputs, and channels inside of another scale."""
NOTES = "notes.json"

Inputs = Mapping[str, Path]
"""Input name to an artifact: the folder of another step, or a source file or folder."""


@dataclass(frozen=True)
class Notes:
    """What a step did, for people and for the manifest."""

    done: str
    """One line: what was done and how it was proven, or why it was skipped."""
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


class Step(Protocol):
    """One proven transform.

    The class is a frozen dataclass; only its fields, the versions of ``libraries`` and the inputs
    decide the output's bytes. ``check`` raises if the inputs cannot be taken, ``run`` writes files
    into an empty folder, ``verify`` raises unless the output is as required.
    """

    name: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]

    @property
    def cacheable(self) -> bool:
        """False where the inputs do not determine the output, as with a user's function."""

    def check(self, inputs: Inputs) -> None:
        """Raise an error that names the problem if the inputs cannot be taken."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write the output into ``out``."""

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Raise :class:`~edgepack.errors.StepError` unless ``out`` is proven."""


@runtime_checkable
class Narrowing(Protocol):
    """A step with settings that only some models need, such as rules for an operator.

    What several targets ask of a model that needs none of them is then one step, which runs once.
    """

    def narrow(self, inputs: Inputs) -> Step:
        """Return the step to run in this one's place: it writes the same, and asks no less."""


@runtime_checkable
class Drafting(Protocol):
    """A step that writes the form of its output without samples: numbers in it mean nothing."""

    def draft(self, inputs: Inputs, out: Path) -> None:
        """Write into ``out`` what ``run`` begins with, or writes without its proof."""


def narrow_step(step: Step, inputs: Inputs) -> Step:
    """Return a step without the settings that make no difference to its inputs.

    Raises:
        EdgepackError: The step's own.
    """
    return step.narrow(inputs) if isinstance(step, Narrowing) else step


def draft_step(step: Step, inputs: Inputs, out: Path) -> None:
    """Write a step's output into an empty folder, unproven and without samples.

    Raises:
        EdgepackError: The step's own.
    """
    if isinstance(step, Drafting):
        step.draft(inputs, out)
    else:
        step.run(inputs, out)


def find_settings(step: Step) -> dict[str, Any]:
    """Return all that decides a step's output besides its inputs, as JSON-ready values."""
    fields = dataclasses.asdict(step)  # type: ignore[call-overload]  # steps are dataclasses
    return {
        "step": step.name,
        "settings": json.loads(json.dumps(fields, default=_dump_model)),
        "libraries": {name: _find_version(name) for name in step.libraries},
    }


@functools.cache
def _find_version(library: str) -> str:
    """Return a library's version, searched for once: many steps of a build name the same ones."""
    return version(library)


def _dump_model(value: object) -> Any:  # noqa: ANN401  (whatever the file held)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{value!r} cannot be a step's setting")


def run_step(step: Step, inputs: Inputs, out: Path, library: Path | None = None) -> Notes:
    """Run one step into an empty folder, in this process; called in a worker.

    Args:
        step: The step.
        inputs: Where its inputs are.
        out: The folder.
        library: Of the model's custom operators, where it has some.

    Raises:
        EdgepackError: The step's own.
    """
    with registered(library):
        step.check(inputs)
        notes = step.run(inputs, out)
        step.verify(inputs, out)
    (out / NOTES).write_text(
        json.dumps(dataclasses.asdict(notes), sort_keys=True), encoding="utf-8"
    )
    return notes


def read_notes(folder: Path) -> Notes:
    """Return the notes of a step that has run."""
    return Notes(**json.loads((folder / NOTES).read_text(encoding="utf-8")))
