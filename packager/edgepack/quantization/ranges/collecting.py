"""Statistics of a model's tensors over samples: one pass, the tensors of one sample in memory.

Each sample is run once, each value counted once, then its tensors are dropped. The result does not
depend on how samples are gathered, on which process counts them or on their order: histograms only
count, and an extreme is an extreme.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from operator import length_hint
from pathlib import Path

from edgepack.base.machine import count_cores
from edgepack.errors import SamplesError
from edgepack.model.reading import list_external_files, read_structure
from edgepack.quantization.ranges.counter import Counter, Sample
from edgepack.quantization.ranges.helper import Helper
from edgepack.quantization.ranges.layout import Layout
from edgepack.quantization.ranges.statistics import TensorStatistics

_SHARED_VALUES = 1 << 27
"""With fewer values in all samples together, another process does not help: starting one takes
about as long as counting so many (x86-64, 2026-11-21)."""

_SMALL_BYTES = 1 << 29
"""Each process has a session, and so a copy of the weights: larger models are run in one."""

_MOST_PROCESSES = 4
"""Each takes as much memory as the first."""

_GUESSED_SAMPLES = 100
"""The assumed number of samples of an iterable without a length."""


def collect(
    model: Path,
    samples: Iterable[Sample],
    tensors: Collection[str],
    advance: Callable[[], None] = lambda: None,
) -> dict[str, TensorStatistics]:
    """Return the statistics of a model's activations over samples.

    Memory is that of a session, of a sample's tensors (of a few samples' where they are small) and
    of a histogram per tensor: it does not grow with the number of samples. Where there is enough to
    count, other processes take some of the samples, each with as much memory again. What a Relu, a
    Clip, a Concat of images or a Reshape makes is not observed where its inputs are: its statistics
    follow from theirs. A tensor that only a Relu reads has the statistics of the Relu's output: its
    values below 0 have no effect.

    Args:
        model: Weights in a file beside it may have any size.
        samples: Iterated once; shapes may differ from sample to sample.
        tensors: Names of inputs and of what nodes of the main graph make. Tensors that are not
        floats are skipped.
        advance: Called after each sample, in this thread.

    Returns:
        Statistics by name, in the order of ``tensors``. Tensors that never had a value are not
        among them, nor those that had an infinite one, as masks do. A tensor that only holds the
        values of another one in other places has no channels: the other one's channels show them.

    Raises:
        SamplesError: There are no samples, or an input has NaN or infinity.
        StepError: A tensor has NaN, or an output infinity; names tensor, node and sample.
        ModelError: The model does not load, or does not run on a sample.
        ToolError: A process that helped died.
    """
    structure = read_structure(model)
    layout = Layout.of(structure, tensors)
    model_bytes = sum(
        map(_measure_bytes, [model, *(model.parent / f for f in list_external_files(structure))])
    )
    # It may contain weights, of which the session has a copy.
    del structure
    count = length_hint(samples, _GUESSED_SAMPLES)
    numbered = enumerate(samples)
    first = next(numbered, None)
    if first is None:
        raise SamplesError(
            "there are no calibration samples", hint="check 'calibration' under 'samples'"
        )
    small = model_bytes <= _SMALL_BYTES
    with contextlib.ExitStack() as stack:
        # One thread runs samples, another one counts those before: more would be in their way.
        threads = 1 if small else 0
        counter = stack.enter_context(Counter.open(model, layout, threads, behind=True))
        values = counter.take(*first)
        advance()
        shared = small and count * values >= _SHARED_VALUES
        more = min(count_cores(), _MOST_PROCESSES, count) - 1 if shared else 0
        helpers = [stack.enter_context(Helper(model, layout)) for _ in range(more)]
        for each in numbered:
            free = next((helper for helper in helpers if helper.has_room()), counter)
            free.take(*each)
            advance()
        parts = [counter.end(), *(helper.end() for helper in helpers)]
    tallies = parts[0]
    for part in parts[1:]:
        for name, tally in part.items():
            tallies[name].merge(tally)
    return layout.make_statistics(tallies)


def _measure_bytes(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
