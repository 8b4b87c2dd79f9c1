"""Samples for models with state: what a stream meets when fp32 goes along it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.proofs.cases import CALIBRATION, EVALUATION, Feed, Made
from tests.proofs.net import session
from tests.proofs.readings import Reading

SPARE = 8
"""Of the streams, so many are for calibration and evaluation."""


def unrolled(
    model: Path, streams: Sequence[Sequence[Feed]], state: Mapping[str, str], zeros: Feed
) -> list[Feed]:
    """Return the feeds of all steps, with the states that the model itself gave."""
    run = session(str(model))
    names = [output.name for output in run.get_outputs()]
    feeds = []
    for stream in streams:
        states = dict(zeros)
        for step in stream:
            feed = {**step, **states}
            feeds.append(feed)
            outputs = dict(zip(names, run.run(None, feed), strict=True))
            states = {name: outputs[given] for name, given in state.items()}
    return feeds


def streamed(
    model: Path,
    streams: Sequence[Sequence[Feed]],
    state: dict[str, str],
    zeros: Feed,
    readings: dict[str, Reading],
) -> Made:
    """Return a case whose unseen samples are all streams but the last eight.

    Args:
        model: The model's file.
        streams: Steps without states.
        state: By input that takes a state: the output that gives the next.
        zeros: The states at the beginning.
        readings: By output.
    """
    met = unrolled(model, streams[-SPARE:], state, zeros)
    order = np.random.default_rng(0).permutation(len(met))
    chosen = [met[k] for k in order[: CALIBRATION + EVALUATION]]
    unseen = [[{**step, **zeros} for step in stream] for stream in streams[:-SPARE]]
    return Made(model, chosen[:CALIBRATION], chosen[CALIBRATION:], unseen, readings, state=state)
