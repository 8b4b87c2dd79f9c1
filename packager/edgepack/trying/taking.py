"""Describes what the inputs of a bundle's model take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from edgepack.errors import SamplesError
from edgepack.ondevice.runtime.edgepack_shapes import TensorSpec
from edgepack.project.inputs import InputDescription
from edgepack.samples.images import SUFFIXES
from edgepack.trying.sound import is_row

Kind = Literal["image", "text", "sound", "tensor"]
_LARGE = 64
"""Values from which an input is rather an array of its own than a state or a setting."""


class Inputs:
    """The inputs of a model, by name.

    Args:
        specs: All of them.
        descriptions: What the bundle says about some.
        needed: Those that a caller has to give.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        descriptions: Mapping[str, InputDescription],
        needed: Sequence[str],
    ) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.descriptions = descriptions
        self.needed = list(needed)

    def find_kind(self, name: str) -> Kind:
        """Return what an input is made from."""
        described, spec = self.descriptions.get(name), self.specs[name]
        if described and described.image:
            return "image"
        if described and described.tokens:
            return "text"
        is_sound = bool(described and described.sound) or is_row(spec.dtype, spec.shape)
        return "sound" if is_sound else "tensor"

    def list_of_kind(self, kind: Kind, names: Sequence[str]) -> list[str]:
        """Return those of some inputs that are of a kind."""
        return [name for name in names if self.find_kind(name) == kind]

    def format_type(self, name: str) -> str:
        """Return dtype and shape."""
        spec = self.specs[name]
        return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"

    def format_command(self, missing: Sequence[str] = ()) -> str:
        """Return a command that gives what is missing, by default all that is needed."""
        parts = [self._format_option(name) for name in missing or self.needed]
        return " ".join(["edgepack try BUNDLE", *parts])

    def _format_option(self, name: str) -> str:
        values = {"image": "photo.jpg", "text": '"a text"', "sound": "sound.wav"}
        shape = self.specs[name].shape
        size = math.prod(side if isinstance(side, int) else 1 for side in shape)
        tensor = "array.npy" if size > _LARGE else "0"
        return f"--input {name}={values.get(self.find_kind(name), tensor)}"

    def make_unwanted_error(self, text: str) -> SamplesError:
        """Return the error about an argument that is for no input."""
        path, hint = Path(text), self.format_command()
        if path.suffix.lower() in SUFFIXES or path.is_dir():
            what, hint = "no input is described as an image", self._format_image_lines() or hint
        elif path.suffix.lower() == ".wav":
            what = "no input is one row of float samples, (N,), (1, N) or (1, 1, N)"
        elif path.suffix.lower() == ".npy":
            what = "every input has a value already"
        else:
            what = "no input is described as a text"
        return SamplesError(f"{text!r} cannot be given to this model: {what}", hint=hint)

    def _format_image_lines(self) -> str:
        """Return what describes an input as an image; nothing if none looks like one."""
        if self.list_of_kind("text", list(self.specs)):
            return ""
        lines = [line for line in map(_format_image_line, self.specs.values()) if line]
        about = "add to edgepack.yaml, with your model's own numbers, and build:\n    "
        return f"{about}{lines[0]}" if lines else ""


def _format_image_line(spec: TensorSpec) -> str:
    if len(spec.shape) != 4:
        return ""
    for layout, channels, height, width in (("NCHW", 1, 2, 3), ("NHWC", 3, 1, 2)):
        if spec.shape[channels] in (1, 3):
            order = "RGB" if spec.shape[channels] == 3 else "GRAY"
            rows, columns = (
                side if isinstance(side, int) else 224
                for side in (spec.shape[height], spec.shape[width])
            )
            return (
                f"inputs: {{{spec.name}: {{image: {{resize: {{width: {columns},"
                f" height: {rows}}}, order: {order}, scale: 0.00392157, layout: {layout}}}}}}}"
            )
    return ""
