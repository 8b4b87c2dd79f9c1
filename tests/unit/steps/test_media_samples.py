"""Sets that are made of videos and sounds: streams, spans and what a frame becomes."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.model.facts import TensorSpec
from edgepack.project.inputs import ImageInput, SoundInput, Stretch
from edgepack.samples.images import make_image_tensor, read_image_tensor
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.videos import FrameChoice
from edgepack.steps.media_samples import SoundSamples, VideoSamples
from PIL import Image

from tests.support.media import write_sound, write_video

IMAGE = ImageInput(resize=Stretch(width=16, height=16), scale=1 / 255)
TAKEN = TensorSpec("image", "float32", (1, 3, 16, 16))
STATE = TensorSpec("state", "float32", (1, 2))
EVERY = FrameChoice()


def made(folder, source, choice=EVERY, limit=None, part="all", state=()):
    folder.mkdir()
    step = VideoSamples((TAKEN, *state), "image", IMAGE, choice, limit, part, state)
    step.run({"source": source}, folder)
    step.verify({}, folder)
    return SampleSet.read(folder)


@pytest.fixture
def clips(tmp_path):
    (tmp_path / "clips").mkdir()
    for name, first in (("a.mp4", 0), ("b.mkv", 100)):
        write_video(tmp_path / "clips" / name, [first + 8 * k for k in range(10)])
    return tmp_path / "clips"


def levels(samples):
    return [float(feed["image"][..., 8:].mean() * 255) for feed in samples]


def test_frames_of_several_videos_are_a_stream_of_each(tmp_path, clips):
    samples = made(tmp_path / "s", clips, FrameChoice(every=3), state=(STATE,))
    assert samples.streams == (0, 4)
    assert samples.names[:5] == (
        *(f"frame {k} of a.mp4" for k in (0, 3, 6, 9)),
        "frame 0 of b.mkv",
    )
    assert levels(samples) == pytest.approx([0, 24, 48, 72, 100, 124, 148, 172], abs=6)
    assert not any(feed["state"].any() for feed in samples)


def test_frames_of_both_sets_are_the_first_four_fifths_and_the_last(tmp_path, clips):
    first = made(tmp_path / "c", clips, part="calibration", state=(STATE,))
    last = made(tmp_path / "e", clips, part="evaluation", state=(STATE,))
    assert (len(first), len(last)) == (16, 4)
    assert (first.streams, last.streams) == ((0, 10), (0,))
    assert levels(last) == pytest.approx([148, 156, 164, 172], abs=6)


def test_frames_when_there_are_more_than_the_limit_are_the_first(tmp_path, clips):
    assert len(made(tmp_path / "s", clips, limit=12)) == 12
    assert len(made(tmp_path / "e", clips, limit=3, part="evaluation")) == 3


@pytest.mark.parametrize("order", ["RGB", "BGR", "GRAY"])
def test_a_frame_becomes_what_a_picture_of_it_does(tmp_path, order):
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "frame.png")
    described = IMAGE.model_copy(update={"order": order})
    due = read_image_tensor(tmp_path / "frame.png", described)
    assert np.array_equal(make_image_tensor(pixels, described), due)


def test_sounds_are_streams_of_windows_where_there_is_a_state(tmp_path):
    for name, length in (("a", 350), ("b", 200)):
        write_sound(tmp_path / "sounds" / f"{name}.wav", np.full(length, 0.5))
    taken = TensorSpec("x", "float32", (1, 100))
    folder = tmp_path / "s"
    folder.mkdir()
    described = SoundInput(rate=16000, length=100)
    step = SoundSamples((taken, STATE), "x", described, None, None, "all", (STATE,))
    step.run({"source": tmp_path / "sounds", "project": tmp_path}, folder)
    samples = SampleSet.read(folder)
    assert samples.streams == (0, 3)
    assert len(samples) == 5
