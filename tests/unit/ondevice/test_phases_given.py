"""What calls of ``predict`` are given when they are timed: made of golden samples."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from edgepack.base.resources import find_ondevice_dir

from tests.support.nets.text_nets import word_pieces

RESIZES: dict[str, dict[str, int]] = {
    "stretched": {"width": 40, "height": 24},
    "cut": {"short_side": 40, "crop": 32},
    "letterboxed": {"letterbox": 64, "pad": 114},
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "##es"]


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in ("harness", "runtime"):
        monkeypatch.syspath_prepend(str(find_ondevice_dir() / folder))
    return importlib.import_module("edgepack_phases")


def describe(**changes: Any) -> dict[str, Any]:
    plain = {"order": "RGB", "scale": 1 / 255, "mean": [], "std": [], "layout": "NCHW"}
    return {**plain, "resize": RESIZES["stretched"], **changes}


def smooth_picture(width: int, height: int) -> np.ndarray:
    """Colours that change slowly, so that nothing but an error is lost by scaling."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [255 * x / width, 255 * y / height, 127 + 120 * np.sin(x / width * 3)]
    return np.stack(channels, axis=2).astype(np.uint8)


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"order": "BGR", "layout": "NHWC", "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25]},
        {"order": "GRAY", "mean": [0.5], "std": [0.5]},
    ],
)
def test_picture_of_a_sample_becomes_that_sample_again(
    phases: ModuleType, resize: str, changes: dict[str, Any]
) -> None:
    described = describe(resize=RESIZES[resize], **changes)
    sample = phases.images.make_tensor(smooth_picture(1280, 720), described)
    picture = phases.make_picture(sample, described, 1280, 720)
    assert (picture.dtype, picture.shape) == (np.uint8, (720, 1280, 3))
    again = phases.images.make_tensor(picture, described)
    step = 1 / 255 / min(described["std"] or [1])
    # A grey that was rounded twice, and edges that a filter smoothed, are a few steps away.
    assert np.abs(again - sample).max() <= 6 * step
    assert np.abs(again - sample).mean() <= step


def test_picture_of_another_shape_shows_what_fits_and_is_not_stretched(phases: ModuleType) -> None:
    described = describe(resize=RESIZES["letterboxed"])
    portrait = smooth_picture(300, 400)
    sample = phases.images.make_tensor(portrait, described)
    again = phases.images.make_tensor(phases.make_picture(sample, described, 1280, 720), described)
    place = phases.images.find_placement(1280, 720, described["resize"])
    assert 0 < place.top < place.top + place.height < 64
    rows = slice(place.top + 1, place.top + place.height - 1)
    assert np.abs(again[:, :, rows] - sample[:, :, rows]).mean() <= 2 / 255


def test_picture_of_a_sample_that_is_one_is_that_sample(phases: ModuleType, tmp_path: Path) -> None:
    pixels, file = smooth_picture(30, 20), np.frombuffer(b"\xff\xd8\xff\xe0", np.uint8)
    found = make(phases, tmp_path, {"photo": pixels}, {"photo": {"image": describe()}})
    assert found.values["photo"] is pixels
    assert found.words.startswith("a picture of 30 x 20 (JPEG of ")
    assert found.undecoded == ""
    decoded = found.decode()["photo"]
    assert decoded.shape == pixels.shape
    assert np.abs(decoded.astype(int) - pixels).mean() < 8
    own = make(phases, tmp_path, {"photo": file}, {"photo": {"image": describe()}})
    assert own.values["photo"] == file.tobytes()
    assert own.undecoded == "the model does it itself: it is in the run"
    assert own.decode() == own.values


def test_text_of_a_sample_has_its_words_without_what_stands_around_them(
    phases: ModuleType, tmp_path: Path
) -> None:
    about = {"ids": {"tokens": {"file": "tokenizer.json", "length": 6}}}
    ids = np.array([[2, 4, 5, 6, 3, 0]])
    found = make(phases, tmp_path, {"ids": ids}, about)
    assert (found.values, found.words) == ({"ids": "the foxes"}, "a text of 9 characters")
    raw = np.frombuffer("Füchse".encode(), np.uint8)
    assert make(phases, tmp_path, {"ids": raw}, about).values == {"ids": "Füchse"}
    with pytest.raises(ValueError, match=r"no words of tokenizer\.json"):
        make(phases, tmp_path, {"ids": np.array([[2, 3, 0]])}, about)


def make(
    phases: ModuleType, folder: Path, sample: dict[str, Any], descriptions: dict[str, Any]
) -> Any:
    """Return what is given for a sample of a bundle whose masks are left out."""
    (folder / "files").mkdir(exist_ok=True)
    added = [{"content": word, "id": WORDS.index(word)} for word in WORDS[:4]]
    tokenizer = {**word_pieces(WORDS), "added_tokens": added}
    (folder / "files/tokenizer.json").write_text(json.dumps(tokenizer))
    return phases.make_given(
        SimpleNamespace(
            folder=folder,
            manifest={"input_descriptions": descriptions},
            meaning=SimpleNamespace(needed=list(sample)),
            read_golden_inputs=lambda _: {**sample, "mask": np.ones(1)},
        )
    )
