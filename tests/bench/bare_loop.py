"""The shortest honest way to time a model: a session, a loop around ``run``, a clock.

Shares nothing with the harness but what decides the work itself: the session's settings and the
golden inputs, both read by the bundle's loader. Prints the latencies in nanoseconds as JSON::

    python bare_loop.py BUNDLE VARIANT WARM_UP_ITERATIONS ITERATIONS
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

bundle, variant, warm_up, iterations = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
sys.path.insert(0, str(bundle))

import edgepack_loader as loader  # type: ignore[import-not-found]  # noqa: E402  (the bundle's)
import onnxruntime as ort  # noqa: E402

opened = loader.Bundle(bundle)
entry = opened.list_variants(variant)[0]
options = ort.SessionOptions()
options.log_severity_level = 3
options.intra_op_num_threads = loader.choose_threads(entry["session"])
for key, value in loader.make_session_config(entry).items():
    options.add_session_config_entry(key, value)
session = ort.InferenceSession(
    str(bundle / entry["model"]), options, providers=["CPUExecutionProvider"]
)
names = [spec.name for spec in opened.outputs]
feeds = [opened.read_golden_inputs(index) for index in range(opened.goldens)]

for number in range(warm_up):
    session.run(names, feeds[number % len(feeds)])

latencies_ns = []
for number in range(iterations):
    feed = feeds[number % len(feeds)]
    started = time.perf_counter_ns()
    session.run(names, feed)
    latencies_ns.append(time.perf_counter_ns() - started)

print(json.dumps(latencies_ns))
