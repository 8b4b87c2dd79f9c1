"""How often ``edgepack compare`` is wrong where a machine's noise is known: A/A and slowdowns.

::

    python -m tests.bench.compare_planted [COMPARISONS]

As ``compare_real``, with real process runs of the real harness in real pairs on this machine, but
what makes machines noisy is planted, because no machine has just the noise that is asked about:
each inference is waited out until it has taken a time that the process draws when it starts, with
a known deviation between processes, and that rises by 6 % from the start of a comparison as a
device warms up. The machine's own noise comes on top, where an inference takes longer than the time
that was drawn for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.compare_real import Case, host_bundle, measured, spinning
from tests.bench.measuring import Table, scratch
from tests.support.reports.tiny_bundle import save_model

COMPARISONS = 4
CASES = {0.015: (0.0, 0.05, 0.08), 0.03: (0.0, 0.08)}
"""By the deviation between process runs, the true slowdowns."""
LATENCY_MS = 2.0
"""Some times what the model takes here, so that the machine's own noise seldom shows."""
DRIFT = 0.06
WARM_UP_S = 15.0
"""After which 63 % of the drift are there."""
DRAWN = """

import math as _math, random as _random

_drawn_ns = {latency_ms} * 1e6 * {slowness} * _math.exp(_random.gauss(0, {deviation}))
_began = Path({clock!r}).stat().st_mtime


def _planted_ns(taken_ns):
    warm = 1 - _math.exp(-(time.time() - _began) / {warm_up_s})
    return int(_drawn_ns * (1 + {drift} * warm))
"""


def measure(comparisons: int = COMPARISONS) -> Iterator[Table]:
    """Yield two tables for each deviation: the answers, and the noise."""
    with scratch() as folder:
        cases = [
            case
            for deviation, shares in CASES.items()
            for case in _cases(deviation, shares, folder / str(deviation))
        ]
        yield from measured(cases, comparisons, folder)


def _cases(deviation: float, shares: tuple[float, ...], folder: Path) -> Iterator[Case]:
    plain = host_bundle(folder / "plain", save_model)
    clock = folder / "began"
    bundles = {
        share: spinning(
            plain,
            f"{share:.0%}",
            DRAWN.format(
                latency_ms=LATENCY_MS,
                slowness=1 + share,
                deviation=deviation,
                clock=str(clock),
                warm_up_s=WARM_UP_S,
                drift=DRIFT,
            ),
        )
        for share in shares
    }
    for share in shares:
        name = f"planted deviation {deviation:.1%}, drift {DRIFT:.0%}"
        yield Case(name, share, bundles[0.0], bundles[share], before=clock.touch)


if __name__ == "__main__":
    from tests.bench.run import print_table

    for table in measure(int(sys.argv[1]) if len(sys.argv) > 1 else COMPARISONS):
        print_table(table)
