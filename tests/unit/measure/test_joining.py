"""Which samples can be joined to batches, by the manifest alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from edgepack.bundle.manifest import Bucket, Manifest
from edgepack.bundle.reading import load_bundle
from edgepack.devices.harness import JOINED
from edgepack.errors import UsageError
from edgepack.measure.bench.joining import explain_unjoined, require_joinable
from edgepack.measure.bench.sweeps import require_bound
from edgepack.ondevice.runtime import edgepack_batches as batches
from edgepack.ondevice.runtime import edgepack_shapes as shapes

from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.unit.measure.test_sweeps import with_inputs


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder: Path = tmp_path_factory.mktemp("bundle")
    return load_bundle(write_tiny_bundle(folder / "tiny")).manifest


def with_sizes(manifest: Manifest, sizes: Sequence[int], *, exact: bool, only: int = 2) -> Manifest:
    buckets = [Bucket(dims={"n": size}, model="x", model_sha256="x") for size in sizes]
    changed = {"buckets": buckets, "exact": exact}
    variants = [
        entry.model_copy(update=changed) if number < only else entry
        for number, entry in enumerate(manifest.variants)
    ]
    return manifest.model_copy(update={"variants": variants})


def test_samples_when_the_batch_is_free_may_be_joined(manifest: Manifest) -> None:
    require_joinable(manifest, None, 64)
    for sizes, exact in (((1, 4), False), ((1, 2, 3, 4), True)):
        require_joinable(with_sizes(manifest, sizes, exact=exact), None, 4)


def test_samples_when_they_cannot_be_joined_are_refused_with_the_reason(manifest: Manifest) -> None:
    fixed = with_inputs(manifest, {"x": ([1, 3, 8], [1, 3, 8])})
    older = [file for file in manifest.files if file.path != JOINED]
    outputs = [manifest.outputs[0].model_copy(update={"shape": ["k", 4, 8, 8]})]
    cases = {
        "the output 'y' is ['k', 4, 8, 8]": manifest.model_copy(update={"outputs": outputs}),
        "the input 'x' has the fixed shape [1, 3, 8]": fixed,
        "the model has a state": manifest.model_copy(update={"state": {"y": "x"}}),
        "build it again": manifest.model_copy(update={"files": older}),
        "it has models for batches of 1, 2": with_sizes(manifest, (1, 2), exact=False),
        "it takes batches of just 1, 2, 4": with_sizes(manifest, (1, 2, 4), exact=True),
    }
    for said, changed in cases.items():
        with pytest.raises(UsageError) as caught:
            require_joinable(changed, None, 4)
        assert said in caught.value.problem
        assert "--max-batch" in caught.value.hint
        require_joinable(changed, None, 1)


def test_variant_that_cannot_be_joined_is_named_where_another_can(manifest: Manifest) -> None:
    first = manifest.variants[0]
    mixed = with_sizes(manifest, (1,), exact=False, only=1)
    require_joinable(mixed, None, 4)
    assert "for batches of 1" in explain_unjoined(mixed, mixed.variants[0], 4)
    with pytest.raises(UsageError, match="for batches of 1"):
        require_joinable(mixed, first.id, 4)


def test_bound_without_batches_is_refused() -> None:
    assert require_bound(None, []) is None
    assert require_bound(50, [1]) == 50
    for bound_ms, sizes in ((50, []), (0, [1]), (float("nan"), [1]), (float("inf"), [1])):
        with pytest.raises(UsageError, match="bounds the latency of no batch"):
            require_bound(bound_ms, sizes)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        (("n", 4), 0),
        ((4, "n"), 1),
        (("n", "s", 4), 0),
        (("k", 6), None),  # objects, of all samples
        (("?", 6), None),
        (("n", "k", 6), None),  # as many objects as the sample with the most has
        (("n", "?", 6), None),
        (("n", "n"), None),
        ((1, 4), None),
    ],
)
def test_batch_in_an_output_is_the_dimension_of_its_name_beside_known_sizes(
    shape: tuple[int | str, ...], axis: int | None
) -> None:
    inputs = [shapes.TensorSpec("x", "float32", ("n", 3, "s"))]
    output = shapes.TensorSpec("y", "float32", shape)
    assert batches.find_output_axes(inputs, [output]).get("y") == axis
    assert bool(batches.explain_unsplit(inputs, [output])) == (axis is None)


def test_batch_without_a_name_or_twice_in_an_input_is_no_batch() -> None:
    unnamed = [shapes.TensorSpec("x", "float32", ("?", 3))]
    output = shapes.TensorSpec("y", "float32", ("?", 3))
    assert batches.find_output_axes(unnamed, [output]) == {}
    twice = [shapes.TensorSpec("x", "float32", ("n", "n"))]
    assert batches.find_axes(twice, {"x": (1, 1)}) == {}
    assert "with 'n' twice" in batches.explain_unsplit(twice, [output._replace(shape=("n", 3))])
