"""Reads a folder of sounds for ``edgepack init``: its path, what its files have, and its labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.builder.photos import format_path
from edgepack.errors import UsageError
from edgepack.model.facts import ModelFacts, TensorSpec
from edgepack.project.inputs import SoundInput
from edgepack.samples.sounds import list_sound_files, read_sound
from edgepack.samples.spreading import choose_spread

_READ = 100
"""The most sounds that are read."""


@dataclass(frozen=True)
class Recordings:
    """The sounds, and how the project file names and describes them."""

    spec: TensorSpec
    """The input that takes them."""
    sound: SoundInput
    written: str
    """The folder's path."""
    labels: str
    """``folders`` where each folder is a class; nothing otherwise."""
    others: str
    """What some files have instead, in words; nothing where all are alike."""

    @classmethod
    def of(cls, folder: Path, project: Path, facts: ModelFacts) -> Recordings:
        """Read a folder of sounds.

        Raises:
            SamplesError: There is none, or one cannot be read.
            UsageError: The model does not take one sound, or there is one alone.
        """
        spec = find_sound_input(facts)
        if spec is None:
            raise UsageError(
                "the model does not take one sound, [N], [1, N] or [1, C, N] of floats, but"
                f" {', '.join(map(str, facts.inputs))}",
                hint="leave --sounds out; with 'state' or 'constants' write inputs: {NAME: {sound:"
                " ...}} yourself",
                where="--sounds",
            )
        folder = folder.resolve()
        files = list_sound_files(folder)
        if len(files) < 2:
            raise UsageError(
                f"there is only one sound in {str(folder)!r}",
                hint="give at least two different ones, to calibrate with and to evaluate with",
                where="--sounds",
            )
        found = [read_sound(path) for path in choose_spread(files, _READ)]
        kinds = Counter((sound.rate, len(sound.values)) for sound in found)
        ((rate, channels), often), *_ = kinds.most_common(1)
        size = (spec.shape or ("N",))[-1]
        sound = SoundInput(
            rate=rate, channels=channels, length=size if isinstance(size, int) else None
        )
        others = f"{len(found) - often} of {len(found)} have another rate or other channels"
        return cls(
            spec,
            sound,
            format_path(folder, project.resolve()),
            _find_labels(folder, files, facts),
            others if often < len(found) else "",
        )


def find_sound_input(facts: ModelFacts) -> TensorSpec | None:
    """Return the model's one input if it may take a sound, else None."""
    if len(facts.inputs) != 1:
        return None
    spec = facts.inputs[0]
    shape = spec.shape or ()
    is_sound = spec.dtype in ("float32", "float16", "int16") and 1 <= len(shape) <= 3
    batch = [] if len(shape) == 1 else [shape[0]]
    return spec if is_sound and all(size == 1 or isinstance(size, str) for size in batch) else None


def _find_labels(folder: Path, files: Sequence[Path], facts: ModelFacts) -> str:
    """Return ``folders`` where the sounds lie in as many as the model has classes."""
    groups = {path.relative_to(folder).parts[0] for path in files if path.parent != folder}
    shape = facts.outputs[0].shape or ()
    loose = any(path.parent == folder for path in files)
    return "folders" if len(shape) == 2 and shape[1] == len(groups) and not loose else ""
