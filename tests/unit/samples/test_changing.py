"""Inputs unlike the samples: what becomes of pictures, of other floats, and of sizes."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime import edgepack_images
from edgepack.project.inputs import ImageInput, Stretch
from edgepack.samples.changing import WORDS, ChangedValues, find_sizes, make_changed_feeds
from edgepack.samples.sample_set import SampleSet, write_sample_set

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (6, 5, 3)).astype(np.uint8)


def image(**changes):
    return ImageInput(
        resize=Stretch(width=5, height=6), **{"scale": 1 / 255, "mean": MEAN, "std": STD, **changes}
    )


def made(pixels, description):
    """What the model takes for pixels, as devices make it."""
    return edgepack_images.normalize_pixels(pixels, description.model_dump())


def changed(kind, array, description=None):
    values = ChangedValues.of([array], description)
    return values.change_array(kind, array, np.random.default_rng(1))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("order", ["RGB", "BGR"])
@pytest.mark.parametrize("scale", [1 / 255, -1 / 255, 1.0])
def test_picture_when_changed_is_what_the_description_makes_of_changed_pixels(layout, order, scale):
    described = image(layout=layout, order=order, scale=scale)
    tensor = made(PIXELS, described)
    due = {
        "black": np.zeros_like(PIXELS),
        "white": np.full_like(PIXELS, 255),
        "times 0.25": PIXELS / 4,
        "times 2": np.minimum(2.0 * PIXELS, 255),
        "shifted": np.minimum(PIXELS + 25.5, 255),
        "clipped": np.clip(4 * (PIXELS - 127.5) + 127.5, 0, 255),
        "saturated": np.where(PIXELS > 127, 255, 0),
    }
    for kind, pixels in due.items():
        found = changed(kind, tensor, described)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, made(pixels, described), atol=0.02, err_msg=kind)


def test_picture_when_noise_is_added_stays_within_black_and_white():
    described = image()
    found = changed("noise", made(PIXELS, described), described)
    low, high = (made(np.full_like(PIXELS, level), described) for level in (0, 255))
    assert (found >= low - 1e-6).all()
    assert (found <= high + 1e-6).all()
    assert not np.array_equal(found, made(PIXELS, described))


def test_picture_of_uint8_when_changed_stays_one_though_nobody_described_it():
    assert changed("times 2", PIXELS).dtype == np.uint8
    np.testing.assert_array_equal(changed("times 2", PIXELS), np.minimum(PIXELS * 2.0, 255))
    np.testing.assert_array_equal(changed("white", PIXELS), np.full_like(PIXELS, 255))


def test_floats_when_changed_keep_to_what_the_samples_reach_times_the_scale():
    sound = RANDOM.uniform(-0.6, 0.8, (1, 400)).astype(np.float32)
    sound[0, :2] = -0.6, 0.8
    np.testing.assert_array_equal(changed("silence", sound), np.zeros_like(sound))
    np.testing.assert_allclose(changed("times 2", sound), 2 * sound, rtol=1e-6)
    np.testing.assert_allclose(changed("times 0.25", sound), sound / 4, rtol=1e-6)
    np.testing.assert_allclose(changed("clipped", sound), np.clip(4 * sound, -0.6, 0.8), rtol=1e-6)
    assert set(changed("saturated", sound).ravel().tolist()) == {np.float32(-0.6), np.float32(0.8)}
    np.testing.assert_allclose(changed("shifted", sound), sound + 0.14, atol=1e-6)
    noise = changed("noise", sound) - sound
    assert np.std(noise) == pytest.approx(0.14, rel=0.2)


def test_floats_when_both_extremes_recur_never_leave_the_samples_range():
    levels = RANDOM.integers(0, 17, (8, 64)) / np.float32(16)
    np.testing.assert_array_equal(changed("times 2", levels), np.minimum(2 * levels, 1))
    assert changed("noise", levels).max() <= 1


def test_floats_when_only_silence_recurs_are_not_cut_off():
    sound = np.maximum(RANDOM.standard_normal(4000), 0).astype(np.float32)
    np.testing.assert_array_equal(changed("times 2", sound), 2 * sound)


def test_feeds_when_made_leave_inputs_alone_that_are_not_named():
    spec = (
        TensorSpec("sound", "float32", (1, 400)),
        TensorSpec("state", "float32", (1, 2)),
        TensorSpec("ids", "int64", (1, 3)),
    )
    feeds = [
        {
            "sound": RANDOM.standard_normal((1, 400)).astype(np.float32),
            "state": np.full((1, 2), n, np.float32),
            "ids": np.full((1, 3), n, np.int64),
        }
        for n in range(3)
    ]
    found = list(make_changed_feeds(feeds, {"sound": None}, spec, {}))
    kinds = [kind for kind, _ in found]
    assert set(kinds) == set(WORDS) - {"black", "white", "shortest", "longest"}
    # Silence too is made of each, for the state differs.
    assert all(kinds.count(kind) == len(feeds) for kind in kinds)
    for number, (_, feed) in enumerate(found):
        for name in ("state", "ids"):
            assert feed[name] is feeds[number % 3][name]


def test_feeds_when_one_input_is_all_there_is_hold_silence_once():
    feeds = [{"sound": np.full((1, 4), n + 1, np.float32)} for n in range(3)]
    spec = (TensorSpec("sound", "float32", (1, 4)),)
    kinds = [kind for kind, _ in make_changed_feeds(feeds, {"sound": None}, spec, {})]
    assert kinds.count("silence") == 1
    assert kinds.count("times 2") == 3


def test_feeds_when_an_input_is_empty_leave_it_so():
    feed = {"past": np.zeros((1, 0, 4), np.float32)}
    assert list(make_changed_feeds([feed], {"past": None}, (), {})) == []


def test_feeds_when_sizes_are_free_are_cut_and_repeated_in_all_inputs_alike(tmp_path):
    specs = (
        TensorSpec("ids", "int64", ("batch", "length")),
        TensorSpec("mask", "int64", ("batch", "length")),
    )
    samples = [
        (str(n), {"ids": np.arange(n)[None], "mask": np.ones((1, n), np.int64)}) for n in (3, 4, 6)
    ]
    write_sample_set(tmp_path, specs, samples)
    sizes = find_sizes(SampleSet.read(tmp_path), specs)
    assert sizes == {"batch": (1, 1), "length": (3, 6)}
    found = list(make_changed_feeds([samples[1][1]], {}, specs, sizes))
    assert [kind for kind, _ in found] == ["shortest", "longest"]
    assert [feed["ids"].tolist() for _, feed in found] == [[[0, 1, 2]], [[0, 1, 2, 3, 0, 1]]]
    assert [feed["mask"].shape for _, feed in found] == [(1, 3), (1, 6)]


def test_feeds_when_all_samples_have_one_size_have_no_other():
    specs = (TensorSpec("x", "float32", ("n", "length")),)
    feed = {"x": np.ones((1, 4), np.float32)}
    kinds = {kind for kind, _ in make_changed_feeds([feed], {"x": None}, specs, {"length": (4, 4)})}
    assert not kinds & {"shortest", "longest"}
