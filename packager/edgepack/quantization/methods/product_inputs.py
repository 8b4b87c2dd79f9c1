"""The inputs of a product, sampled from the float network and from the quantized one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgepack.base.arrays import Array
from edgepack.quantization.methods.layers import Product

MOST_VALUES = 1 << 23
"""The most inputs of one product that are used, over all positions, groups and taps: 32 MiB."""
_BATCH_BYTES = 16 << 20
"""Samples are processed together as long as their activations are no larger than this."""
_ENOUGH_POSITIONS = 4096
_POSITIONS_PER_TAP = 8


@dataclass(frozen=True)
class ProductInput:
    """Where the input of a product in a QDQ model comes from."""

    tensor: str
    """Integers, or floats where the input has no Q/DQ pair."""
    scale: Array | np.float32
    zero_point: Array | np.float32

    def dequantize(self, found: Array) -> Array:
        """Return what is read, float32."""
        values = found.astype(np.float32)
        values -= self.zero_point
        values *= self.scale
        return values


@dataclass(frozen=True)
class ProductInputs:
    """Patches of one product's inputs, at the same positions."""

    exact: Array
    """(groups, positions, taps) float32, of the float network."""
    quantized: Array
    """The same of the quantized network."""
    owners: Array
    """(positions,): which sample each position is of, in ascending order."""
    samples: int
    """How many there are."""

    @property
    def can_be_fitted_to(self) -> bool:
        """Whether there are some, and all are finite."""
        found = (self.exact, self.quantized)
        return bool(self.exact.shape[1]) and all(bool(np.isfinite(x).all()) for x in found)

    @property
    def halves(self) -> list[slice]:
        """The positions of the first half of the samples and of the second; not empty ones.

        Neighbouring samples may be alike, so they must not judge each other.
        """
        middle = int(np.searchsorted(2 * self.owners, self.samples))
        return [part for part in (slice(middle), slice(middle, None)) if len(self.owners[part])]


def sample_product_inputs(
    stops: Iterable[tuple[Array, Array]],
    source: ProductInput,
    product: Product,
    shape: Sequence[int],
    samples: int,
) -> ProductInputs:
    """Return patches of both networks, spread over all samples.

    Args:
        stops: Of each sample the input in the float network, and the tensor of ``source``.
        source: Where the input comes from in the quantized network.
        product: What takes the input.
        shape: (groups, outputs, taps) of its weights.
        samples: How many there are.
    """
    groups, _, taps = shape
    wanted = max(_ENOUGH_POSITIONS, _POSITIONS_PER_TAP * taps)
    wanted = max(1, min(wanted, MOST_VALUES // (groups * taps)))
    random = np.random.default_rng(0)
    nothing = np.zeros((groups, 0, taps), np.float32)
    parts = [(nothing, nothing, np.zeros(0, np.int64))]
    for batch in _split_batches(stops):
        owners = [sample.index for sample in batch]
        each = product.count_positions(batch[0].exact.shape)
        dues = [(k + 1) * wanted // samples - k * wanted // samples for k in owners]
        places = [_spread_positions(each, due, random) for due in dues]
        at = np.concatenate([place + k * each for k, place in enumerate(places)])
        # One after the other: each is as large as the tensor, over all samples of the batch.
        exact = product.take_patches(_join_parts([sample.exact for sample in batch]), at)
        values = source.dequantize(_join_parts([sample.quantized for sample in batch]))
        quantized = product.take_patches(values, at)
        del values
        whose = np.repeat(owners, [len(place) for place in places])
        parts.append((exact, quantized, whose))
    exact, quantized, whose = (
        np.concatenate(part, axis=min(part[0].ndim - 1, 1)) for part in zip(*parts, strict=True)
    )
    return ProductInputs(exact, quantized, whose, samples)


@dataclass(frozen=True)
class _Sample:
    """The input of a product for one sample."""

    index: int
    exact: Array
    """Of the float network."""
    quantized: Array
    """Of the QDQ model, as :class:`ProductInput` says."""


def _join_parts(parts: Sequence[Array]) -> Array:
    """Return arrays joined along their first axis; a single one is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _split_batches(stops: Iterable[tuple[Array, Array]]) -> Iterator[list[_Sample]]:
    """Yield samples together whose first axes can be joined: they have the same shape.

    A sample whose tensor has another shape in the quantized network, because the values of another
    tensor determine it, cannot be compared and is left out.
    """
    batch: list[_Sample] = []
    for index, (first, second) in enumerate(stops):
        exact, quantized = np.atleast_2d(first), np.atleast_2d(second)
        if exact.shape != quantized.shape:
            continue
        full = len(batch) * exact.nbytes > _BATCH_BYTES
        if batch and (full or batch[0].exact.shape != exact.shape):
            yield batch
            batch = []
        batch.append(_Sample(index, exact, quantized))
    if batch:
        yield batch


def _spread_positions(count: int, due: int, random: np.random.Generator) -> Array:
    """Return so many positions of ``count``, in order: one at random out of each equal part."""
    if count <= due:
        return np.arange(count)
    parts = np.arange(due) + random.random(due)
    return np.minimum((parts * count / due).astype(np.int64), count - 1)
