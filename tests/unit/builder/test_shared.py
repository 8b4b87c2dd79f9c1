"""Where a team's cache is."""

from __future__ import annotations

import sys

import pytest
from edgepack.builder.shared import open_shared_cache
from edgepack.errors import ToolError, UsageError


@pytest.mark.parametrize(
    "url", ["team/builds", "https://team", "s3://", "s3://key:secret@team/x", "s3://team?x=1"]
)
def test_cache_when_the_place_is_none_says_how_to_write_it(url, monkeypatch):
    monkeypatch.setenv("EDGEPACK_CACHE_STORE", url)
    with pytest.raises(UsageError) as raised:
        open_shared_cache()
    assert "s3://bucket/prefix" in raised.value.hint
    assert "secret" not in str(raised.value)


def test_cache_when_its_library_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setenv("EDGEPACK_CACHE_STORE", "s3://team")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ToolError) as raised:
        open_shared_cache()
    assert "edgepack[s3]" in raised.value.hint
