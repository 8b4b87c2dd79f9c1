"""Sounds of .wav files: beside scipy's and Python's own readers, and files that are broken."""

from __future__ import annotations

import struct
import warnings
import wave

import numpy as np
import pytest
from edgepack.errors import SamplesError
from edgepack.model.facts import TensorSpec
from edgepack.project.inputs import SoundInput
from edgepack.samples.sounds import (
    list_sound_files,
    read_described_sound,
    read_sound,
    read_sound_samples,
    read_sound_streams,
)
from scipy.io import wavfile

from tests.support.media import write_chunks, write_sound

RATE = 16000
KINDS = ["s8", "s16", "s24", "s32", "f32", "f64"]


@pytest.fixture
def values():
    return np.random.default_rng(0).uniform(-1, 1, (400, 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 2])
def test_sound_is_what_was_written(tmp_path, values, kind, channels):
    path = tmp_path / "a.wav"
    write_sound(path, values[:, :channels], kind=kind)
    found = read_sound(path)
    assert found.rate == RATE
    assert found.values.shape == (channels, 400)
    assert found.values.dtype == np.float32
    step = {"s8": 2 / 128, "s16": 2 / 32768}.get(kind, 1e-6)
    assert np.abs(found.values.T - values[:, :channels]).max() < step


@pytest.mark.parametrize("kind", KINDS)
def test_sound_is_what_scipy_reads(tmp_path, values, kind):
    path = tmp_path / "a.wav"
    write_sound(path, values, kind=kind)
    with warnings.catch_warnings():
        # scipy warns about parts that it does not know.
        warnings.simplefilter("ignore")
        rate, theirs = wavfile.read(path)
    middle, scale = {"u": (128, 128), "f": (0, 1)}.get(
        theirs.dtype.kind, (0, float(-np.iinfo(theirs.dtype).min) if kind[0] == "s" else 1)
    )
    due = ((theirs.astype(np.float64) - middle) / scale).astype(np.float32)
    found = read_sound(path)
    assert found.rate == rate
    assert np.array_equal(found.values.T, due)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32, np.float64])
def test_sound_that_scipy_writes_is_read(tmp_path, dtype):
    path = tmp_path / "a.wav"
    noise = np.random.default_rng(0).normal(0, 0.3, 100).clip(-1, 1)
    levels = {np.uint8: (127, 128), np.int16: (32767, 0), np.int32: (2**31 - 1, 0)}
    scale, middle = levels.get(dtype, (1, 0))
    wavfile.write(path, RATE, (noise * scale + middle).astype(dtype))
    assert read_sound(path).values[0] == pytest.approx(noise, abs=2.5 / 128)


def test_sound_that_pythons_wave_writes_is_read(tmp_path):
    levels = np.array([-32768, -1, 0, 1, 32767], np.int16)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(44100)
        file.writeframes(levels.tobytes())
    found = read_sound(tmp_path / "a.wav")
    assert found.rate == 44100
    assert (found.values[0] * 32768).tolist() == levels.tolist()


def test_sound_with_an_extensible_header_is_read(tmp_path):
    path = tmp_path / "a.wav"
    levels = np.array([-8388608, 0, 4194304], "<i4")
    head = struct.pack("<HHIIHH", 0xFFFE, 1, RATE, RATE * 3, 3, 24)
    head += struct.pack("<HHIH", 22, 24, 4, 1) + bytes.fromhex("000000001000800000aa00389b71")
    raw = levels.reshape(-1, 1).view(np.uint8)[:, :3].tobytes()
    write_chunks(path, {b"fmt ": head, b"data": raw})
    assert read_sound(path).values[0].tolist() == [-1, 0, 0.5]


@pytest.mark.parametrize(
    ("kind", "value"), [("f32", np.nan), ("f32", np.inf), ("f64", -np.inf), ("f64", 1e300)]
)
def test_sound_with_values_that_are_not_finite_is_refused(tmp_path, values, kind, value):
    values[7, 1] = value
    write_sound(tmp_path / "a.wav", values, kind=kind)
    with pytest.raises(SamplesError, match="values that are not finite"):
        read_sound(tmp_path / "a.wav")


def broken(data: bytes, how: str) -> bytes:
    at = data.index(b"fmt ") + 8
    return {
        "cut": data[:-10],
        "text": b"RIFX and something else",
        "nothing": b"",
        "code": data[:at] + b"\x06\x00" + data[at + 2 :],
        "bits": data[: at + 14] + b"\x0c\x00" + data[at + 16 :],
        "channels": data[: at + 2] + b"\x00\x00" + data[at + 4 :],
        "align": data[: at + 12] + b"\x04\x00" + data[at + 14 :],
        "head": data[:12] + data[data.index(b"LIST") :],
    }[how]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("cut", "is broken off: its part 'data' has 790 of 800 bytes"),
        ("text", "is no .wav file: it begins with b'RIFX"),
        ("nothing", "is no .wav file"),
        ("code", "holds A-law of 16 bits"),
        ("bits", "holds PCM of 12 bits"),
        ("channels", "0 channels"),
        ("align", "has 4 bytes for each moment, and 1 channel of 16 bits"),
        ("head", "has no format in it"),
    ],
)
def test_sound_that_is_broken_says_how(tmp_path, values, how, said):
    path = tmp_path / "a.wav"
    write_sound(path, values[:, 0])
    path.write_bytes(broken(path.read_bytes(), how))
    with pytest.raises(SamplesError, match=said) as caught:
        read_sound(path)
    assert caught.value.hint


def test_sound_without_values_is_empty(tmp_path):
    path = tmp_path / "a.wav"
    write_sound(path, np.zeros(0))
    with pytest.raises(SamplesError, match="is empty"):
        read_sound(path)


def test_sound_of_another_rate_or_number_of_channels_says_how_to_convert_it(tmp_path, values):
    path = tmp_path / "a.wav"
    write_sound(path, values, rate=44100)
    described = SoundInput(rate=RATE)
    with pytest.raises(
        SamplesError, match=r"44100 Hz and 2 channels, and .* 16000 Hz and 1 ch"
    ) as e:
        read_described_sound(path, described)
    assert "-ar 16000 -ac 1" in e.value.hint
    assert read_described_sound(path, SoundInput(rate=44100, channels=2)).shape == (2, 400)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((300,), "float32"), ((1, 300), "float32"), ((1, 1, 300), "float16"), ((1, 300), "int16")],
)
def test_samples_are_the_beginning_of_files_filled_up_with_silence(tmp_path, values, shape, dtype):
    write_sound(tmp_path / "a/long.wav", values[:, 0])
    write_sound(tmp_path / "b/short.wav", values[:100, 1])
    files = list_sound_files(tmp_path)
    spec = TensorSpec("x", dtype, shape)
    described = SoundInput(rate=RATE, length=300)
    (one, long), (other, short) = read_sound_samples(files, tmp_path, spec, described)
    assert (one, other) == ("a/long.wav", "b/short.wav")
    assert long["x"].shape == short["x"].shape == shape
    assert long["x"].dtype == short["x"].dtype == dtype
    scale = 32768 if dtype == "int16" else 1
    assert long["x"].ravel() / scale == pytest.approx(values[:300, 0], abs=1e-3)
    assert short["x"].ravel()[:100] / scale == pytest.approx(values[:100, 1], abs=1e-3)
    assert not short["x"].ravel()[100:].any()


def test_samples_of_files_of_any_length_are_whole(tmp_path, values):
    write_sound(tmp_path / "a.wav", values)
    spec = TensorSpec("x", "float32", (1, 2, "n"))
    described = SoundInput(rate=RATE, channels=2)
    ((_, found),) = read_sound_samples([tmp_path / "a.wav"], tmp_path, spec, described)
    assert found["x"].shape == (1, 2, 400)


@pytest.mark.parametrize(("hop", "begins"), [(None, [0, 150]), (100, [0, 100, 200])])
def test_streams_are_the_windows_of_each_file(tmp_path, values, hop, begins):
    for name, column in (("a", 0), ("b", 1)):
        write_sound(tmp_path / f"{name}.wav", values[:, column], kind="f32")
    spec, first = TensorSpec("x", "float32", (1, 150)), {"state": np.zeros(2)}
    described = SoundInput(rate=RATE, length=150, hop=hop)
    found = list(read_sound_streams(list_sound_files(tmp_path), tmp_path, spec, described, first))
    assert len(found) == 2 * len(begins)
    for column in (0, 1):
        own = found[column * len(begins) :][: len(begins)]
        for number, (begin, (name, feed)) in enumerate(zip(begins, own, strict=True)):
            assert name == f"{'ab'[column]}.wav, window {number}"
            assert ("state" in feed) == (number == 0)
            assert feed["x"][0] == pytest.approx(values[begin : begin + 150, column])


def test_streams_when_a_file_is_shorter_than_a_window_say_so(tmp_path, values):
    write_sound(tmp_path / "a.wav", values[:99, 0])
    spec, described = TensorSpec("x", "float32", (1, 100)), SoundInput(rate=RATE, length=100)
    with pytest.raises(SamplesError, match="has 99 values, and a window has 100"):
        list(read_sound_streams([tmp_path / "a.wav"], tmp_path, spec, described, {}))


def test_sounds_that_are_not_there_are_an_error(tmp_path):
    with pytest.raises(SamplesError, match="there is no folder"):
        list_sound_files(tmp_path / "none")
    with pytest.raises(SamplesError, match="there are no sounds in"):
        list_sound_files(tmp_path)
