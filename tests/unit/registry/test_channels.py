"""Which version is the newer one, and what an entry looks like."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from edgepack.registry.channels import ChannelEntry, compare_versions

IN_ORDER = (
    "0.9",
    "1.0.0-alpha",
    "1.0.0-rc2",
    "1.0.0-rc10",
    "1.0.0",
    "1.0.0+5",
    "1.0.1",
    "1.10",
    "2",
)


def test_versions_when_they_are_compared_are_in_order():
    for older, newer in pairwise(IN_ORDER):
        assert compare_versions(older, newer) < 0, (older, newer)
        assert compare_versions(newer, older) > 0, (older, newer)


def test_versions_when_a_number_is_very_long_are_in_order():
    assert compare_versions("9" * 5000, "1" + "0" * 5000) < 0


@pytest.mark.parametrize(("one", "other"), [("1", "1.0.0"), ("1.0", "1-0"), ("01", "1")])
def test_versions_when_only_zeros_are_missing_are_the_same(one: str, other: str):
    assert compare_versions(one, other) == 0


def test_entry_when_it_is_encoded_is_what_devices_read():
    entry = ChannelEntry(
        channel="stable", project="p", target="t", release="0" * 64, sequence=7, downgrade=False
    )
    assert json.loads(entry.encode()) == {
        "schema_version": 1,
        "channel": "stable",
        "project": "p",
        "target": "t",
        "release": "0" * 64,
        "sequence": 7,
        "downgrade": False,
    }
