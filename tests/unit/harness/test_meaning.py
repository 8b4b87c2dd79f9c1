"""What the loader feeds for pictures and texts, where bundles differ."""

from __future__ import annotations

import json

import numpy as np
import pytest
from edgepack.harness.edgepack_meaning import Meaning
from edgepack.harness.edgepack_shapes import InputShapes, TensorSpec
from edgepack.project import InputDescription

VOCAB = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "fox": 4}
TOKENIZER = {
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": VOCAB,
    },
}
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
    feed = described.feed(pixels)
    assert feed.arrays["photo"] is pixels
    assert (feed.place.width, feed.place.height, feed.place.top) == (8, 4, 2)


def test_feed_when_the_model_takes_float16_gives_that():
    described = meaning({"photo": IMAGE}, ("photo", "float16", (1, 3, 8, 8)))
    assert described.feed(np.zeros((6, 12, 3), np.uint8)).arrays["photo"].dtype == np.float16


def test_feed_when_the_model_decodes_files_gives_their_bytes():
    described = meaning({"photo": IMAGE}, ("photo", "uint8", ("image_bytes",)))
    for file in (b"\xff\xd8\xff\xe0", np.array([255, 216, 255, 224], np.uint8)):
        feed = described.feed(file)
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
        described.feed(given)


def test_feed_when_there_are_two_pictures_places_neither():
    two = meaning(
        {"a": IMAGE, "b": IMAGE},
        ("a", "float32", (1, 3, 8, 8)),
        ("b", "float32", (1, 3, 8, 8)),
    )
    pixels = np.zeros((6, 12, 3), np.uint8)
    feed = two.feed({"a": pixels, "b": pixels})
    assert feed.place is None
    assert feed.arrays["b"].shape == (1, 3, 8, 8)


@pytest.mark.parametrize(("axis", "ids"), [(5, [2, 4, 3, 0, 0]), ("sequence", [2, 4, 3])])
def test_feed_when_the_axis_is_fixed_is_filled_up(axis, ids):
    described = meaning(
        {"ids": TOKENS}, ("ids", "int32", (1, axis)), ("input_mask", "int64", (1, axis))
    )
    feed = described.feed("Fox")
    assert described.needed == ["ids"]
    assert feed.arrays["ids"].dtype == np.int32
    assert feed.arrays["ids"].tolist() == [ids]
    assert feed.arrays["input_mask"].tolist() == [[1, 1, 1, 0, 0][: len(ids)]]
    assert set(feed.arrays) == {"ids", "input_mask"}


def test_feed_when_what_is_made_of_a_text_is_given_too_refuses_it():
    described = meaning({"ids": TOKENS}, ("ids", "int64", (1, 5)), ("input_mask", "int64", (1, 5)))
    with pytest.raises(ValueError, match="'input_mask' is made of the text: leave it out"):
        described.feed({"ids": "fox", "input_mask": np.ones((1, 5), np.int64)})
