"""Choosing how a model is quantized: what is tried, in which order, and what is kept.

Three questions, each asked only if the one before leaves it open:

1. Which methods bring the outputs nearer to the float model's? (:meth:`Search.improve`)
2. Are the outputs more than noise? If not, the layers that cost most stay float, or int8 is
   refused. (:meth:`Search.require_signal`)
3. Does the model meet the limit that the user sets? If not, tensors go to 16 bits where the dialect
   allows it, then layers stay float, as few as possible. (:meth:`Search.meet`)

The first two are judged on held-out calibration samples (:mod:`edgepack.quantization.closeness`),
the third by the user's own metric.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgepack.accuracy import EQUAL_SQNR_DB
from edgepack.errors import EdgepackError, StepError
from edgepack.quantization.closeness import NOTICEABLE_DB, Closeness
from edgepack.quantization.dialect import WITHOUT_INT8
from edgepack.quantization.sensitivity import Sensitivity

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]

REPAIRED_DB = 10.0
"""What a ruined model is brought to if it can: an error of a tenth of what its outputs vary by."""
CONFIRMED = 6
"""How many of the places with the largest errors are left float alone, to see what that gains."""
MOST_MEASURED = 12
"""How often the metric is measured at most for one model."""
_HURTS = "it costs the most accuracy"
_SHOWN = 3
_MET = (0.0, 0.0)


@dataclass(frozen=True)
class Scheme:
    """All that decides a QDQ file besides its dialect."""

    exact: onnx.ModelProto
    """The float model. ``model`` has its graph, and tensors of the same names."""
    model: onnx.ModelProto
    """The model that is written: its weights may be rounded already, its biases corrected."""
    ranges: Mapping[str, tuple[float, float]]
    weight_scales: Mapping[str, Array] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    """Nodes that stay float, with the reason."""
    unpaired: frozenset[str] = frozenset()
    """Activations that are not quantized though the dialect's rules would do it."""
    wide: frozenset[str] = frozenset()
    """Activations of 16 bits."""

    @property
    def plain(self) -> Scheme:
        """The scheme with weights rounded to the nearest and biases as they were.

        What is fitted makes up for errors elsewhere: where those go, it is an error itself.
        """
        return replace(self, model=self.exact, weight_scales={})

    def leaving(self, nodes: Mapping[str, str]) -> Scheme:
        """Return the scheme with more nodes left float; they get their exact constants back."""
        new = set(nodes) - set(self.left)
        model = _with_exact_constants(self.model, self.exact, new) if new else self.model
        return replace(self, model=model, left={**nodes, **self.left})

    def with_tensors(self, tensors: Iterable[str], *, wide: bool) -> Scheme:
        """Return the scheme with activations in 16 bits, or not quantized at all."""
        if wide:
            return replace(self, wide=self.wide | set(tensors))
        return replace(self, unpaired=self.unpaired | set(tensors))


def _with_exact_constants(
    model: onnx.ModelProto, exact: onnx.ModelProto, nodes: set[str]
) -> onnx.ModelProto:
    """Return a model in which these nodes have the exact constants, as copies of their own."""
    import onnx

    originals = {tensor.name: tensor for tensor in exact.graph.initializer}
    inputs = {node.name: node.input for node in exact.graph.node}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.name not in nodes:
            continue
        node.input[:] = inputs[node.name]
        for place, name in enumerate(node.input):
            if name in originals:
                own = copy.graph.initializer.add()
                own.CopyFrom(originals[name])
                own.name = node.input[place] = f"{name}/{node.name}/exact"
    return copy


@dataclass(frozen=True)
class Trial:
    """A scheme that was tried: its file, and how close that is."""

    scheme: Scheme
    """As written: more nodes may stay float than was asked for."""
    path: Path
    """The model in a folder of its own."""
    closeness: Closeness


@dataclass(frozen=True)
class Measured:
    """What the user's metric says of a model, on the evaluation samples."""

    metric: str
    drop: float
    """How much worse than the float model, in the metric's unit."""
    sqnr_db: float
    """Of the worst group of channels of the worst output."""


@dataclass(frozen=True)
class Tried:
    """One line of what a search did."""

    what: str
    on: str
    """The samples it was judged on: ``calibration`` (those held out) or ``evaluation``."""
    accepted: bool = False
    """Whether it was kept, or met the limit."""
    sqnr_db: float | None = None
    """Of the worst group of channels of the worst output; None if there was nothing to judge."""
    agreement: float | None = None
    """Share of samples with the float model's best class."""
    metric_drop: float | None = None

    def __str__(self) -> str:
        parts = [
            "" if self.metric_drop is None else f"metric drop {self.metric_drop:.4f}",
            "" if self.sqnr_db is None else f"{self.sqnr_db:.1f} dB",
            "" if self.agreement is None else f"agreement {self.agreement:.0%}",
        ]
        found = ", ".join(filter(None, parts))
        return f"{self.what}{': ' if found else ''}{found}{' (kept)' if self.accepted else ''}"

    def facts(self) -> dict[str, Any]:
        """Return it as JSON-ready values, the same in every build of the same inputs."""
        numbers = {
            "sqnr_db": self.sqnr_db and round(max(self.sqnr_db, -EQUAL_SQNR_DB), 1),
            "agreement": self.agreement and round(self.agreement, 4),
            "metric_drop": self.metric_drop and round(self.metric_drop, 6),
        }
        return {"what": self.what, "on": self.on, "accepted": self.accepted, **numbers}


class Limit(Protocol):
    """How much may be lost."""

    def excess(self, drop: float, sqnr_db: float) -> tuple[float, float]:
        """Return by how much the drop is too large and the SQNR too small; (0, 0) if met."""


class Maker(Protocol):
    """Writes and judges models; the search knows neither files nor samples."""

    def make(self, scheme: Scheme) -> Trial | None:
        """Return the scheme as a model, or None if the target would run none of it as integers."""

    def is_closer(self, trial: Trial, other: Trial) -> bool:
        """Return whether a trial's outputs are closer to the float model's than another's."""

    def fitted(self, scheme: Scheme) -> Scheme:
        """Return the scheme with its weights fitted to what they meet."""

    def sensitivity(self, trial: Trial) -> Sensitivity:
        """Return the errors of each place."""

    def measure(self, trial: Trial) -> Measured:
        """Return what the user's metric says."""


@dataclass(frozen=True)
class Method:
    """Something that may bring the outputs nearer, or not."""

    what: str
    """Its name for people."""
    apply: Callable[[Scheme], Iterable[Scheme]]
    """Returns one scheme, several alternatives, or none where it has nothing to do."""


@dataclass
class Search:
    """Keeps the best model and a record of all that was tried."""

    maker: Maker
    best: Trial
    tried: list[Tried] = field(default_factory=list)

    def improve(self, methods: Sequence[Method]) -> None:
        """Try methods one after the other, each on top of those that were kept."""
        self._record("ranges from lowest to highest, nearest rounding", self.best, accepted=True)
        for method in methods:
            try:
                for scheme in method.apply(self.best.scheme):
                    self._try(method.what, scheme)
            except EdgepackError as error:
                # Nothing depends on a method, but that it did not work has to be known.
                self.tried.append(Tried(f"{method.what} failed, {error.problem}", "calibration"))

    def _try(self, what: str, scheme: Scheme) -> None:
        trial = self.maker.make(scheme)
        if trial is not None:
            accepted = self.maker.is_closer(trial, self.best)
            self._record(what, trial, accepted=accepted)
            self._keep(trial, accepted=accepted)

    def require_signal(self) -> None:
        """Make sure that the outputs are more than noise, if need be with layers left float.

        Nodes whose weights, and tensors whose rounding cost most are left float, twice as many each
        time, until the error is a tenth of what the outputs vary by.

        Raises:
            StepError: With half of the layers left float, the outputs still are noise.
        """
        ruin = self.best.closeness.ruin
        if not ruin:
            return
        start = self.best.scheme.plain
        places = _places(self.maker.sensitivity(self.best), start, tensors=True)
        for what, scheme in _leaving_more(start, places):
            trial = self.maker.make(scheme)
            if trial is None:
                break
            closer = self.maker.is_closer(trial, self.best)
            self._record(what, trial, accepted=closer)
            self._keep(trial, accepted=closer)
            if closer and trial.closeness.resolved_db >= REPAIRED_DB and not trial.closeness.ruin:
                break
        self._fit_anew()
        if self.best.closeness.ruin:
            raise StepError(
                f"int8 gives noise: on held-out calibration samples {ruin}; tried:"
                f" {describe(self.tried)}",
                hint="quantize weights with one scale per channel if the provider takes that, give"
                f" calibration samples like those in use, or {WITHOUT_INT8}",
            )

    def _fit_anew(self) -> None:
        trial = self.maker.make(self.maker.fitted(self.best.scheme))
        if trial is not None:
            accepted = self.maker.is_closer(trial, self.best)
            self._record("weights fitted to what stays quantized", trial, accepted=accepted)
            self._keep(trial, accepted=accepted)

    def meet(self, limit: Limit, *, wide: bool = False) -> None:
        """Search for a model that meets a limit; where none does, keep the nearest.

        What is no closer on the held-out samples than what was measured before is not measured.

        Args:
            limit: What the user allows.
            wide: Whether the provider takes operators of 16 bits beside those of 8.
        """
        least = self._measure("as it is", self.best, limit)
        if least == _MET:
            return
        closest, measured = self.best.closeness, 1
        fits = bool(self.best.scheme.weight_scales)
        for what, scheme in self._rungs(wide=wide):
            trial = self.maker.make(scheme)
            if trial is not None and fits:
                trial = self._fitted(trial)
            if trial is None:
                continue
            if trial.closeness.gain_db(closest) < NOTICEABLE_DB:
                self._record(what, trial, accepted=False)
                self._keep(trial, accepted=False)
                continue
            excess = self._measure(what, trial, limit)
            closest, measured = trial.closeness, measured + 1
            self._keep(trial, accepted=excess < least)
            least = min(least, excess)
            if least == _MET or measured == MOST_MEASURED:
                return

    def _fitted(self, trial: Trial) -> Trial | None:
        """Return a trial with its weights fitted, now that it is known what stays float."""
        shutil.rmtree(trial.path.parent)
        return self.maker.make(self.maker.fitted(trial.scheme))

    def _measure(self, what: str, trial: Trial, limit: Limit) -> tuple[float, float]:
        found = self.maker.measure(trial)
        excess = limit.excess(found.drop, found.sqnr_db)
        met = excess == _MET
        self.tried.append(Tried(what, "evaluation", met, found.sqnr_db, metric_drop=found.drop))
        return excess

    def _rungs(self, *, wide: bool) -> Iterator[tuple[str, Scheme]]:
        """Yield what may bring the outputs nearer, that which costs least at run time first."""
        found = self.maker.sensitivity(self.best)
        plain = self.maker.make(self.best.scheme.plain)
        if plain is None:
            return
        scheme = plain.scheme
        if wide:
            tensors = [each.tensor for each in found.tensors if each.loss > 0]
            everything = scheme.with_tensors(tensors, wide=True)
            if self._gain("all activations in 16 bits", everything, plain) >= NOTICEABLE_DB:
                for count in _doubling(len(tensors)):
                    some = tensors[:count]
                    what = f"16 bits: {_named([repr(name) for name in some])}"
                    yield what, scheme.with_tensors(some, wide=True)
                scheme = everything
        places = self._confirmed(scheme, _places(found, scheme, tensors=not wide), plain)
        shutil.rmtree(plain.path.parent)
        yield from _leaving_more(scheme, places)

    def _confirmed(self, scheme: Scheme, places: Sequence[_Place], plain: Trial) -> list[_Place]:
        """Return places ordered by what they gain: those with the largest errors by measurement."""
        gains = {
            place: self._gain(f"{place} float", place.left_out_of(scheme), plain)
            for place in places[:CONFIRMED]
        }
        gaining = [place for place, gain in gains.items() if gain >= NOTICEABLE_DB]
        first = sorted(gaining, key=lambda place: -gains[place])
        return [*first, *(place for place in places if place not in first)]

    def _gain(self, what: str, scheme: Scheme, plain: Trial) -> float:
        """Return how many dB a scheme gains over another; both with plain weights."""
        trial = self.maker.make(scheme)
        if trial is None:
            return 0.0
        self._record(f"nearest rounding, {what}", trial, accepted=False)
        shutil.rmtree(trial.path.parent)
        return trial.closeness.gain_db(plain.closeness)

    def _record(self, what: str, trial: Trial, *, accepted: bool) -> None:
        found = trial.closeness
        self.tried.append(Tried(what, "calibration", accepted, found.sqnr_db, found.agreement))

    def _keep(self, trial: Trial, *, accepted: bool) -> None:
        """Make a trial the best one, or not; remove the file of the other."""
        loser = self.best if accepted else trial
        self.best = trial if accepted else self.best
        shutil.rmtree(loser.path.parent)


@dataclass(frozen=True)
class _Place:
    """What can be left float: nodes with their weights, or a tensor between nodes."""

    nodes: tuple[str, ...]
    tensor: str
    """Without nodes: the tensor that is not quantized."""
    loss: float

    def left_out_of(self, scheme: Scheme) -> Scheme:
        if self.nodes:
            return scheme.leaving(dict.fromkeys(self.nodes, _HURTS))
        return scheme.with_tensors([self.tensor], wide=False)

    def __str__(self) -> str:
        return ", ".join(map(repr, self.nodes or (self.tensor,)))


def _places(found: Sensitivity, scheme: Scheme, *, tensors: bool) -> list[_Place]:
    """Return what can be left float, the largest error first."""
    nodes = [
        _Place(left, each.tensor, each.loss)
        for each in found.nodes
        if (left := tuple(name for name in each.nodes if name not in scheme.left))
    ]
    bare = [
        _Place((), each.tensor, each.loss)
        for each in found.tensors
        if tensors and each.tensor not in scheme.unpaired
    ]
    places = [place for place in (*nodes, *bare) if place.loss > 0]
    return sorted(places, key=lambda place: -place.loss)


def _leaving_more(scheme: Scheme, places: Sequence[_Place]) -> Iterator[tuple[str, Scheme]]:
    """Yield schemes that leave 1, 2, 4 and so on of the places float, up to half of them."""
    for count in _doubling(len(places) // 2):
        smaller = scheme
        for place in places[:count]:
            smaller = place.left_out_of(smaller)
        yield f"float: {_named([str(place) for place in places[:count]])}", smaller


def _doubling(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and at last the most."""
    counts = [1 << n for n in range(most.bit_length())]
    return counts if not counts or counts[-1] == most else [*counts, most]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def describe(tried: Sequence[Tried]) -> str:
    """Return what was tried as one line, ended by what was kept."""
    return "; ".join(map(str, tried))
