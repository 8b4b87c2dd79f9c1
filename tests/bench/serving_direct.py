"""What a service is compared with: a program that calls the loader itself, in threads of its own.

::

    python serving_direct.py BUNDLE INPUTS.npz

Each line that it reads is ``THREADS SECONDS``. It answers with a line of JSON: ``latencies_ms`` of
all calls, and ``seconds`` from the first to the end of the last.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np


def main() -> None:
    bundle, inputs = map(Path, sys.argv[1:])
    sys.path.insert(0, str(bundle))
    from edgepack_loader import load

    model = load(bundle)
    with np.load(inputs) as file:
        feed = {name: file[name] for name in file.files}

    def call(until_s: float, found: list[float]) -> None:
        while time.perf_counter() < until_s:
            began_s = time.perf_counter()
            model(feed)
            found.append(1000 * (time.perf_counter() - began_s))

    print("{}", flush=True)
    for line in sys.stdin:
        count, seconds = line.split()
        began_s = time.perf_counter()
        found: list[list[float]] = [[] for _ in range(int(count))]
        threads = [
            threading.Thread(target=call, args=(began_s + float(seconds), each)) for each in found
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        latencies = [ms for each in found for ms in each]
        document = {"latencies_ms": latencies, "seconds": time.perf_counter() - began_s}
        print(json.dumps(document), flush=True)


if __name__ == "__main__":
    main()
