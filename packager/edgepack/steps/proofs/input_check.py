"""Checks whether samples are made as the model expects, from its outputs and by alternatives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import StepError
from edgepack.model.files import MODEL
from edgepack.preprocessing.alternatives import Alternative
from edgepack.preprocessing.ranking import (
    FINALISTS,
    Described,
    RankedWay,
    choose_finalists,
    format_warning,
    rank,
)
from edgepack.preprocessing.signs import FEWEST
from edgepack.preprocessing.verdict import PreprocessingSign, Seen, find_sign
from edgepack.project.inputs import ImageInput
from edgepack.project.outputs import DetectionOutput
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.spreading import choose_spread
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.proofs.input_runs import Runner
from edgepack.steps.streams import StatePairs

Feed = dict[str, Array]

FOUND = "input-check.json"
_LOOKED_AT, _TRIED = (16, 100), (16, 64)
"""The least and most samples that are looked at, and that others are tried on."""


@dataclass(frozen=True)
class InputCheck:
    """A look at the model's outputs over samples; if they are suspicious, other ways are tried.

    Inputs: ``model``, before its numbers change; ``samples``, the tensors that it takes, with
    their labels; ``pictures``, the folder that they are made of, if there is one. It decides
    nothing: what it finds is a warning.
    """

    name: ClassVar[str] = "input-check"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime", "pillow")
    cacheable = True
    images: tuple[tuple[str, ImageInput], ...]
    """How the samples of an input were made of pictures; empty where nobody knows."""
    scores_output: str | None
    """The output that may hold class scores."""
    detections: tuple[tuple[str, DetectionOutput], ...]
    processor: str
    """The kind of processor that this runs on: it decides the last bits."""
    called: str = "fp32"
    """What the model is called in the warning."""
    state: StatePairs = ()
    """Outputs of it are not looked at."""
    claimed: float | None = None
    """The share of the samples that the model's makers say it is right for; None where none is
    known."""

    def check(self, inputs: Inputs) -> None:
        """Accept any model that runs."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``input-check.json``.

        Raises:
            ModelError: The model does not run on a sample.
        """
        found, done = self._find_warnings(inputs)
        (out / FOUND).write_text(json.dumps({"warnings": found}), encoding="utf-8")
        return Notes(done, {"warnings": found})

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that what was found reads back.

        Raises:
            StepError: It does not.
        """
        del inputs
        if "warnings" not in json.loads((out / FOUND).read_text(encoding="utf-8")):
            raise StepError("the input check does not read back", hint="build with --no-cache")

    def _find_warnings(self, inputs: Inputs) -> tuple[list[str], str]:
        """Return the warnings, and what was done."""
        samples = SampleSet.read(inputs["samples"])
        runner = Runner.open(self, inputs["model"] / MODEL, samples, inputs.get("pictures"))
        chosen = choose_spread(range(len(samples)), runner.count_samples(*_LOOKED_AT))
        labels = find_class_labels(samples)
        if _are_equal(samples.read_inputs(index) for index in chosen):
            return [], f"all {len(chosen)} samples are equal, which shows nothing"
        own = runner.observe_samples(samples, chosen)
        text, done = self._check_input(runner, samples, chosen, labels, own)
        return [text] if text else [], done

    def _check_input(
        self,
        runner: Runner,
        samples: SampleSet,
        chosen: Sequence[int],
        labels: Sequence[int] | None,
        own: Seen,
    ) -> tuple[str, str]:
        """Return a warning, or nothing, and what was done."""
        setting = runner.make_setting(_choose_labels(labels, chosen))
        finding = find_sign(own, setting)
        if not finding.is_suspicious:
            return "", f"nothing suspicious on {len(chosen)} samples"
        as_it_is = rank([(None, own)], setting)
        others = runner.list_alternatives(samples) if as_it_is else []
        if finding.below_claim or (finding.by_chance and self.claimed is not None):
            # What little is lost by resizing shows only beside what is due.
            others += runner.list_resized()
        if not finding.reasons and runner.count_samples(0, _TRIED[0], len(others) + 1) < _TRIED[0]:
            # Labels that begin elsewhere cost no run of the model.
            text = format_warning(finding, as_it_is, _describe_ways(runner, len(chosen), 0))
            return text, f"in doubt on {len(chosen)} samples, and too large a model to try others"
        return self._try_others(runner, samples, chosen, labels, finding, others)

    def _try_others(
        self,
        runner: Runner,
        samples: SampleSet,
        chosen: Sequence[int],
        labels: Sequence[int] | None,
        finding: PreprocessingSign,
        others: Sequence[Alternative],
    ) -> tuple[str, str]:
        """Try others, and return the warning, or nothing, and what was done."""
        few = choose_spread(chosen, runner.count_samples(*_TRIED, len(others) + 1))
        found = list(runner.try_ways(samples, few, others))
        in_order = rank(found, runner.make_setting(_choose_labels(labels, few)))
        more = choose_spread(chosen, runner.count_samples(*_TRIED, FINALISTS + 1))
        if len(more) > len(few):
            few = more
            best = list(runner.try_ways(samples, few, choose_finalists(in_order)))
            in_order = rank(best, runner.make_setting(_choose_labels(labels, few)))
        text = format_warning(finding, in_order, _describe_ways(runner, len(few), len(found) - 1))
        shown = f", best {in_order[0].shown}" if in_order else ""
        return text, f"{len(found)} ways to make the input tried on {len(few)} samples{shown}"


def rank_ways(step: InputCheck, model: Path, samples: SampleSet) -> tuple[list[RankedWay], int]:
    """Return ways to make the input of samples, best first, whether something is wrong or not.

    And of how many samples: as many as take some seconds. None where nothing ranks them, or where
    too few are.

    Raises:
        ModelError: The model does not run on a sample.
    """
    runner = Runner.open(step, model, samples)
    others = runner.list_alternatives(samples)
    count = runner.count_samples(0, len(samples), len(others) + 1)
    if not runner.can_rank or count < FEWEST:
        return [], 0
    chosen = choose_spread(range(len(samples)), count)
    setting = runner.make_setting(_choose_labels(find_class_labels(samples), chosen))
    return rank(list(runner.try_ways(samples, chosen, others)), setting), count


def _describe_ways(runner: Runner, count: int, ways: int) -> Described:
    unknown = runner.image is None and bool(runner.list_picture_layouts())
    return Described(runner.input_name, runner.sees, count, ways, unknown)


def find_class_labels(samples: SampleSet) -> list[int] | None:
    """Return labels that are class indices, or None."""
    labels = samples.labels
    if labels is None or labels.ndim != 1 or labels.dtype.kind == "U":
        return None
    if not np.array_equal(labels, labels.astype(np.int64)):
        return None
    return [int(label) for label in labels]


def _choose_labels(labels: Sequence[int] | None, chosen: Sequence[int]) -> list[int] | None:
    return None if labels is None else [labels[index] for index in chosen]


def _are_equal(feeds: Iterable[Feed]) -> bool:
    first, *rest = feeds
    return all(np.array_equal(first[name], feed[name]) for feed in rest for name in first)
