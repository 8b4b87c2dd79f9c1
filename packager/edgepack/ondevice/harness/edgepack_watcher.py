"""Report every two seconds for how long a variant has been tried, until stdin ends.

::

    python3 -IS edgepack_watcher.py VARIANT DOING FOLDER...

Each line goes to stderr and begins with ``edgepack-progress``, then comes a JSON object. DOING is
``building`` if the variant keeps engines in the folders and there were none yet, else ``trying``.

This is a process of its own because onnxruntime may hold Python's lock while it creates a session,
so that no thread can report anything for minutes (1.19.2, 1.23.2 and 1.24.1 do; 1.31.1 does not;
tried 2026-11-22).

Needs Python 3.8 or newer, and nothing else.
"""

import json
import os
import select
import sys
import time
from typing import List

EVERY_S = 2.0
MARK = "edgepack-progress "


def measure_size(folders: List[str]) -> int:
    """Return the size of all files in folders, which may come and go meanwhile."""
    total = 0
    for folder in folders:
        for place, _, files in os.walk(folder):
            for name in files:
                try:
                    total += os.lstat(os.path.join(place, name)).st_size
                except OSError:
                    continue
    return total


def main(variant: str, doing: str, folders: List[str]) -> None:
    """Report until stdin ends."""
    started = time.monotonic()
    while True:
        said = {
            "variant": variant,
            "building": doing == "building",
            "seconds": round(time.monotonic() - started, 1),
            "kept_bytes": measure_size(folders),
        }
        sys.stderr.write(MARK + json.dumps(said) + "\n")
        sys.stderr.flush()
        if select.select([0], [], [], EVERY_S)[0]:
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
