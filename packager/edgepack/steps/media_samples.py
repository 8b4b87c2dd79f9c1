"""Steps that make sample sets of videos and sounds: frames and windows, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from edgepack.base.arrays import Array
from edgepack.model.facts import TensorSpec
from edgepack.project.inputs import ImageInput, SoundInput
from edgepack.samples.images import make_image_tensor
from edgepack.samples.label_kinds import LabelKind
from edgepack.samples.read_labels import Labelled, read_labels
from edgepack.samples.sample_set import Sample, write_sample_set
from edgepack.samples.sounds import list_sound_files, read_sound_samples, read_sound_streams
from edgepack.samples.sources import select_files
from edgepack.samples.streams import add_first_state, make_first_state
from edgepack.samples.videos import FrameChoice, count_frames, list_videos, read_frames
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.samples import Part, SamplesStep, make_set_notes

_CALIBRATING = 0.8
"""The part of the frames of a video for both sets that calibrates: what comes first."""


@dataclass(frozen=True)
class VideoSamples(SamplesStep):
    """Frames of a video, or of all in a folder, as pictures. Input: ``source``.

    Frames are in order; each video is a stream. Where one source is for both sets, its first four
    fifths calibrate and the last fifth evaluates: neighbouring frames are too alike to be mixed.
    """

    name: ClassVar[str] = "video-samples"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "pillow", "av")
    signature: tuple[TensorSpec, ...]
    input_name: str
    image: ImageInput
    choice: FrameChoice
    limit: int | None
    part: Part
    state: tuple[TensorSpec, ...] = ()
    """Inputs that only the first frame of a stream holds."""
    as_pixels: bool = False
    """Whether the model takes the pixels themselves."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write the set."""
        begins: list[int] = []
        frames = add_first_state(self._read(inputs["source"]), self.state, begins)
        write_sample_set(out, self.signature, frames, streams=begins)
        return make_set_notes(out, inputs["source"].name)

    def _read(self, source: Path) -> Iterator[Sample]:
        videos = list_videos(source)
        begin, end = self._find_span(videos)
        first, number, taken = make_first_state(self.state), 0, 0
        for path in videos:
            begins = True
            for frame, pixels in read_frames(path, self.choice):
                if number >= end or taken == self.limit:
                    return
                if number >= begin:
                    feed = {self.input_name: self._make_input(pixels)}
                    yield f"frame {frame} of {path.name}", {**feed, **(first if begins else {})}
                    begins, taken = False, taken + 1
                number += 1

    def _find_span(self, videos: list[Path]) -> tuple[int, float]:
        """Return the first frame, of all that are chosen, and the one behind the last."""
        if self.part == "all":
            return 0, float("inf")
        split = round(_CALIBRATING * count_frames(videos, self.choice))
        return (0, split) if self.part == "calibration" else (split, float("inf"))

    def _make_input(self, pixels: Array) -> Array:
        return pixels if self.as_pixels else make_image_tensor(pixels, self.image)


@dataclass(frozen=True)
class SoundSamples(SamplesStep):
    """Sounds of a folder of ``.wav`` files. Inputs: ``source``; ``project``, the project's folder.

    Without a state each file is a sample; with one it is a stream of windows.
    """

    name: ClassVar[str] = "sound-samples"
    signature: tuple[TensorSpec, ...]
    input_name: str
    sound: SoundInput
    labels: str | None
    limit: int | None
    part: Part
    state: tuple[TensorSpec, ...] = ()
    """Inputs that only the first window of a file holds."""
    kind: LabelKind = field(default="classes", kw_only=True)
    """What labels are."""
    label_count: int = field(default=0, kw_only=True)
    """Of how many classes several may be right; 0 where nobody knows."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write the set."""
        folder = inputs["source"]
        files = select_files(folder, self.limit, self.part, list_sound_files)
        labels = None
        if self.labels:
            given = Labelled(
                files, folder, inputs["project"], self.labels, (), (), self.label_count
            )
            labels = read_labels(self.kind, given)
        spec = next(spec for spec in self.signature if spec.name == self.input_name)
        begins: list[int] = []
        if self.state:
            first = make_first_state(self.state)
            windows = read_sound_streams(files, folder, spec, self.sound, first)
        else:
            windows = read_sound_samples(files, folder, spec, self.sound)
        frames = add_first_state(windows, self.state, begins)
        write_sample_set(out, self.signature, frames, labels, begins)
        return make_set_notes(out, f"{folder.name}/")
