from __future__ import annotations

import wave

import numpy as np
import pytest
from edgepack.errors import SamplesError
from edgepack.trying.sound import is_row, read_sound


def write(path, values, *, channels=1, width=2, rate=8000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.asarray(values, f"<i{width}").tobytes() if width < 3 else bytes(values))
    return path


def test_sound_when_it_has_two_channels_is_their_mean(tmp_path):
    sound = read_sound(write(tmp_path / "a.wav", [0, 16384, -32768, -32768, 100, 300], channels=2))
    assert sound.samples == pytest.approx([0.25, -1.0, 200 / 32768])
    assert sound.samples.dtype == np.float32
    assert sound.words == "8000 Hz, 2 channels, mixed to one, 0.000375 s"


@pytest.mark.parametrize(
    ("shape", "expected", "said"),
    [
        ((2,), [0.25, 0.5], "the first 2 samples (0.00025 s) of 3"),
        ((1, 5), [[0.25, 0.5, -1, 0, 0]], "the input has 5 samples (0.000625 s): 2 zeros"),
        (("batch", 1, "n"), [[[0.25, 0.5, -1]]], ""),
    ],
)
def test_sound_when_given_to_an_input_is_cut_or_filled_up(tmp_path, shape, expected, said):
    row, words = read_sound(write(tmp_path / "a.wav", [8192, 16384, -32768])).fit_to(shape)
    assert row.tolist() == expected
    assert said in words
    assert bool(words) == bool(said)


@pytest.mark.parametrize(
    ("dtype", "shape", "is_one"),
    [
        ("float32", (1, 512), True),
        ("float32", ("batch", "sequence"), True),
        ("float32", ("n",), True),
        ("float32", (1, 1, 16000), True),
        ("float32", (2, 1, 128), False),
        ("float32", (1, 1), False),
        ("int64", (1, 512), False),
        ("float32", (), False),
        ("float32", (1, 3, 224, 224), False),
    ],
)
def test_input_when_looked_at_is_a_row_of_samples_or_not(dtype, shape, is_one):
    assert is_row(dtype, shape) is is_one


@pytest.mark.parametrize("kind", ["text", "cut", "24 bit", "empty", "float"])
def test_file_when_it_is_no_sound_of_16_bits_is_an_error(tmp_path, kind):
    path = write(tmp_path / "a.wav", [1, 2, 3])
    if kind == "text":
        path.write_text("no sound")
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[:20])
    elif kind == "24 bit":
        write(path, b"abcdef", width=3)
    elif kind == "empty":
        write(path, [])
    elif kind == "float":
        data = bytearray(path.read_bytes())
        data[20] = 3
        path.write_bytes(data)
    with pytest.raises(SamplesError, match=r"a\.wav") as caught:
        read_sound(path)
    assert caught.value.hint
