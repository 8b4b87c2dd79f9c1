"""Running two models on the same samples, for steps that must not change what is computed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgepack.base.arrays import Array
from edgepack.errors import BugError, StepError
from edgepack.metrics.accuracy import EQUAL_SQNR_DB, array_cosine, min_sqnr_db
from edgepack.model.facts import read_signature
from edgepack.model.reading import read_outline, read_structure
from edgepack.model.running import Arrays, make_random_inputs, make_session, run_session
from edgepack.quantization.search.closeness import MOST_HELD_OUT, Chosen, FloatOutputs, HeldOut
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.spreading import choose_spread
from edgepack.steps.embeddings import (
    find_embedding_outputs,
    find_normalized_outputs,
    find_sentence_vectors,
)
from edgepack.steps.quantized import is_finite_as

SEED = 20260101
PROBES = 8
EMBEDDING_PROBES = 32
LEAST_COSINE = 0.98
"""The least cosine of an embedding of any sample: below it a recipe is refused. An error of a fifth
of the output's size leaves this. all-MiniLM-L6-v2 comes to 0.986 with int8-dynamic and a scale per
channel, to 0.94 with one scale per tensor (64 English sentences), and with int4-weight to 0.964
without and to 0.981 with 32 sentences for calibration (32 others; onnxruntime 1.31.1, x86-64
without VNNI, 2026-11-21).
"""
LEAST_OUTPUT_COSINE = 0.9
"""The least SQNR of any other output: an error of half the output's size. No golden test requires
less than 6 dB, and an output that is further than that from float32's cannot be told from a wrong
one."""
NEARER_EMBEDDINGS = (
    "leave this variant out under 'targets' in edgepack.yaml: fp16, then int8-dynamic, keep more of"
    " an encoder than int8-static"
)
"""The advice where a recipe loses too much of an encoder."""


def make_probe_inputs(model: Path, samples: Path | None, count: int) -> Iterator[Arrays]:
    """Yield up to ``count`` inputs: real samples, evenly spread, or seeded random ones."""
    if samples is None:
        specs, _ = read_signature(read_outline(model))
        for n in range(min(count, 2)):
            yield make_random_inputs(specs, seed=SEED + n)
        return
    real = SampleSet.read(samples)
    for index in choose_spread(range(len(real)), count):
        yield real.read_inputs(index)


@dataclass(frozen=True)
class OutputComparison:
    """How far the outputs of one model are from those of another, on the same inputs."""

    inputs: str
    """For people: how many there are, and what they are."""
    sqnr_db: float
    """The worst over outputs and inputs."""
    worst_output: str
    """The output of floats with the smallest cosine; empty where all are 0."""
    worst_cosine: float
    """Its cosine, of one input, taken whole."""
    embeddings: Mapping[str, float]
    """The outputs that hold embeddings for every input, with the smallest cosine of any."""
    not_finite: str
    """The first output with NaN or infinity where the reference has numbers; empty if none."""

    def require_finite(self) -> None:
        """Prove that outputs have NaN or infinity only where the reference has.

        Raises:
            StepError: Names the first output that has more.
        """
        if self.not_finite:
            raise BugError(
                f"the output {self.not_finite!r} has NaN or infinity where the float32 model has"
                " none"
            )

    def require_close(self, hint: str) -> None:
        """Prove that no output is far from the reference's.

        Raises:
            StepError: One has a cosine below :data:`LEAST_OUTPUT_COSINE`; with the hint.
        """
        if self.worst_cosine < LEAST_OUTPUT_COSINE:
            raise StepError(
                f"on {self.inputs} the output {self.worst_output!r} has a cosine of"
                f" {self.worst_cosine:.4f} with that of the float model,"
                f" {LEAST_OUTPUT_COSINE:g} is needed",
                hint=hint,
            )

    def require_close_embeddings(self, hint: str) -> None:
        """Prove that embeddings match the reference's; a model without any passes.

        Raises:
            StepError: One has a cosine below :data:`LEAST_COSINE`; the error names the output.
        """
        for name, cosine in self.embeddings.items():
            if cosine < LEAST_COSINE:
                raise StepError(
                    f"the embedding {name!r} is too far from float32's: the worst cosine of"
                    f" {self.inputs} is {cosine:.4f}, {LEAST_COSINE} is the least",
                    hint=hint,
                )


def compare(before: Path, after: Path, samples: Path | None) -> OutputComparison:
    """Return how far the outputs of ``after`` are from those of ``before``.

    Each model runs once on each input: 8, and up to 32 where the reference gives embeddings, which
    always have to be near.

    Args:
        before: The reference.
        after: What was made of it.
        samples: Evenly spread ones are taken; without them two seeded random inputs.

    Raises:
        ModelError: One of the two does not load or run.
    """
    old, new = make_session(before), make_session(after)
    found = _Running(find_normalized_outputs(read_structure(before)))
    for feed in _make_probes(before, samples):
        if found.inputs == PROBES and not found.embeddings:
            break
        found.add(run_session(old, feed), run_session(new, feed))
    kind = "random inputs" if samples is None else "samples"
    return OutputComparison(
        inputs=f"{found.inputs} {kind}",
        sqnr_db=found.sqnr_db,
        worst_output=found.worst[1],
        worst_cosine=found.worst[0],
        embeddings=found.embeddings,
        not_finite=found.not_finite,
    )


def _make_probes(model: Path, samples: Path | None) -> Iterator[Arrays]:
    """Yield the inputs of a comparison: those for any model, then more for embeddings."""
    if samples is None:
        yield from make_probe_inputs(model, None, PROBES)
        return
    real = SampleSet.read(samples)
    chosen = choose_spread(range(len(real)), EMBEDDING_PROBES)
    for index in dict.fromkeys([*choose_spread(chosen, PROBES), *chosen]):
        yield real.read_inputs(index)


@dataclass
class _Running:
    """A comparison so far."""

    normalized: Collection[str]
    inputs: int = 0
    sqnr_db: float = EQUAL_SQNR_DB
    worst: tuple[float, str] = (1.0, "")
    not_finite: str = ""
    embeddings: dict[str, float] = field(default_factory=dict)

    def add(self, reference: Arrays, outputs: Arrays) -> None:
        """Add the outputs for one input."""
        self.sqnr_db = min(self.sqnr_db, min_sqnr_db(reference, outputs))
        for name, expected in reference.items():
            given = outputs[name]
            if not (self.not_finite or is_finite_as(given, expected)):
                self.not_finite = name
            if expected.dtype.kind == "f" and expected.any():
                self.worst = min(self.worst, (array_cosine(expected, given), name))
        embedded = {
            name: self._compute_cosine(name, reference[name], outputs[name])
            for name in find_embedding_outputs(reference, self.normalized)
        }
        known = self.embeddings if self.inputs else embedded
        self.embeddings = {n: min(embedded[n], known[n]) for n in embedded.keys() & known.keys()}
        self.inputs += 1

    def _compute_cosine(self, name: str, expected: Array, given: Array) -> float:
        """Return the smallest cosine of a sentence's two embeddings; 0 if shapes differ."""
        if given.shape != expected.shape:
            return 0.0
        pooled = (
            find_sentence_vectors(values, is_normalized=name in self.normalized)
            for values in (expected, given)
        )
        return min(array_cosine(*pair) for pair in zip(*pooled, strict=True))


def require_signal(before: Path, after: Path, samples: Path | None, hint: str) -> None:
    """Prove that outputs are better than a constant, on as many samples as methods are chosen by.

    Without samples, or with one, this cannot be shown, and no output may be far from the
    reference's.

    Args:
        before: The reference.
        after: What was made of it.
        samples: A sample set.
        hint: What to do.

    Raises:
        StepError: The error is as large as what the outputs vary by.
        ModelError: One of the two does not load or run.
    """
    real = SampleSet.read(samples) if samples else None
    if real is None or len(real) < 2:
        compare(before, after, samples).require_close(hint)
        return
    chosen = Chosen(real, tuple(choose_spread(range(len(real)), MOST_HELD_OUT)))
    found = HeldOut(FloatOutputs(before, chosen)).measure_closeness(after)
    if found.ruin:
        raise StepError(f"on {len(chosen)} samples {found.ruin}", hint=hint)


def measure_worst_sqnr(
    before: Path, after: Path, samples: Path | None, beside: Mapping[str, Array] | None = None
) -> float:
    """Return the worst SQNR of ``after`` against ``before`` over outputs and probe inputs.

    Only one session exists at a time, because two hold the weights twice.

    Args:
        before: The reference.
        after: The model that is compared with it.
        samples: Evenly spread ones are taken; without them two seeded random inputs.
        beside: Inputs that ``after`` takes and ``before`` does not.

    Raises:
        ModelError: One of the two does not load or run.
    """

    def run(model: Path, more: Mapping[str, Array]) -> list[Arrays]:
        session = make_session(model)
        feeds = make_probe_inputs(before, samples, PROBES)
        return [run_session(session, {**feed, **more}) for feed in feeds]

    return min(map(min_sqnr_db, run(before, {}), run(after, beside or {})))
