"""Wait until others take little of the cores that this process may run on.

::

    python3 -BIS edgepack_quiet.py CORES MOST_S

waits until for a second others take no more than so many cores, but no longer than ``MOST_S``. Then
it prints ``{"waited_s": ..., "quiet": ..., "taken": ...}``; meanwhile it says on stderr how many
are taken. Where that cannot be read, it prints why, and does not wait.

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
LOOK_S = 1.0
"""Ticks of processor time are of 10 ms, so a look of this length is right to one per cent."""


def wait_for_quiet(most_cores: float, most_s: float, root: Path = sysfs.ROOT) -> sysfs.Json:
    """Wait until others take no more than some cores; return how long that took."""
    first_s = None
    while True:
        work = other_work.OtherWork(root=root)
        time.sleep(LOOK_S)
        found = work.measure()
        if "kind" in found:
            return {"waited_s": 0.0, "quiet": found, "taken": found}
        taken = found["other_cores"] + found["stolen_cores"]
        now_s = time.monotonic()
        first_s = now_s if first_s is None else first_s
        waited_s = round(now_s - first_s, 3)
        if taken <= most_cores or waited_s + LOOK_S >= most_s:
            return {"waited_s": waited_s, "quiet": taken <= most_cores, "taken": round(taken, 3)}
        print(f"{BUSY}{taken:.2f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(json.dumps(wait_for_quiet(float(sys.argv[1]), float(sys.argv[2]))))
