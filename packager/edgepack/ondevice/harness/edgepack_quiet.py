"""Wait until others take little of the cores that a number of threads here would run on.

::

    python3 -BIS edgepack_quiet.py THREADS SHARE MOST_S

waits until for a second others take less than this share of the cores, of those that this process
may use, that so many threads run on; but no longer than ``MOST_S``. Then it prints
``{"waited_s": ..., "quiet": ..., "taken": ...}``; meanwhile it says on stderr which share is taken.
Where that cannot be read, it prints why, and does not wait.

Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

if __package__:
    from . import edgepack_other_work as other_work
    from . import edgepack_sysfs as sysfs
else:  # a bundle's, whose folder is not on the path with -I
    sys.path.append(str(Path(__file__).resolve().parent))
    import edgepack_other_work as other_work  # type: ignore[import-not-found,no-redef]
    import edgepack_sysfs as sysfs  # type: ignore[import-not-found,no-redef]

BUSY = "edgepack-busy "
LOOK_S, SAY_S = 1.0, 5.0
"""Ticks of processor time are of 10 ms, so a look of a second is right to one per cent."""


def wait_for_quiet(
    threads: int, most_share: float, most_s: float, root: Path = sysfs.ROOT
) -> sysfs.Json:
    """Wait until others take less than a share of the threads' cores; return how long it took."""
    first_s = said_s = None
    while True:
        work = other_work.OtherWork(root=root)
        time.sleep(LOOK_S)
        found = work.measure()
        if "kind" in found:
            return {"waited_s": 0.0, "quiet": found, "taken": found}
        taken = compute_taken_share(found, threads)
        now_s = time.monotonic()
        first_s = now_s if first_s is None else first_s
        waited_s = round(now_s - first_s, 3)
        if taken < most_share or waited_s + LOOK_S >= most_s:
            return {"waited_s": waited_s, "quiet": taken < most_share, "taken": round(taken, 3)}
        if said_s is None or now_s - said_s >= SAY_S:
            said_s = now_s
            print(f"{BUSY}{taken:.2f}", file=sys.stderr, flush=True)


def compute_taken_share(found: sysfs.Json, threads: int) -> float:
    """Return which part others took of the cores that threads run on, as edgepack's verdict does.

    Work of others on cores that the threads leave free competes with nobody.
    """
    wanted = min(threads, found["cores"])
    competing = max(0.0, found["other_cores"] - (found["cores"] - wanted))
    return float(min(1.0, (competing + found["stolen_cores"]) / wanted))


if __name__ == "__main__":
    print(json.dumps(wait_for_quiet(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))))
