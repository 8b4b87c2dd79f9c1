"""Proves a conversion: the framework's own outputs on samples against the ONNX model's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.converters.conversion import Conversion
from edgepack.converters.registry import CONVERTERS
from edgepack.errors import StepError
from edgepack.model.facts import read_model_facts
from edgepack.model.files import MODEL
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.samples.constants import Constant, make_constant_arrays
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.spreading import choose_spread
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import make_probe_inputs
from edgepack.steps.converted import read_conversion
from edgepack.steps.proofs.leaves import make_leaf_rows

MOST_SAMPLES = 32
SHARE, QUANTIZED_SHARE = 1e-3, 0.1
"""How far a value may be from the framework's, in parts of the largest one of its output, where no
converter says it, and where a model is quantized: kernels of integers round each in their own way,
and their errors add up."""
EDGES = "rows at the edges of all leaves"
"""The name of the sample that is made from a model's trees."""
COMPARED = "compared.json"
_LEAST, _LEAST_PART = 1e-5, 0.01
"""What counts for nothing, however small the output is, and the most of it in parts of the share:
probabilities of 1e-9 are zero."""


@dataclass(frozen=True)
class ComparedOutput:
    """One output of a converted model and of its source."""

    name: str
    source: str
    """The framework's name."""
    farthest: float
    """The largest difference of any value of any sample; of integers and texts, how many differ."""
    sample: str
    """The sample that it was on."""
    largest: float
    """The largest value of the framework's output over the samples, without its sign."""
    tolerance: float
    """How far a value may be."""


@dataclass(frozen=True)
class FrameworkProof:
    """The proof that a converted model computes what its source computes.

    Inputs: ``source``, the framework's file; ``converted``, the folder of its conversion;
    ``samples``, optionally: without them two seeded random inputs are taken.
    """

    name: ClassVar[str] = "framework-proof"
    libraries: ClassVar[tuple[str, ...]] = ("onnxruntime",)
    conversion: Conversion
    constants: tuple[Constant, ...] = ()
    """Inputs that have one value for good, which samples lack."""

    @property
    def cacheable(self) -> bool:
        """Files decide their proof; a function may return something else each time."""
        return not self.conversion.function

    def check(self, inputs: Inputs) -> None:
        """Accept what was converted."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Run both on the samples, and note how far each output is from the framework's.

        Raises:
            ModelError: One of the two does not run on a sample.
            ToolError: The framework crashed, or its environment cannot be made.
        """
        folder = inputs["converted"]
        names, feeds = self._make_feeds(folder, inputs.get("samples"))
        signature = read_conversion(folder)
        expected = self.conversion.open(inputs["source"]).run(signature, feeds)
        session = make_session(folder / MODEL)
        given = [run_session(session, feed) for feed in feeds]
        quantized = read_model_facts(folder / MODEL).quantization is not None
        sources = {each["name"]: each["source"] for each in signature["outputs"]}
        share = CONVERTERS[self.conversion.converter].tolerance
        compared = [
            compare_output(name, source, names, (expected, given), quantized=quantized, share=share)
            for name, source in sources.items()
        ]
        (out / COMPARED).write_text(json.dumps([asdict(c) for c in compared]), encoding="utf-8")
        what = "samples" if "samples" in inputs else "random inputs"
        what += f", one of them {EDGES}," if EDGES in names else ""
        words = CONVERTERS[self.conversion.converter].words
        worst = max(compared, key=lambda each: each.farthest / (each.tolerance or 1.0))
        facts = {
            "outputs": [asdict(each) for each in compared],
            "samples": len(feeds),
            "real": "samples" in inputs,
            "versions": signature["versions"],
            "confined": signature["confined"],
        }
        return Notes(
            f"on {len(feeds)} {what} at most {worst.farthest:.3g} from {words} ({worst.name!r},"
            f" {worst.sample}; {worst.tolerance:.3g} is allowed)",
            facts,
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that every output is as near to the framework's as it has to be.

        Raises:
            StepError: One is not; names the output, the sample and how far it is.
        """
        del inputs
        words = CONVERTERS[self.conversion.converter].words
        for found in json.loads((out / COMPARED).read_text(encoding="utf-8")):
            require_near(ComparedOutput(**found), words)

    def _make_feeds(self, folder: Path, samples: Path | None) -> tuple[list[str], list[Arrays]]:
        names, feeds = self._read_feeds(folder, samples)
        leaves = make_leaf_rows(folder / MODEL)
        return (names, feeds) if leaves is None else ([*names, EDGES], [*feeds, leaves])

    def _read_feeds(self, folder: Path, samples: Path | None) -> tuple[list[str], list[Arrays]]:
        fixed = make_constant_arrays(self.constants)
        if samples is None:
            made = list(make_probe_inputs(folder / MODEL, None, MOST_SAMPLES))
            return [f"random input {n}" for n in range(len(made))], [{**m, **fixed} for m in made]
        real = SampleSet.read(samples)
        chosen = choose_spread(range(len(real)), MOST_SAMPLES)
        names = [real.names[index] for index in chosen]
        return names, [{**real.read_inputs(index), **fixed} for index in chosen]


def compare_output(
    name: str,
    source: str,
    samples: Sequence[str],
    values: tuple[Sequence[Mapping[str, Array]], Sequence[Mapping[str, Array]]],
    *,
    quantized: bool = False,
    share: float = SHARE,
) -> ComparedOutput:
    """Return how far one output is from the framework's.

    Args:
        name: In ONNX.
        source: In the framework.
        samples: Their names.
        values: For each sample the framework's outputs, and ONNX's.
        quantized: Whether the model computes with integers, whose steps may differ.
        share: How far a value of a model that is not quantized may be away, in parts of the
            largest one.

    Raises:
        StepError: The shapes differ, or the framework gives none.
    """
    farthest, where, largest, exact = 0.0, samples[0] if samples else "", 0.0, False
    for sample, expected, given in zip(samples, *values, strict=True):
        if name not in expected:
            raise StepError(
                f"the framework gives no output {source!r} on {sample}", hint="convert it again"
            )
        one, other = expected[name], given[name]
        if one.shape != other.shape:
            raise StepError(
                f"the output {name!r} is {list(other.shape)} on {sample}, the framework's"
                f" {source!r} is {list(one.shape)}",
                hint="the exporter changed a shape: export with fixed sizes, or with a newer"
                " version of the exporter",
            )
        if "c" in (one.dtype.kind, other.dtype.kind):
            raise StepError(
                f"the output {name!r} is of complex numbers",
                hint="give real and imaginary parts as outputs of their own",
            )
        is_step = quantized and all(
            d.kind in "iu" and d.itemsize == 1 for d in (one.dtype, other.dtype)
        )
        exact = any(d.kind != "f" for d in (one.dtype, other.dtype)) and not is_step
        distance = _count_different(one, other) if exact else _measure_distance(one, other)
        if not exact and one.size:
            sizes = np.abs(one[np.isfinite(one)].astype(np.float64))
            largest = max(largest, float(np.max(sizes, initial=0.0)))
        if distance > farthest:
            farthest, where = distance, sample
    share = QUANTIZED_SHARE if quantized else share
    tolerance = 0.0 if exact else min(_LEAST, _LEAST_PART * share) + share * largest
    return ComparedOutput(name, source, farthest, where, largest, tolerance)


def _count_different(one: Array, other: Array) -> float:
    if all(array.dtype.kind in "biuf" for array in (one, other)):
        return float(np.count_nonzero(one != other))
    return float(np.count_nonzero(one.astype(str) != other.astype(str)))


def _measure_distance(one: Array, other: Array) -> float:
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):  # infinity less infinity
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    apart = np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))
    return float(np.max(apart, initial=0.0))


_EXPORTER = (
    "the exporter changed the model: try its newest version, or convert it where it was trained and"
    " build from the .onnx"
)


def require_near(found: ComparedOutput, words: str, hint: str = _EXPORTER) -> None:
    """Check that an output is as near to the framework's as it has to be.

    Raises:
        StepError: It is not.
    """
    if not found.farthest <= found.tolerance:
        what = "values differ" if found.tolerance == 0 else "away"
        raise StepError(
            f"the ONNX model computes something else than {words}: of its output"
            f" {found.name!r} {found.farthest:.3g} {what} on {found.sample}"
            + (
                f", where {found.tolerance:.3g} is allowed and the largest value is"
                f" {found.largest:.3g}"
                if found.tolerance
                else ""
            ),
            hint=hint,
        )
