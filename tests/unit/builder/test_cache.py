"""What an entry of the cache is of."""

from __future__ import annotations

import pytest
from edgepack.builder import cache, cluster_worker
from edgepack.steps.recipes.int4_weight import Int4Weight

from tests.support.doubles.cluster_steps import Held


@pytest.mark.parametrize(("step", "same"), [(Int4Weight(10), False), (Held("x"), True)])
def test_key_when_the_processor_has_other_vectors_is_another_where_that_counts(
    step, same, monkeypatch
):
    keys = set()
    for vectors in ("avx2 fma", "avx2 avx512f fma"):
        monkeypatch.setattr(cache, "find_vectors", lambda vectors=vectors: vectors)
        keys.add(cache.make_step_key(step, {"model": "1"}))
    assert (len(keys) == 1) is same


def test_worker_when_its_processor_has_other_vectors_is_not_like_this_machine(monkeypatch):
    ours = cluster_worker.find_identity()
    monkeypatch.setattr(cluster_worker, "find_vectors", lambda: "others")
    theirs = cluster_worker.find_identity()
    assert {name for name in ours if ours[name] != theirs[name]} == {"vector instructions"}
