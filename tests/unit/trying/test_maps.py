from __future__ import annotations

import numpy as np
import pytest
from edgepack.trying.maps import (
    AGREES,
    DIFFERS,
    choose_colours,
    draw_picture,
    find_kind,
    make_overlay,
)

SIZE = (64, 96)


def output(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 1, shape).astype(dtype)


@pytest.mark.parametrize(
    ("given", "size", "kind"),
    [
        (output(1, 3, 64, 96), SIZE, "picture"),
        (output(1, 64, 96, 3), SIZE, "picture"),
        (output(1, 3, 64, 64), None, "picture"),
        (output(1, 1, 128, 192), SIZE, "picture"),
        (output(1, 1, 64, 96), SIZE, "heat"),
        (output(1, 64, 96), SIZE, "heat"),
        (output(1, 21, 64, 96), SIZE, "classes"),
        (output(1, 16, 24, 21), SIZE, "classes"),
        (output(1, 64, 96, dtype=np.int64), SIZE, "classes"),
        (output(1, 21, 8, 12), SIZE, None),
        (output(1, 21, 64, 64), SIZE, None),
        (output(1, 1600, 80), SIZE, None),
        (output(1, 84, 2100), SIZE, None),
        (output(2, 3, 64, 96), SIZE, None),
        (output(1, 1000), SIZE, None),
        (output(1, 3, 2, 4), SIZE, None),
        (np.float32(1), SIZE, None),
    ],
)
def test_output_when_looked_at_is_told_by_its_shape(given, size, kind):
    found = find_kind(np.asarray(given), size)
    assert (found.kind if found else None) == kind


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [(0, 1, (0, 1)), (-1, 1, (-1, 1)), (0, 250, (0, 255)), (-3, 7, (-3, 7)), (0.2, 0.9, (0, 1))],
)
def test_picture_when_shown_has_the_range_that_pictures_have(low, high, shown):
    given = np.linspace(low, high, 3 * 16 * 16, dtype=np.float32).reshape(1, 3, 16, 16)
    kind = find_kind(given, None)
    assert (kind.low, kind.high) == pytest.approx(shown)
    pixels = draw_picture(given, kind)
    expected = (given[0].transpose(1, 2, 0) - shown[0]) / (shown[1] - shown[0]) * 255
    assert np.abs(pixels - np.clip(expected, 0, 255)).max() <= 0.5 + 1e-3


def test_picture_when_a_few_values_are_far_off_is_not_darker_for_it():
    given = output(1, 3, 40, 40)
    given[0, 0, 0, :5] = 30
    kind = find_kind(given, None)
    assert (kind.low, kind.high) == (0, 1)
    assert draw_picture(given, kind)[0, 0, 0] == 255


def test_classes_when_laid_over_cover_more_where_they_are_not_the_references():
    reference = np.zeros((1, 5, 20, 20), np.float32)
    reference[0, 4] = 1
    other = reference.copy()
    other[0, 1, :, :6] = 2
    layer = make_overlay(other, find_kind(reference, (20, 20)), reference)
    assert layer.shape == (20, 20, 4)
    assert set(layer[:, :6, 3].ravel()) == {DIFFERS}
    assert set(layer[:, 6:, 3].ravel()) == {AGREES}
    colours = choose_colours(np.array([1, 4]))
    assert (layer[:, :6, :3] == colours[0]).all()
    assert (layer[:, 6:, :3] == colours[1]).all()


def test_heat_when_laid_over_is_lighter_and_covers_more_where_there_is_more():
    given = np.linspace(0, 1, 400, dtype=np.float32).reshape(1, 1, 20, 20)
    layer = make_overlay(given, find_kind(given, (20, 20)), given).reshape(-1, 4).astype(int)
    assert (np.diff(layer[:, 3]) >= 0).all()
    assert (np.diff(layer[:, :3].sum(1)) >= 0).all()
    assert layer[-1].tolist()[:3] == [240, 228, 66]


def test_values_when_not_finite_are_shown_as_nothing():
    given = output(1, 1, 20, 20)
    given[0, 0, 0, 0] = np.nan
    assert make_overlay(given, find_kind(given, (20, 20)), given)[0, 0, :3].tolist() == [0, 0, 0]
