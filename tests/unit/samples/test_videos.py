"""Frames of videos: which are taken, and what is said of files that are none."""

from __future__ import annotations

import sys

import av
import numpy as np
import pytest
from edgepack.base.yaml_source import parse_yaml
from edgepack.errors import ProfileError, SamplesError, ToolError
from edgepack.project.samples import Samples
from edgepack.samples.videos import FrameChoice, count_frames, list_videos, read_frames

from tests.support.media import SIZE, read_level, write_video

LEVELS = [8 * k for k in range(30)]


@pytest.fixture(params=["mp4", "mkv", "avi"])
def video(tmp_path, request):
    path = tmp_path / f"clip.{request.param}"
    write_video(path, LEVELS)
    return path


def numbers(video, **choice):
    return [number for number, _ in read_frames(video, FrameChoice(**choice))]


def test_frames_are_all_in_order_in_rgb(video):
    found = list(read_frames(video))
    assert [number for number, _ in found] == list(range(30))
    for (_, pixels), level in zip(found, LEVELS, strict=True):
        assert pixels.shape == (SIZE[1], SIZE[0], 3)
        assert pixels.dtype == np.uint8
        assert read_level(pixels) == pytest.approx(level, abs=6)
        assert pixels[:, :16].mean() > 240


def test_frames_of_one_channel_are_that_of_red(tmp_path):
    path = tmp_path / "red.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        pixels = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
        pixels[..., 0] = 255
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    ((_, found),) = read_frames(path)
    assert found[..., 0].mean() > 240
    assert found[..., 1:].mean() < 15


def test_frames_when_one_of_several_is_asked_for_are_these(video):
    assert numbers(video, every=7) == [0, 7, 14, 21, 28]
    assert numbers(video, every=100) == [0]


@pytest.mark.parametrize(
    ("fps", "due"),
    [
        (10, list(range(30))),
        (5, list(range(0, 30, 2))),
        (4, [0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28]),
        (0.5, [0, 20]),
        # No frame is taken twice.
        (60, list(range(30))),
    ],
)
def test_frames_when_a_rate_is_asked_for_are_the_first_at_each_moment(video, fps, due):
    assert numbers(video, fps=fps) == due


@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_frames_when_their_own_rate_is_asked_for_are_all(tmp_path, kind):
    # A thirtieth of a second is no whole number of Matroska's milliseconds.
    path = tmp_path / f"clip.{kind}"
    write_video(path, LEVELS, fps=30)
    assert numbers(path, fps=30) == list(range(30))
    assert numbers(path, fps=15) == list(range(0, 30, 2))


def test_frames_of_a_phone_that_was_held_upright_are_turned(tmp_path):
    path = tmp_path / "clip.mp4"
    write_video(path, LEVELS[:3])
    one, data = 0x10000, path.read_bytes()
    kept = np.array([one, 0, 0, 0, one, 0, 0, 0, 1 << 30], ">i4").tobytes()
    # A quarter turn clockwise: what is right becomes what is below.
    turned = np.array([0, one, 0, -one, 0, 0, 0, 0, 1 << 30], ">i4").tobytes()
    at = data.index(kept, data.index(b"tkhd"))
    path.write_bytes(data[:at] + turned + data[at + len(kept) :])
    (_, pixels), *_ = read_frames(path)
    assert pixels.shape == (SIZE[0], SIZE[1], 3)
    # The white third was left, and is on top.
    assert pixels[:16].mean() > 240
    assert pixels[32:].mean() < 20


def test_videos_of_a_folder_are_in_the_order_of_their_names(tmp_path):
    for name in ("b.mp4", "a/2.mp4", "a/1.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_video(tmp_path / name, LEVELS[:4])
    found = list_videos(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in found] == [
        "a/1.mp4",
        "a/2.mp4",
        "b.mp4",
    ]
    assert count_frames(found, FrameChoice(every=2)) == 6


@pytest.mark.parametrize("kept", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("kind", ["mp4", "mkv", "avi", "faststart.mp4"])
def test_frames_of_a_file_that_is_broken_off_end_in_one_error(tmp_path, kind, kept):
    path = tmp_path / f"clip.{kind}"
    write_video(path, LEVELS * 3)
    data = path.read_bytes()
    if kind == "faststart.mp4":
        # What is behind the head is noise.
        at = data.index(b"mdat") + 8 + int(kept * 1000)
        noise = np.random.default_rng(0).integers(0, 256, 4000).astype(np.uint8).tobytes()
        path.write_bytes(data[:at] + noise + data[at + len(noise) :])
    else:
        path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(SamplesError, match=r"cannot decode|ends after|has no frame") as caught:
        list(read_frames(path))
    assert "clip" in caught.value.problem
    assert caught.value.hint


def test_frames_of_something_else_say_what_it_is(tmp_path):
    text = tmp_path / "text.mp4"
    text.write_text("no video")
    with pytest.raises(SamplesError, match=r"cannot decode .*text\.mp4.*Invalid data"):
        list(read_frames(text))
    sound = tmp_path / "sound.mkv"
    with av.open(str(sound), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(SamplesError, match="has no picture, only audio"):
        list(read_frames(sound))


def test_videos_that_are_not_there_are_an_error(tmp_path):
    with pytest.raises(SamplesError, match="there is no video"):
        list_videos(tmp_path / "none.mp4")
    with pytest.raises(SamplesError, match="there are no videos in"):
        list_videos(tmp_path)


def test_frames_without_the_decoder_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ToolError, match="PyAV, which is not installed") as caught:
        list(read_frames(tmp_path / "clip.mp4"))
    assert "edgepack[video]" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{images: p, every: 2}", "'every' goes with 'video' only"),
        ("{video: a.mp4, every: 2, fps: 5}", "'every' and 'fps' are given"),
        ("{video: a.mp4, labels: l.csv}", "'labels' goes with"),
        ("{video: a.mp4, images: p}", "exactly one source"),
        ("{video: a.mp4, fps: 0}", "greater than 0"),
    ],
)
def test_project_when_frames_are_asked_for_in_two_ways_refuses_them(given, said):
    with pytest.raises(ProfileError, match=said):
        parse_yaml(f"calibration: {given}\n", name="edgepack.yaml").parse(Samples)
