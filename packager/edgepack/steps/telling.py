"""What goldens tell: how large an error of each output they let pass, and whether it matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edgepack.accuracy import Array, Variation, array_sqnr_db
from edgepack.model.running import Arrays

MARGIN_DB = 6.0
"""Machines differ by as much more than the sessions of one."""
_PASSES = 1 / 3
"""Of an output's deviation over samples: goldens let no error pass that is larger."""
_MATTERS = 1 / 10
"""Of the same: an error that is smaller on every sample changes nothing that matters."""


def variations(found: Iterable[Arrays]) -> dict[str, Variation]:
    """Return how much each output varies over samples."""
    by_output: dict[str, Variation] = {}
    for outputs in found:
        for name, output in outputs.items():
            by_output.setdefault(name, Variation()).add(output)
    return by_output


@dataclass(frozen=True)
class Tolerance:
    """How near outputs have to be to the right ones of a sample."""

    limit_db: float
    """The SQNR of every output."""
    variations: Mapping[str, Variation]
    noise_db: Mapping[str, float]
    """Each output's SQNR between sessions that are both right."""

    def extra_db(self, name: str, output: Array) -> float:
        """Return how much more than the limit an output has to reach, in tenths of a dB.

        So much that an error is less than a third of the output's deviation over samples, but not
        more than right outputs reach.
        """
        if output.dtype.kind != "f":
            return 0.0
        wanted = self.variations[name].sqnr_db(output, _PASSES)
        return max(0.0, round(min(wanted, self.noise_db[name] - MARGIN_DB) - self.limit_db, 1))

    def tells(self, right: Mapping[str, Array], found: Mapping[str, Array]) -> bool:
        """Tell whether outputs are refused where others are right."""
        return any(
            array_sqnr_db(output, found[name]) < self.limit_db + self.extra_db(name, output)
            for name, output in right.items()
        )

    def matters(self, right: Mapping[str, Array], found: Mapping[str, Array]) -> bool:
        """Tell whether outputs are wrong by more than noise and a tenth of the deviation."""
        return any(
            array_sqnr_db(output, found[name]) < self._mattering_db(name, output)
            for name, output in right.items()
        )

    def _mattering_db(self, name: str, output: Array) -> float:
        if output.dtype.kind != "f" or not self.variations[name].tells:
            return self.limit_db
        noticed = self.variations[name].sqnr_db(output, _MATTERS)
        return min(noticed, self.noise_db[name] - MARGIN_DB)
