"""The closeness of tensors, as the loader judges golden outputs."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.reports.tiny_bundle import import_loader


@pytest.fixture(scope="module")
def loader() -> ModuleType:
    return import_loader()


def test_sqnr_is_20_db_when_noise_is_a_tenth(loader: ModuleType) -> None:
    reference = np.array([3.0, -4.0], np.float32)
    assert loader.sqnr_db(reference, reference * np.float32(1.1)) == pytest.approx(20, abs=1e-4)


@pytest.mark.parametrize(
    ("reference", "output", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 200.0),
        ([0.0, 0.0], [0.0, 0.0], 200.0),
        ([0.0, 0.0], [0.0, 0.1], -math.inf),
        ([1.0, math.nan], [1.0, math.nan], 200.0),
        ([1.0, math.nan], [1.0, 2.0], -math.inf),
        ([1.0, 2.0], [1.0, math.nan], -math.inf),
        ([1.0, 2.0], [1.0, math.inf], -math.inf),
        ([1.0, math.inf], [1.0, -math.inf], -math.inf),
        ([1.0, 2.0], [1.0], -math.inf),
        ([], [], 200.0),
    ],
)
def test_sqnr_is_defined_when_values_are_special(
    loader: ModuleType, reference: list[float], output: list[float], expected: float
) -> None:
    assert loader.sqnr_db(np.array(reference), np.array(output)) == expected


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20), st.floats(0.01, 10))
def test_sqnr_is_minus_twenty_log_of_relative_error(values: list[float], error: float) -> None:
    reference = np.array([*values, 50.0])
    found = import_loader().sqnr_db(reference, reference * (1 + error))
    assert found == pytest.approx(-20 * math.log10(error), abs=1e-6)


def test_closeness_allows_one_percent_of_class_indices_to_differ(loader: ModuleType) -> None:
    reference = np.arange(100)
    one_off, two_off = reference.copy(), reference.copy()
    one_off[0], two_off[:2] = 7, 7
    assert loader.closeness_db(reference, one_off) == 200.0
    assert loader.closeness_db(reference, two_off) == -math.inf
    assert loader.closeness_db(reference, reference.astype(np.float32)) == -math.inf


def test_golden_closeness_is_less_by_what_an_output_has_to_be_nearer(loader: ModuleType) -> None:
    golden = np.array([[3.0, -4.0]], np.float32)
    entry = {"shape": [1, 2], "extra_db": 7.5}
    near = loader.golden_closeness_db(entry, golden, golden * np.float32(1.1))
    assert near == pytest.approx(12.5, abs=1e-4)
    assert loader.golden_closeness_db(entry, golden, golden) == 200.0
    assert loader.golden_closeness_db(entry, golden, golden[0]) == -math.inf


def test_golden_closeness_compares_only_the_values_that_are_kept(loader: ModuleType) -> None:
    output = np.arange(10, dtype=np.float32).reshape(2, 5)
    entry = {"shape": [2, 5], "stride": 3}
    kept = np.array([0, 3, 6, 9], np.float32)
    assert loader.golden_closeness_db(entry, kept, output) == 200.0
    between, at = output.copy(), output.copy()
    between[0, 1] = 50
    at[1, 1] = 50
    assert loader.golden_closeness_db(entry, kept, between) == 200.0
    assert loader.golden_closeness_db(entry, kept, at) < 0
    assert loader.golden_closeness_db(entry, kept, output.reshape(5, 2)) == -math.inf


def test_golden_closeness_is_that_of_the_worst_quantity(loader: ModuleType) -> None:
    boxes, scores = np.full((2, 4, 5), 300.0, np.float32), np.full((2, 3, 5), 0.5, np.float32)
    golden = np.concatenate([boxes, scores], axis=1)
    weak = np.concatenate([boxes, scores * np.float32(0.9)], axis=1)
    entry = {"shape": [2, 7, 5]}
    assert loader.golden_closeness_db(entry, golden, weak) > 70
    entry["quantities"] = {"size": 5, "runs": [[4, 0], [3, 1]], "extra_db": [30.0, 4.5]}
    assert loader.golden_closeness_db(entry, golden, weak) == pytest.approx(20 - 4.5, abs=1e-4)
    assert loader.golden_closeness_db(entry, golden, golden) == 200.0
    entry |= {"stride": 3}
    some = golden.reshape(-1)[::3]
    assert loader.golden_closeness_db(entry, some, weak) == pytest.approx(20 - 4.5, abs=1e-4)
    assert loader.golden_closeness_db(entry, some[:-1], weak) == -math.inf
