"""Statistics of the float tensors over the calibration samples, from which int8 scales are made.

They do not depend on a dialect nor on the method that makes ranges of them: all targets share one
calibration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.base.worker import report
from edgepack.errors import BugError, StepError, format_list
from edgepack.model.files import MODEL
from edgepack.model.reading import read_structure
from edgepack.quantization.qdq.dialect import WITHOUT_INT8
from edgepack.quantization.qdq.writer import find_observed_tensors
from edgepack.quantization.ranges.collecting import collect
from edgepack.quantization.ranges.following import find_clamps
from edgepack.quantization.ranges.histogram import Histogram
from edgepack.quantization.ranges.statistics import (
    TensorStatistics,
    read_statistics,
    write_statistics,
)
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.quantized import require_unquantized

if TYPE_CHECKING:
    import onnx


STATISTICS = "statistics.npz"
"""What :func:`edgepack.quantization.ranges.statistics.write_statistics` writes, by tensor."""

_SHOWN = 3


@dataclass(frozen=True)
class Calibration:
    """Statistics of every tensor that can get a scale. Inputs: ``model``; ``samples``."""

    name: ClassVar[str] = "calibration"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    cacheable = True
    every_op: bool = False
    """Whether operators of every type will be quantized."""

    def check(self, inputs: Inputs) -> None:
        """Make sure that the model is a float32 one, and that there is something to observe.

        Raises:
            StepError: It is quantized already, or float16, or nothing in it can get a scale.
        """
        model = read_structure(inputs["model"] / MODEL)
        require_unquantized(model)
        _require_float32(model)
        tensors, bodies = self._list_observed(inputs["model"] / MODEL)
        if not tensors:
            inside = f", because it lies in the bodies of {_format_names(bodies)}" if bodies else ""
            raise StepError(f"nothing in the model could be quantized{inside}", hint=WITHOUT_INT8)

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``statistics.npz``.

        Raises:
            StepError: A tensor has NaN, or an output infinity.
            ModelError: The model does not run on a sample.
        """
        path = inputs["model"] / MODEL
        tensors, bodies = self._list_observed(path)
        describe = _make_describer(read_structure(path))
        samples = _Watched(SampleSet.read(inputs["samples"]))
        found = collect(path, samples, tensors, samples.advance)
        write_statistics(found, out / STATISTICS)
        warnings = [*samples.list_warnings(), *_list_warnings(tensors, found, bodies, describe)]
        return Notes(
            f"statistics of {len(found)} tensors from {len(samples)} samples"
            + "".join(f"; {warning}" for warning in warnings),
            {
                "tensors": len(found),
                "samples": len(samples),
                "without_range": sorted(set(tensors) - found.keys()),
                "warnings": warnings,
            },
        )

    def draft(self, inputs: Inputs, out: Path) -> None:
        """Write statistics that say of every tensor that it was -1 once, and 1 once.

        What a Relu or Clip writes is cut off at its bounds: whether its node goes into the integers
        before it depends on that.

        Args:
            inputs: ``model``.
            out: An empty folder.
        """
        tensors, _ = self._list_observed(inputs["model"] / MODEL)
        bounds = find_clamps(read_structure(inputs["model"] / MODEL), tensors)
        found = {}
        for name in tensors:
            ends = np.array([-1, 1], np.float32)
            if name in bounds:
                ends = np.clip(ends, bounds[name].low, bounds[name].high)
            histogram = Histogram()
            histogram.add(ends)
            found[name] = histogram.make_statistics()
        write_statistics(found, out / STATISTICS)

    def _list_observed(self, model: Path) -> tuple[list[str], list[str]]:
        """Return the tensors to observe, and the nodes whose bodies are not."""
        structure = read_structure(model)
        tensors = find_observed_tensors(structure, every_op=self.every_op)
        return sorted(tensors), _list_nodes_with_bodies(structure)

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that there are statistics, that they agree in themselves, and with a sample.

        Raises:
            StepError: They do not.
        """
        statistics = read_statistics(out / STATISTICS)
        for name, found in statistics.items():
            _require_consistent(name, found)
        sample = SampleSet.read(inputs["samples"]).read_inputs(0)
        for name, array in sample.items():
            if array.dtype.kind == "f" and array.size and name in statistics:
                low, high = statistics[name].low, statistics[name].high
                if not (low <= array.min() and array.max() <= high):
                    raise _make_error(f"the first sample's {name!r} lies outside {low} to {high}")
        if not statistics:
            raise StepError("no float tensor of the model has a finite range", hint=WITHOUT_INT8)


class _Watched:
    """The samples of a set, one at a time; reports how many are done, and sees if all are equal."""

    def __init__(self, samples: SampleSet) -> None:
        self._samples = samples
        self._first: dict[str, Array] | None = samples.read_inputs(0)
        self._done = 0

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for sample in self._samples:
            if self._first is not None and not _is_equal(self._first, sample):
                self._first = None
            yield sample

    def advance(self) -> None:
        self._done += 1
        report(self._done, len(self))

    def list_warnings(self) -> Iterator[str]:
        """Report what is wrong with the set; call it after all samples were taken."""
        if len(self) == 1:
            yield (
                "one sample shows little of the range of other inputs: int8 may cut off what"
                " they reach; give 50 samples or more"
            )
        elif self._first is not None:
            yield (
                f"all {len(self)} samples are equal, so they show no more than one: int8 may cut"
                " off what other inputs reach; give different ones"
            )


def _is_equal(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in one.items())


def _list_warnings(
    tensors: Iterable[str],
    found: Mapping[str, TensorStatistics],
    bodies: list[str],
    describe: Callable[[str], str],
) -> Iterator[str]:
    """Yield what people should know about the tensors; ``describe`` says where one is."""
    constant = [name for name, one in found.items() if one.low == one.high]
    if constant:
        which = _format_places(map(describe, constant))
        yield (
            f"one single value on all samples in {which}: int8 turns any other value into this one;"
            " if it changes in use, give samples in which it changes"
        )
    missing = [name for name in tensors if name not in found]
    if missing:
        which = _format_places(map(describe, missing))
        yield (
            f"no range, because of infinite values or none at all, for {which}: it stays float,"
            " which costs time but no accuracy; you need not do anything"
        )
    if bodies:
        yield (
            f"tensors inside the bodies of {_format_names(bodies)} stay float and were not"
            " observed: int8"
            " makes them no faster; nothing has to be done"
        )


def _make_describer(model: onnx.ModelProto) -> Callable[[str], str]:
    """Return a function that says where a tensor is, in words of the user's model.

    onnxsim names the tensors that it makes ``_v_1`` and so on, and their nodes by operator and
    number (0.8.1, observed 2026-11-23): such a tensor is named by its operator, and by the nearest
    tensor before it with a name from the model.
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name for tensor in model.graph.initializer}

    def describe(name: str) -> str:
        if not _MADE.fullmatch(name) or name not in producers:
            return repr(name)
        seen, waiting = {name}, [name]
        for each in waiting:
            for source in producers[each].input if each in producers else ():
                if source and source not in seen and source not in constants:
                    if not _MADE.fullmatch(source):
                        return f"the {producers[name].op_type} after {source!r}"
                    seen.add(source)
                    waiting.append(source)
        return f"a {producers[name].op_type}"

    return describe


_MADE = re.compile(r"_v_\d+")


def _format_places(places: Iterable[str]) -> str:
    return format_list([*dict.fromkeys(places)], _SHOWN)


def _format_names(names: list[str]) -> str:
    return format_list([repr(name) for name in names], _SHOWN)


def _list_nodes_with_bodies(model: onnx.ModelProto) -> list[str]:
    """Return the names of the If, Loop and Scan nodes of the main graph."""
    return [
        node.name or node.op_type
        for node in model.graph.node
        if any(entry.HasField("g") or entry.graphs for entry in node.attribute)
    ]


def _require_float32(model: onnx.ModelProto) -> None:
    from onnx import TensorProto

    half = [t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT16]
    if half:
        raise StepError(
            f"the model is float16: {len(half)} constants, {half[0]!r} first; int8 is made from"
            " float32",
            hint="give the float32 model, or " + WITHOUT_INT8,
        )


def _require_consistent(name: str, found: TensorStatistics) -> None:
    """Prove that a tensor's extremes are in its first and last bin.

    Raises:
        StepError: They do not.
    """
    low, high = found.low, found.high
    ends = low, high, found.width
    if not (all(map(math.isfinite, ends)) and low <= high and len(found.counts)):
        raise _make_error(f"the tensor {name!r} reaches from {low} to {high}")
    bins = [math.floor(end / found.width) if found.width else 0 for end in (low, high)]
    if (
        bins != [found.first, found.first + len(found.counts) - 1]
        or not found.counts[[0, -1]].all()
    ):
        raise _make_error(f"the bins of {name!r} do not end at {low} and {high}")
    pair = found.channel_low, found.channel_high
    if (
        pair[0] is not None
        and pair[1] is not None
        and (pair[0].min(), pair[1].max()) != (low, high)
    ):
        raise _make_error(f"the channels of {name!r} do not reach from {low} to {high}")


def _make_error(found: str) -> BugError:
    return BugError(f"the calibration is wrong: {found}")
