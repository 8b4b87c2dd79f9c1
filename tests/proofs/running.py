"""Models run by plain onnxruntime, on samples or along streams whose state is fed back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.proofs.cases import Feed
from tests.proofs.net import Array, session

Collected = dict[str, list[Array]]
"""By output: what it is for each sample."""


def collect(
    model: Path | bytes,
    feeds: Sequence[Any],
    state: Mapping[str, str] = {},
    *,
    optimized: bool = True,
) -> Collected:
    """Return the outputs for all samples; of streams, of the steps in their second half.

    Args:
        model: A file or its bytes.
        feeds: Samples, or with ``state`` streams of them.
        state: By input that takes a state: the output that gives the next.
        optimized: Whether onnxruntime may change the graph.
    """
    run = session(model if isinstance(model, bytes) else str(model), optimized=optimized)
    names = [output.name for output in run.get_outputs()]
    found: Collected = {name: [] for name in names if name not in state.values()}
    for sample in feeds:
        for outputs in _outputs(run, names, sample, state):
            for name in found:
                found[name].append(outputs[name])
    return found


def _outputs(run: Any, names: list[str], sample: Any, state: Mapping[str, str]) -> list[Feed]:
    if not state:
        return [dict(zip(names, run.run(None, sample), strict=True))]
    stream: list[Feed] = []
    states: Feed = {}
    for step in sample:
        outputs = dict(zip(names, run.run(None, {**step, **states}), strict=True))
        states = {name: outputs[given] for name, given in state.items()}
        stream.append(outputs)
    return stream[len(stream) // 2 :]


def single(feeds: Sequence[Any], state: Mapping[str, str], count: int) -> list[Feed]:
    """Return some samples; of streams, their first steps."""
    return [stream[0] for stream in feeds[:count]] if state else list(feeds[:count])


def median_ms(model: Path, feed: Feed, runs: int = 15) -> float:
    """Return how long an inference takes, in milliseconds."""
    run = session(str(model))
    times = []
    for _ in range(runs):
        began = time.perf_counter_ns()
        run.run(None, feed)
        times.append((time.perf_counter_ns() - began) / 1e6)
    return float(np.median(times))
