"""The results of trying a bundle: each input's answers of all variants, compared and drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.errors import ToolError
from edgepack.trying.verdicts import Block, Level, find_worst

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Drawn:
    """One picture: what a variant answers, drawn."""

    output: str
    variant: str
    words: str
    """What the output was taken for, where that was guessed from its shape."""
    draw: Callable[[], Image.Image] = field(compare=False)


@dataclass(frozen=True)
class InputTrial:
    """One input, all variants."""

    name: str
    said: tuple[str, ...]
    """What was read, and what was done to make it fit."""
    text: str | None
    columns: tuple[str, ...]
    """The variants that gave outputs; the first is what the others are compared with."""
    problems: dict[str, str]
    """By variant, why it gave none for this input."""
    blocks: tuple[Block, ...]
    answers: dict[str, dict[str, Any]]
    """By output and variant: classes and objects, as JSON has them; None for tensors."""
    photo: Callable[[], Image.Image] | None
    drawn: tuple[Drawn, ...]

    def level(self, variant: str) -> Level:
        """Return how near a variant is to the reference in its worst output."""
        column = self.columns.index(variant)
        return find_worst([block.compared[column].level for block in self.blocks])


@dataclass(frozen=True)
class Column:
    """One variant of the bundle on this machine."""

    variant: str
    recipe: str
    ran: bool
    crash: str
    """How its process died, with the last lines it wrote; nothing otherwise."""
    words: str
    """Where else it ran than a device would run it, or why it did not; nothing otherwise."""


@dataclass(frozen=True)
class Trial:
    """What fp32 and each variant answer to the same inputs."""

    bundle: str
    path: Path
    reference: str
    """The variant that the others are compared with."""
    columns: tuple[Column, ...]
    """The reference first, then in the bundle's order."""
    inputs: tuple[InputTrial, ...]
    said: tuple[str, ...]
    """What there is to say about all of it."""

    @property
    def has_pictures(self) -> bool:
        """Whether there is anything to draw."""
        return any(tried.drawn for tried in self.inputs)

    def require_whole(self) -> None:
        """Raise an error if a variant's process died.

        Raises:
            ToolError: With what it wrote last.
        """
        for column in self.columns:
            if column.crash:
                raise ToolError(
                    f"the variant {column.variant!r} crashed here: {column.crash}",
                    hint="its model or the input brings onnxruntime down: try another input, or"
                    f" leave it out with --variant; 'edgepack verify {self.path}' runs its goldens",
                )

    def document(self) -> dict[str, Any]:
        """Return all of it but the pictures and tensors, as JSON has it."""
        found: dict[str, Any] = _replace_nonfinite(
            {
                "bundle": self.bundle,
                "reference": self.reference,
                "variants": [asdict(column) for column in self.columns],
                "notes": list(self.said),
                "inputs": [_make_input_document(tried) for tried in self.inputs],
            }
        )
        return found


def _make_input_document(tried: InputTrial) -> dict[str, Any]:
    outputs = {
        block.output: {
            "kind": block.kind,
            "variants": {
                variant: {
                    "level": compared.level,
                    "words": compared.words,
                    **compared.numbers,
                    "answers": tried.answers[block.output][variant],
                }
                for variant, compared in zip(tried.columns, block.compared, strict=True)
            },
        }
        for block in tried.blocks
    }
    return {
        "name": tried.name,
        "notes": list(tried.said),
        "compared_with": tried.columns[0] if tried.columns else None,
        "problems": tried.problems,
        "outputs": outputs,
    }


def _replace_nonfinite(value: Any) -> Any:  # noqa: ANN401  (whatever JSON holds)
    """Return a value with null for the floats that JSON does not have."""
    if isinstance(value, dict):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
