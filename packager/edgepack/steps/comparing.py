"""Running two models on the same samples, for steps that must not change what is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgepack.accuracy import OutputCloseness, min_sqnr_db
from edgepack.data import SampleSet
from edgepack.errors import StepError
from edgepack.model.facts import signature
from edgepack.model.reading import read_structure
from edgepack.model.running import Arrays, make_session, random_inputs, run_session

SEED = 20260101
LEAST_COSINE = 0.98
"""Of an embedding of any sample: below it a recipe is refused. An error of a fifth of the output's
size leaves this. all-MiniLM-L6-v2 comes to 0.986 with int8-dynamic and a scale per channel, to 0.94
with one scale per tensor (64 English sentences), and with int4-weight to 0.964 without and to 0.981
with 32 sentences for calibration (32 others; onnxruntime 1.31.1, x86-64 without VNNI, 2026-11-21).
"""
LEAST_OUTPUT_COSINE = 0.9
"""Of any other output: an error of half the output's size. No golden test asks for less than 6 dB,
and an output that is further than that from float32's cannot be told from a wrong one."""


def probe_inputs(model: Path, samples: Path | None, count: int) -> Iterator[Arrays]:
    """Yield up to ``count`` inputs: real samples, evenly spread, or seeded random ones."""
    if samples is None:
        specs, _ = signature(read_structure(model))
        for n in range(min(count, 2)):
            yield random_inputs(specs, seed=SEED + n)
        return
    real = SampleSet.read(samples)
    taken = min(count, len(real))
    for n in range(taken):
        yield real.inputs(n * len(real) // taken)


def worst_sqnr_db(before: Path, after: Path, samples: Path | None, count: int = 8) -> float:
    """Return the worst SQNR of ``after`` against ``before`` over outputs and probe inputs.

    Raises:
        ModelError: One of the two does not load or run.
    """
    old, new = make_session(before), make_session(after)
    return min(
        min_sqnr_db(run_session(old, feed), run_session(new, feed))
        for feed in probe_inputs(before, samples, count)
    )


@dataclass(frozen=True)
class WorstOutput:
    """The output that comes least near the float model's, over probe inputs."""

    name: str
    """Empty where no output of floats is other than 0."""
    cosine: float
    """With the float model's, of one output of one probe input, taken whole."""


def worst_output(before: Path, after: Path, samples: Path | None, count: int = 8) -> WorstOutput:
    """Return which output of ``after`` has the smallest cosine with that of ``before``.

    Outputs that ``before`` leaves at 0 are not judged.

    Raises:
        ModelError: One of the two does not load or run.
    """
    old, new = make_session(before), make_session(after)
    worst = WorstOutput("", 1.0)
    for feed in probe_inputs(before, samples, count):
        outputs = run_session(new, feed)
        for name, expected in run_session(old, feed).items():
            if expected.dtype.kind == "f" and expected.any():
                one = OutputCloseness()
                one.add(expected, outputs[name])
                worst = min(worst, WorstOutput(name, one.cosine), key=lambda found: found.cosine)
    return worst


def require_close(before: Path, after: Path, samples: Path | None, hint: str) -> None:
    """Prove that no output of ``after`` is far from what ``before`` computes.

    Raises:
        StepError: One has a cosine below :data:`LEAST_OUTPUT_COSINE`; with the hint.
    """
    worst = worst_output(before, after, samples)
    if worst.cosine < LEAST_OUTPUT_COSINE:
        inputs = "random inputs" if samples is None else "the samples"
        raise StepError(
            f"on {inputs} the output {worst.name!r} has a cosine of {worst.cosine:.4f} with that of"
            f" the float model, {LEAST_OUTPUT_COSINE:g} is needed",
            hint=hint,
        )
