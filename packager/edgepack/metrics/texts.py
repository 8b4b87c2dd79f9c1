"""Texts: how many symbols they differ by from fp32's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.base import Arrays, Found, Nothing
from edgepack.metrics.sequences import Tokens, compute_kept
from edgepack.ondevice.runtime.edgepack_ctc import read_symbols


class Texts(Tokens):
    """One less the edit distance to fp32's text over the longer one's length."""

    name = "symbols"
    about = "the share of fp32's symbols that are kept: 1 less the edit distance over the length"
    things = "symbols"

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__()
        self.description = description

    def add(self, reference: Array, output: Array, feed: Arrays) -> None:
        """Add one sample's steps, as the description has them."""
        del feed
        ours = self._read(reference)
        self.references.append(ours)
        is_like = output.shape == reference.shape
        self.values.append(compute_kept(ours, self._read(output)) if is_like else 0.0)

    def _read(self, output: Array) -> Array:
        return np.array(read_symbols(output, self.description), np.int64)

    def compute_value(self) -> Found | Nothing:
        """Return the mean, with the share of the texts that are fp32's."""
        if not any(len(each) for each in self.references):
            return Nothing("fp32 reads no symbol in any sample")
        found = super().compute_value()
        if isinstance(found, Found):
            exact = float(np.mean([value == 1 for value in found.values]))
            return Found(found.values, others={"equal texts": exact}, no_better=found.no_better)
        return found
