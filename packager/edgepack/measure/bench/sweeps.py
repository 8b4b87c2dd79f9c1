"""Chooses the sizes of inputs that a sweep measures. Pure: the device finds whether they work."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from edgepack.bundle.manifest import Manifest
from edgepack.errors import UsageError, suggest_nearest

Shapes = dict[str, list[int]]
"""By input."""

UNNAMED = "?"
"""A dimension of any size without a name."""


def make_sweep_points(
    manifest: Manifest, batches: Sequence[int], shapes: Sequence[str]
) -> list[Shapes]:
    """Return the shapes of all inputs at each point: the batches, then the shapes.

    Args:
        manifest: The bundle's.
        batches: Sizes of the first input's first dimension, and of every other input's dimension
            that has its name; where it is fixed, or has no name, of every input's first dimension
            of the same size.
        shapes: ``NAME=1x3x320x320``; several inputs are joined by commas. A dimension of another
            input that has the name of one that is given here takes its size.

    Raises:
        UsageError: A batch is not above 0; a shape has another form, or names no input, or has
            another number of dimensions.
    """
    golden = find_golden_shapes(manifest)
    points = [_set_batch(manifest, golden, batch) for batch in batches]
    return points + [_set_shapes(manifest, golden, text) for text in shapes]


def require_bound(bound_ms: float | None, batches: Sequence[int]) -> float | None:
    """Return the bound on the latency of the best batch, if there are batches to choose from.

    Raises:
        UsageError: There are none, or it is no time.
    """
    if bound_ms is not None and not (batches and 0 < bound_ms < math.inf):
        raise UsageError(
            f"{bound_ms:g} ms bounds the latency of no batch",
            hint="give batches and a time above 0: --batch 1 --batch 4 --latency-bound-ms 50",
            where="--latency-bound-ms",
        )
    return bound_ms


def find_golden_shapes(manifest: Manifest) -> Shapes:
    """Return the shapes of the first golden's inputs."""
    return {tensor.name: list(tensor.shape) for tensor in manifest.goldens[0].inputs}


def find_batch(manifest: Manifest, point: Mapping[str, Sequence[int]]) -> int:
    """Return the size of the first input's first dimension; 1 if it is one picture or text."""
    name = manifest.inputs[0].name
    shape = point[name]
    return max(1, shape[0]) if shape and name not in manifest.samples else 1


def _set_batch(manifest: Manifest, golden: Shapes, batch: int) -> Shapes:
    if batch < 1:
        raise UsageError(f"a batch has {batch} samples", hint="give 1 or more", where="--batch")
    first = manifest.inputs[0]
    if not first.shape:
        raise UsageError(
            f"the input {first.name!r} is a single number, which has no batch",
            hint="leave --batch out",
            where="--batch",
        )
    if first.name in manifest.samples:
        raise UsageError(
            f"the input {first.name!r} is one picture or text, which has no batch",
            hint="leave --batch out; other sizes are tried with --shape",
            where="--batch",
        )
    dim, size = first.shape[0], golden[first.name][0]
    if isinstance(dim, str) and dim != UNNAMED:
        return _resize_shapes(manifest, golden, {dim: batch})
    return {
        name: [batch, *shape[1:]] if shape and shape[0] == size else shape
        for name, shape in golden.items()
    }


def _set_shapes(manifest: Manifest, golden: Shapes, text: str) -> Shapes:
    dims = {spec.name: spec.shape for spec in manifest.inputs}
    given: Shapes = {}
    for part in text.split(","):
        found = re.fullmatch(r"(.+)=(\d{1,9}(?:x\d{1,9})*)", part)
        if not found:
            raise UsageError(
                f"{part!r} is no shape", hint="write it as images=1x3x320x320", where="--shape"
            )
        name, shape = found[1], [int(size) for size in found[2].split("x")]
        if name not in golden:
            raise UsageError(
                f"the model has no input {name!r}",
                hint=suggest_nearest(name, golden),
                where="--shape",
            )
        if len(shape) != len(dims[name]) or 0 in shape:
            raise UsageError(
                f"the input {name!r} has the dimensions {list(dims[name])}, not {shape}",
                hint="give a size above 0 for each of them",
                where="--shape",
            )
        given[name] = shape
    sizes = {
        dim: size
        for name, shape in given.items()
        for dim, size in zip(dims[name], shape, strict=True)
        if isinstance(dim, str) and dim != UNNAMED
    }
    return {**_resize_shapes(manifest, golden, sizes), **given}


def _resize_shapes(manifest: Manifest, golden: Shapes, sizes: Mapping[str, int]) -> Shapes:
    """Return the golden shapes with other sizes of named dimensions."""
    return {
        spec.name: [
            sizes.get(dim, size) if isinstance(dim, str) else size
            for dim, size in zip(spec.shape, golden[spec.name], strict=True)
        ]
        for spec in manifest.inputs
        if spec.name in golden
    }
