"""What the loader feeds for pictures and texts, where bundles differ."""

from __future__ import annotations

import json

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_meaning import Meaning
from edgepack.ondevice.runtime.edgepack_shapes import InputShapes, TensorSpec
from edgepack.project.inputs import InputDescription

from tests.support.nets.text_nets import word_pieces

TOKENIZER = word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "fox"])
IMAGE = {"image": {"resize": {"letterbox": 8, "pad": 0}}}
TOKENS = {"tokens": {"file": "tokenizer.json", "length": 5, "attention_mask": "input_mask"}}


def meaning(descriptions, *specs):
    manifest = {
        "input_descriptions": {
            name: InputDescription.model_validate(values).model_dump()
            for name, values in descriptions.items()
        }
    }
    shapes = InputShapes([TensorSpec(*spec) for spec in specs], manifest.get("input_descriptions"))
    return Meaning(manifest, shapes, lambda _: json.dumps(TOKENIZER))


def test_feed_when_the_model_takes_pixels_gives_them_as_they_are_and_still_places_them():
    pixels = np.zeros((6, 12, 3), np.uint8)
    described = meaning({"photo": IMAGE}, ("photo", "uint8", ("height", "width", 3)))
    feed = described.make_feed(pixels)
    assert feed.arrays["photo"] is pixels
    assert (feed.place.width, feed.place.height, feed.place.top) == (8, 4, 2)


def test_feed_when_the_model_would_scale_a_picture_to_gigabytes_refuses_it():
    cut = {"image": {"resize": {"short_side": 256, "crop": 224}}}
    described = meaning({"photo": cut}, ("photo", "uint8", ("height", "width", 3)))
    assert described.make_feed(np.zeros((1, 4096, 3), np.uint8)).place.width == 1 << 20
    with pytest.raises(ValueError, match="1 x 4097 pixels would become 256 x 1048832 in the model"):
        described.make_feed(np.zeros((4097, 1, 3), np.uint8))
    itself = meaning({"photo": cut}, ("photo", "float32", (1, 3, 224, 224)))
    found = itself.make_feed(np.zeros((65535, 1, 3), np.uint8)).arrays["photo"]
    assert found.shape == (1, 3, 224, 224)


def test_feed_when_the_model_takes_float16_gives_that():
    described = meaning({"photo": IMAGE}, ("photo", "float16", (1, 3, 8, 8)))
    assert described.make_feed(np.zeros((6, 12, 3), np.uint8)).arrays["photo"].dtype == np.float16


def test_feed_when_the_model_decodes_files_gives_their_bytes():
    described = meaning({"photo": IMAGE}, ("photo", "uint8", ("image_bytes",)))
    for file in (b"\xff\xd8\xff\xe0", np.array([255, 216, 255, 224], np.uint8)):
        feed = described.make_feed(file)
        assert feed.arrays["photo"].tolist() == [255, 216, 255, 224]
        assert feed.place is None


@pytest.mark.parametrize(
    "given",
    [b"", b"GIF89a", "photo.jpg", np.full((6, 12, 3), 255, np.uint8), np.full(9, 255, np.float32)],
    ids=["nothing", "gif", "path", "pixels", "floats"],
)
def test_feed_when_the_model_decodes_files_and_gets_none_says_what_is_wanted(given):
    described = meaning({"photo": IMAGE}, ("photo", "uint8", ("image_bytes",)))
    with pytest.raises(ValueError, match="not the bytes of a JPEG or PNG file"):
        described.make_feed(given)


def test_feed_when_there_are_two_pictures_places_neither():
    two = meaning(
        {"a": IMAGE, "b": IMAGE},
        ("a", "float32", (1, 3, 8, 8)),
        ("b", "float32", (1, 3, 8, 8)),
    )
    pixels = np.zeros((6, 12, 3), np.uint8)
    feed = two.make_feed({"a": pixels, "b": pixels})
    assert feed.place is None
    assert feed.arrays["b"].shape == (1, 3, 8, 8)


@pytest.mark.parametrize(("axis", "ids"), [(5, [2, 4, 3, 0, 0]), ("sequence", [2, 4, 3])])
def test_feed_when_the_axis_is_fixed_is_filled_up(axis, ids):
    described = meaning(
        {"ids": TOKENS}, ("ids", "int32", (1, axis)), ("input_mask", "int64", (1, axis))
    )
    feed = described.make_feed("Fox")
    assert described.needed == ["ids"]
    assert feed.arrays["ids"].dtype == np.int32
    assert feed.arrays["ids"].tolist() == [ids]
    assert feed.arrays["input_mask"].tolist() == [[1, 1, 1, 0, 0][: len(ids)]]
    assert set(feed.arrays) == {"ids", "input_mask"}


def test_feed_when_what_is_made_of_a_text_is_given_too_refuses_it():
    described = meaning({"ids": TOKENS}, ("ids", "int64", (1, 5)), ("input_mask", "int64", (1, 5)))
    with pytest.raises(ValueError, match="'input_mask' is made of the text: leave it out"):
        described.make_feed({"ids": "fox", "input_mask": np.ones((1, 5), np.int64)})


TEXT = ("ids", "uint8", ("ids_bytes",))


def test_feed_when_the_model_makes_the_tokens_gives_the_bytes_of_the_text():
    feed = meaning({"ids": TOKENS}, TEXT).make_feed("Zoe\u0308")
    assert feed.arrays["ids"].tobytes() == "Zoe\u0308".encode()
    assert set(feed.arrays) == {"ids"}


def test_feed_when_the_tokenizer_in_the_model_takes_nfc_composes_the_text(monkeypatch):
    monkeypatch.setitem(TOKENIZER, "normalizer", {"type": "NFC"})
    monkeypatch.setitem(TOKENIZER, "model", {"type": "BPE", "merges": []})
    assert (
        meaning({"ids": TOKENS}, TEXT).make_feed("Zoe\u0308").arrays["ids"].tobytes()
        == "Zoë".encode()
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [("a\0b", "holds a NUL"), ("a [SEP] b", r"'\[SEP\]', which the model does not")],
)
def test_feed_when_the_model_would_make_other_tokens_says_so(monkeypatch, text, said):
    monkeypatch.setitem(TOKENIZER, "added_tokens", [{"content": "[SEP]", "id": 3}])
    with pytest.raises(ValueError, match=said):
        meaning({"ids": TOKENS}, TEXT).make_feed(text)
