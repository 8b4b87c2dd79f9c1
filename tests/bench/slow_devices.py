"""How often ``runs changes`` names a device that is not slow, and how often one that is.

Simulated: what docs/history.md says of farms is this table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from edgepack.results.store import units

from tests.bench.measuring import Table
from tests.support.reports.example_history import farm_logs

FARMS, NIGHTS = 300, 40
FOUND_IN = 60
NOISES: dict[str, dict[str, float]] = {
    "nights and devices 2 % apart, runs 1.5 %": {},
    "devices 5 % apart": {"between": 0.05},
    "runs 3 %": {"within": 0.03},
    "runs 5 %": {"within": 0.05},
    "one device in ten three times as noisy": {"uneven": 3.0},
    "one run in twenty slowed by 10 % on average": {"spikes": 0.05},
}
CASES = (
    # devices, nights, of which slow, by which factor
    (30, 30, 3, 1.5),
    (30, 30, 7, 1.5),
    (30, 30, 4, 1.1),
    (30, 30, 7, 1.1),
    (30, 7, 7, 1.5),
    (30, 7, 7, 1.1),
    (10, 30, 7, 1.1),
    (4, 30, 7, 1.5),
    (4, 30, 7, 1.1),
)


def measure() -> Iterator[Table]:
    """Yield the alarms of farms without a slow device, and what is found in others."""
    rows = []
    for name, noise in NOISES.items():
        alarms = 0
        for seed in range(FARMS):
            logs = farm_logs(seed, 30, NIGHTS, **noise)
            alarms += any(_find_slow(logs[:, :nights]) for nights in range(3, NIGHTS + 1))
        rows.append((name, f"{100 * alarms / FARMS:.1f} %"))
    title = f"farms of 30 devices without a slow one, looked at after each of {NIGHTS} nights"
    yield Table(title, ("noise", f"of {FARMS} farms that ever raised an alarm"), tuple(rows))
    found = []
    for devices, nights, slow, factor in CASES:
        right = wrong = 0
        for seed in range(FOUND_IN):
            logs = farm_logs(seed, devices, nights)
            logs[seed % devices, -slow:] += math.log(factor)
            named = _find_slow(logs)
            right += seed % devices in named
            wrong += bool(named.keys() - {seed % devices})
        share = (f"{100 * count / FOUND_IN:.0f} %" for count in (right, wrong))
        found.append((str(devices), f"{slow} of {nights}", f"{factor - 1:.0%}", *share))
    heads = ("devices", "slow nights", "slower by", f"found in {FOUND_IN} farms", "others named")
    yield Table("one slow device", heads, tuple(found))


def _find_slow(logs: np.ndarray) -> dict[int, object]:
    rows = units._divide_by_peers(logs)
    return dict(units._find_slow([row[~np.isnan(row)] for row in rows]))
