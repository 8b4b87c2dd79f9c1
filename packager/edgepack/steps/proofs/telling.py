"""Finds how large an error of each output the goldens let pass, and whether it matters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from edgepack.base.arrays import Array
from edgepack.metrics.accuracy import Variation, array_sqnr_db
from edgepack.model.running import Arrays
from edgepack.steps.proofs.quantities import Part, Quantities, split_by_part

MARGIN_DB = 6.0
"""Machines differ by as much more than the sessions of one."""
FLOOR_DB = 6.0
"""No golden test requires less: an output of zeros alone is 0 dB from any other."""
_PASSES = 1 / 5
"""Of an output's deviation over samples: goldens let no error pass that is larger."""
_MATTERS = 1 / 10
"""Of the same: an error that is smaller on every sample changes nothing that matters."""
Name = TypeVar("Name", str, Part)


def measure_variations(found: Iterable[Mapping[Name, Array]]) -> dict[Name, Variation]:
    """Return how much each output, or each part of one, varies over samples."""
    by_name: dict[Name, Variation] = {}
    for outputs in found:
        for name, output in outputs.items():
            by_name.setdefault(name, Variation()).add(output)
    return by_name


@dataclass(frozen=True)
class Tolerance:
    """How near outputs have to be to the right ones of a sample, each quantity by itself."""

    limit_db: float
    """The SQNR of every output, unless it has its own."""
    variations: Mapping[Part, Variation]
    noise_db: Mapping[Part, float]
    """Each part's SQNR between sessions that are both right."""
    several: Mapping[str, Quantities] = field(default_factory=dict)
    """Of outputs with more than one quantity."""

    def compute_extra_db(self, name: str, output: Array) -> list[float]:
        """Return how much more than the limit an output has to reach, in tenths of a dB.

        So much that an error is less than a fifth of the output's deviation over samples, but not
        more than right outputs reach, and 6 dB at least. One of several quantities may reach less
        than the limit, where right outputs do.

        Args:
            name: The output's.
            output: What is kept of it in a sample.

        Returns:
            A number for each quantity.
        """
        parts = split_by_part({name: output}, self.several)
        return [round(self._compute_needed_db(*part) - self.limit_db, 1) for part in parts.items()]

    def can_tell(self, right: Arrays, found: Arrays) -> bool:
        """Return whether the goldens refuse outputs where others are right."""
        return any(
            array_sqnr_db(one, other) < self._compute_needed_db(part, one)
            for part, one, other in self._pair_parts(right, found)
        )

    def is_wrong(self, right: Arrays, found: Arrays) -> bool:
        """Return whether outputs are wrong by more than noise and a tenth of the deviation."""
        return any(
            array_sqnr_db(one, other) < self._compute_wrong_db(part, one)
            for part, one, other in self._pair_parts(right, found)
        )

    def _pair_parts(self, right: Arrays, found: Arrays) -> Iterator[tuple[Part, Array, Array]]:
        others = split_by_part({name: found[name] for name in right}, self.several)
        for part, one in split_by_part(right, self.several).items():
            yield part, one, others[part]

    def _compute_needed_db(self, part: Part, output: Array) -> float:
        if output.dtype.kind != "f":
            return self.limit_db
        wanted = max(self.limit_db, self.variations[part].sqnr_db(output, _PASSES))
        return max(FLOOR_DB, min(wanted, self.noise_db[part] - MARGIN_DB))

    def _compute_wrong_db(self, part: Part, output: Array) -> float:
        if output.dtype.kind != "f" or not self.variations[part].tells:
            return self.limit_db
        noticed = self.variations[part].sqnr_db(output, _MATTERS)
        return min(noticed, self.noise_db[part] - MARGIN_DB)
