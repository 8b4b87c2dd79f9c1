"""How close quantized models come to their float model on samples that nothing was fitted to.

A method is kept only if it brings the outputs nearer on such held-out samples. They are few, so a
difference counts only if it is larger than chance explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from edgepack.base.arrays import Array
from edgepack.metrics.accuracy import (
    EQUAL_SQNR_DB,
    SIMILAR_RANGE,
    OutputCloseness,
    find_class_scores,
    group_by_range,
    sqnr_db,
)
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.spreading import choose_spread

if TYPE_CHECKING:
    import onnxruntime

Verdict = Literal["closer", "farther", "unclear"]

HELD_OUT_EVERY = 4
"""One sample in so many is held out."""
LEAST_SAMPLES = 8
"""With fewer, none is held out: the rest would be too few to fit anything to."""
MOST_HELD_OUT = 32
"""More samples do not change decisions, and each needs a run of every model that is tried."""
MOST_FITTED = 128
"""More samples make weights no better, and each costs a run of both networks."""
NOTICEABLE_DB = 0.1
"""A smaller difference in SQNR does not count."""
RUINED_DB = 1.0
"""How far the error of a ruined output lies at most below what the output varies by: at 0 dB, an
output that is the same for all samples would be as close."""
LEAST_KAPPA = 0.2
"""Cohen's kappa of the best classes at or below which agreement is near chance ("slight", Landis
and Koch 1977)."""
MOST_CHANCE = 2 / 3
"""Where best classes agree more often by chance alone, kappa says nothing: with nearly all samples
of one class, one that differs makes it 0. Two classes, each as often, agree in half by chance."""
# Below this range, all is noise; above it, all counts as equal.
_LOWEST_DB, _HIGHEST_DB = 0.0, 60.0
_LEAST_VARIATION = 1e-8
"""Of a group's energy: what varies less over the samples says nothing about them."""
_NO_NUMBER = "an output has NaN or infinity: a small number was rounded to 0, and divided by"
_KEPT_BYTES = 256_000_000


@dataclass(frozen=True)
class Split:
    """Which samples methods are fitted to, and which judge them: indices, in ascending order."""

    fitted: tuple[int, ...]
    held_out: tuple[int, ...]

    @property
    def is_apart(self) -> bool:
        """Whether no sample is in both; False where there are too few to hold any out."""
        return not set(self.fitted) & set(self.held_out)


class ClosenessVerdict(NamedTuple):
    """Whether a model is closer than another one, and why, in words."""

    verdict: Verdict
    why: str


def judge_gain(gain_db: float, error_db: float, where: str) -> ClosenessVerdict:
    """Return what a gain shows, given its standard error.

    Args:
        gain_db: How much closer it is.
        error_db: The standard error of that.
        where: What came closer, for people.
    """
    if abs(gain_db) < NOTICEABLE_DB:
        return ClosenessVerdict("unclear", f"no closer {where}: less than {NOTICEABLE_DB} dB")
    direction: Verdict = "closer" if gain_db > 0 else "farther"
    change = f"{abs(gain_db):.1f} dB {direction} {where}"
    if abs(gain_db) <= error_db:
        chance = f"which may be chance (standard error {error_db:.1f} dB)"
        return ClosenessVerdict("unclear", f"{change}, {chance}")
    more = ", more than chance makes" if gain_db > 0 else ""
    return ClosenessVerdict(direction, f"{change}{more}")


def compute_jackknife_error(without: Sequence[float]) -> float:
    """Return the standard error of a statistic from its values with each sample left out."""
    count = len(without)
    return math.sqrt((count - 1) * float(np.var(without))) if count > 1 else 0.0


def split_samples(count: int) -> Split:
    """Return the split of a calibration set: by index, so that it is the same in every build.

    Every fourth sample is held out; with fewer than 8 samples all are in both parts. Of many
    samples some are taken, evenly spread.
    """
    every = tuple(range(count))
    if count < LEAST_SAMPLES:
        return Split(every, every)
    held_out = every[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    fitted = tuple(sorted(set(every) - set(held_out)))
    return Split(
        tuple(choose_spread(fitted, MOST_FITTED)), tuple(choose_spread(held_out, MOST_HELD_OUT))
    )


@dataclass(frozen=True)
class Chosen:
    """Some samples of a set, read one at a time and as often as asked for."""

    samples: SampleSet
    indices: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return (self.samples.read_inputs(index) for index in self.indices)


@dataclass(frozen=True)
class ModelCloseness:
    """How close one model is to the float model, on the same samples as all it is compared with."""

    signal: Array
    """(samples, groups) float64: energy of the float model's outputs about their means over the
    samples, element by element: what is the same for all of them is not what an output says. Of one
    sample, and of an output whose shape differs between samples, it is the energy about 0. A group
    is a group of channels of similar range (:func:`edgepack.metrics.accuracy.group_by_range`) of
    one output; those that do not vary are left out, unless none does."""
    noise: Array
    """(samples, groups) float64: energy of the difference; infinite where it is no number. Of an
    output of integers it is the number of values that differ, and its size is the signal. Where an
    output has another shape than the float model's, it is the share of the signal that the values
    are that there are too many or too few."""
    variation: Array
    """(groups,) float64: the signal of all samples, as of independent ones."""
    kinds: tuple[int, ...]
    """By group: groups of one kind have the same number. Between the ranges of two kinds of one
    output is a gap of more than 16."""
    best: Array | None
    """(samples, 2) int64: the classes with the highest scores, of the float and of this model; None
    where no output holds class scores."""
    reshaped: frozenset[int] = frozenset()
    """Groups of outputs that have another shape than the float model's in some samples, as where
    the data decide how many values there are. They are not judged unless no others are left."""
    offset: Array | float = 0.0
    """(groups,) float64: the part of the noise, over all samples, that is the same error in each of
    them."""

    @property
    def sqnr_db(self) -> float:
        """SQNR of the worst group over all samples."""
        signal, noise = (each[:, self._judged].sum(0) for each in (self.signal, self.noise))
        return float(min(_compute_decibels(signal, noise), default=EQUAL_SQNR_DB))

    @property
    def error_share(self) -> float:
        """Energy of the error over that of the signal, 1 at most; the mean over groups."""
        signal, noise = (each[:, self._judged].sum(0) for each in (self.signal, self.noise))
        share = np.divide(noise, signal, out=np.ones_like(noise), where=signal > 0)
        share[noise == 0] = 0.0
        return float(np.mean(np.minimum(share, 1.0))) if share.size else 0.0

    @property
    def agreement(self) -> float | None:
        """Share of samples with the same best class; None where there are no classes."""
        return None if self.best is None else float(np.mean(self._agrees))

    @property
    def resolved_db(self) -> float:
        """How far the error lies below what the outputs vary by, for the worst kind of groups.

        Groups of one kind are judged together: classes that no sample shows have scores of nearly
        0, which int8 makes 0 without any loss. What is always 0 is not judged.
        """
        kinds = {self.kinds[group] for group in self._judged}
        return min(
            (
                sqnr_db(varied, noise)
                for kind in sorted(kinds)
                for varied, noise in [self._sum_kind(kind)]
                if varied > 0 or math.isinf(noise)
            ),
            default=EQUAL_SQNR_DB,
        )

    def _sum_kind(self, kind: int) -> tuple[float, float]:
        members = [group for group in self._judged if self.kinds[group] == kind]
        return float(self.variation[members].sum()), float(self.noise[:, members].sum())

    @property
    def _judged(self) -> list[int]:
        return _list_judged(len(self.kinds), self.reshaped)

    @property
    def ruin(self) -> str | None:
        """Why the outputs are noise; None if they are not."""
        if not np.isfinite(self.noise[:, self._judged]).all():
            return _NO_NUMBER
        if self.resolved_db <= RUINED_DB:
            what = "what the output varies by between samples"
            if self.reshaped.intersection(self._judged):
                what = "the output, which has another shape than the float model's in some samples"
            return f"the error is as large as {what} ({self.resolved_db:.1f} dB)"
        best = self.best
        if best is not None and len(best) >= LEAST_SAMPLES and _is_agreement_chance(*best.T):
            return f"the best class is the same in {self.agreement:.0%} of samples, as by chance"
        return None

    def judge(self, other: ModelCloseness) -> ClosenessVerdict:
        """Return whether this one is closer, farther, or too near the other to decide, and why.

        The worst group decides, or all groups on average where the worst differs by less than
        0.1 dB. The difference must be more than its standard error over the samples, by the
        jackknife, and at least 0.1 dB. Where the best classes agree less, by more than one standard
        deviation of as many coin tosses, it is farther in any case.
        """
        lost, won = self._count_changed(other)
        if lost - won > math.sqrt(lost + won):
            fewer = f"the best class is fp32's in {lost - won} samples fewer"
            return ClosenessVerdict("farther", f"{fewer}, more than chance makes")
        count = len(self.signal)
        every = np.arange(count)
        without = [self._compute_gain(other, np.delete(every, n)) for n in range(count)]
        decides = abs(_compute_worst_gain(*self._compute_both_db(other, every))) >= NOTICEABLE_DB
        where = "in the worst channels" if decides else "on average over channels"
        found = judge_gain(self.compute_gain_db(other), compute_jackknife_error(without), where)
        farther_db = -self._compute_steady_gain(other)
        if found.verdict == "closer" and farther_db >= NOTICEABLE_DB:
            return ClosenessVerdict(
                "unclear",
                f"closer by the same shift in all samples alone:"
                f" {farther_db:.1f} dB farther without",
            )
        return found

    def _compute_steady_gain(self, other: ModelCloseness) -> float:
        """Return by how many dB this one is closer without the mean error of each."""
        if len(self.signal) == 1:
            return 0.0
        groups = _list_judged(len(self.kinds), self.reshaped | other.reshaped)
        return _compute_gain(self._compute_steady_db(groups), other._compute_steady_db(groups))

    def _compute_steady_db(self, groups: list[int]) -> Array:
        """Return the SQNR of each group without the error that is the same in all samples."""
        noise = np.maximum(self.noise.sum(0) - self.offset, 0.0)
        found = _compute_decibels(self.signal.sum(0)[groups], noise[groups])
        return np.clip(found, _LOWEST_DB, _HIGHEST_DB)

    def compute_gain_db(self, other: ModelCloseness) -> float:
        """Return by how many dB this one is closer, on all samples."""
        return self._compute_gain(other, np.arange(len(self.signal)))

    def _compute_gain(self, other: ModelCloseness, samples: Array) -> float:
        """Return by how many dB this one is closer on some of the samples."""
        return _compute_gain(*self._compute_both_db(other, samples))

    def _compute_both_db(self, other: ModelCloseness, samples: Array) -> tuple[Array, Array]:
        """Return the SQNR of each group that both have, of this one and of the other."""
        groups = _list_judged(len(self.kinds), self.reshaped | other.reshaped)
        return self._compute_groups_db(samples, groups), other._compute_groups_db(samples, groups)

    def _compute_groups_db(self, samples: Array, groups: list[int]) -> Array:
        """Return each group's SQNR; what is all noise, and what is nearly equal, is cut off."""
        signal, noise = (each[samples][:, groups].sum(0) for each in (self.signal, self.noise))
        return np.clip(_compute_decibels(signal, noise), _LOWEST_DB, _HIGHEST_DB)

    def _count_changed(self, other: ModelCloseness) -> tuple[int, int]:
        """Return how many samples' best classes this one alone misses, and alone meets."""
        if self.best is None or other.best is None:
            return 0, 0
        ours, theirs = self._agrees, other._agrees
        return int(np.sum(theirs & ~ours)), int(np.sum(ours & ~theirs))

    @property
    def _agrees(self) -> Array:
        """(samples,) bool: whether the best class is the same; empty where there are none."""
        return np.zeros(0, bool) if self.best is None else self.best[:, 0] == self.best[:, 1]


def _compute_gain(ours: Array, theirs: Array) -> float:
    """Return by how many dB groups are closer: the worst ones, or all where these are not."""
    worst = _compute_worst_gain(ours, theirs)
    if abs(worst) >= NOTICEABLE_DB or not ours.size:
        return worst
    return float(ours.mean() - theirs.mean())


def _compute_worst_gain(ours: Array, theirs: Array) -> float:
    return float(ours.min(initial=_HIGHEST_DB) - theirs.min(initial=_HIGHEST_DB))


@dataclass(frozen=True)
class _Group:
    """Channels of similar range in one output; outputs of another size have groups of their own."""

    output: str
    size: int
    """How many channels the output has; 0 for an output of integers."""
    channels: Array
    kind: int
    variation: float
    """See :class:`ModelCloseness`."""
    about_mean: bool = False
    """Whether that is about the mean over the samples."""


@dataclass
class FloatOutputs:
    """The float model's outputs for samples, as often as asked for.

    The first 256 MB are kept; the others are computed again.
    """

    model: Path
    feeds: Chosen

    def __iter__(self) -> Iterator[Arrays]:
        yield from self._kept
        rest = Chosen(self.feeds.samples, self.feeds.indices[len(self._kept) :])
        yield from (run_session(self._session, feed) for feed in rest)

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        return make_session(self.model)

    @cached_property
    def _kept(self) -> list[Arrays]:
        kept: list[Arrays] = []
        room = _KEPT_BYTES
        for feed in self.feeds:
            outputs = run_session(self._session, feed)
            room -= sum(array.nbytes for array in outputs.values())
            if room < 0:
                break
            kept.append(outputs)
        return kept


@dataclass
class HeldOut:
    """Compares models with their float model on the same few samples."""

    reference: FloatOutputs
    scores_output: str | None = None
    """The output that may hold class scores."""

    def measure_closeness(self, model: Path) -> ModelCloseness:
        """Return how close a model is.

        Sessions are made as for goldens and evaluation (:func:`edgepack.model.running.make_session`
        ), so that int8 does not saturate on a processor without VNNI.

        Raises:
            ModelError: onnxruntime refuses the model.
        """
        session = make_session(model)
        energies, best = [], []
        reshaped: set[int] = set()
        errors: dict[str, Array] = {}
        for feed, expected in zip(self.reference.feeds, self.reference, strict=True):
            found = run_session(session, feed)
            centred = [self._center_outputs(outputs) for outputs in (expected, found)]
            energies.append(_measure_energies(self._groups, *centred))
            _add_errors(errors, *centred)
            reshaped |= _find_reshaped(self._groups, expected, found)
            best.append([self._find_best_class(outputs) for outputs in (expected, found)])
        pairs = np.array(energies, np.float64).reshape(len(energies), len(self._groups), 2)
        scored = all(index is not None for indices in best for index in indices)
        return ModelCloseness(
            signal=pairs[:, :, 0],
            noise=pairs[:, :, 1],
            offset=_compute_offsets(self._groups, errors, len(energies)),
            variation=np.array([group.variation for group in self._groups], np.float64),
            kinds=tuple(group.kind for group in self._groups),
            best=np.array(best, np.int64) if scored else None,
            reshaped=frozenset(reshaped),
        )

    @cached_property
    def _totals(self) -> dict[str, _Total]:
        totals: dict[str, _Total] = {}
        for outputs in self.reference:
            for name, array in outputs.items():
                totals.setdefault(name, _Total()).add(array)
        return totals

    @cached_property
    def _groups(self) -> tuple[_Group, ...]:
        """The groups of all outputs that vary over the samples; all, if none does."""
        told = [group for group in self._split_groups(means=True) if group.variation > 0]
        return tuple(told) or tuple(self._split_groups(means=False))

    def _split_groups(self, *, means: bool) -> list[_Group]:
        groups: list[_Group] = []
        for name, total in self._totals.items():
            kind = groups[-1].kind + 1 if groups else 0
            groups += _split_groups(name, total, kind, means=means)
        return groups

    @cached_property
    def _means(self) -> dict[str, Array]:
        """The mean of each output that varies over the samples, element by element."""
        varying = {group.output for group in self._groups if group.about_mean}
        means = {name: self._totals[name].mean for name in varying}
        return {name: mean for name, mean in means.items() if mean is not None}

    def _center_outputs(self, outputs: Arrays) -> Arrays:
        """Return outputs less their means; those of another shape as they are."""
        with np.errstate(invalid="ignore"):
            return {
                name: array - mean
                if (mean := self._means.get(name)) is not None and mean.shape == array.shape
                else array
                for name, array in outputs.items()
            }

    def _find_best_class(self, outputs: Arrays) -> int | None:
        scores = find_class_scores(outputs[self.scores_output]) if self.scores_output else None
        return None if scores is None else int(np.argmax(scores))


@dataclass
class _Total:
    """What one output of the float model holds over all samples."""

    energies: OutputCloseness = field(default_factory=OutputCloseness)
    """Of floats alone."""
    sum: Array | None = None
    """Of floats alone; None where shapes differ between samples."""
    size: int = 0
    """The number of values."""
    count: int = 0

    def add(self, array: Array) -> None:
        if array.dtype.kind == "f":
            self._add_floats(array)
        self.size += array.size
        self.count += 1

    def _add_floats(self, array: Array) -> None:
        if array.size:
            self.energies.add(array, array)
        if self.count == 0:
            self.sum = np.zeros(array.shape, np.float64)
        if self.sum is not None:
            with np.errstate(invalid="ignore"):
                self.sum = self.sum + array if self.sum.shape == array.shape else None

    @property
    def mean(self) -> Array | None:
        """Element by element; None where shapes differ, of integers, and of one sample."""
        return None if self.sum is None or self.count == 1 else self.sum / self.count

    def compute_variation(self, size: int) -> Array:
        """Return, for each channel, the energy of the differences from the mean; 0 of hardly any.

        The energy is scaled as for independent samples, which are nearer to their own mean than to
        that of all samples there could be.
        """
        energy, mean = self.energies.sums[size].signal, OutputCloseness()
        if self.mean is None:
            return energy
        mean.add(self.mean, self.mean)
        around = energy - self.count * mean.sums[size].signal
        around[around <= _LEAST_VARIATION * energy] = 0.0
        return np.asarray(around * self.count / (self.count - 1))


def _split_groups(output: str, total: _Total, kind: int, *, means: bool) -> Iterator[_Group]:
    """Yield the groups of one output; their kinds count from the given number."""
    about_mean = means and total.mean is not None
    if not total.energies.sums:
        yield _Group(output, 0, np.zeros(0, int), kind, float(total.size))
    for size, sums in total.energies.sums.items():
        variation = total.compute_variation(size) if about_mean else sums.signal
        lowest = math.inf
        for channels in group_by_range(sums.peak):
            peaks = sums.peak[channels]
            kind += bool(peaks.max() * SIMILAR_RANGE < lowest < math.inf)
            lowest = float(min(peaks[peaks > 0], default=0.0))
            varied = float(variation[channels].sum())
            yield _Group(output, size, channels, kind, varied, about_mean)
        kind += 1


def _measure_energies(
    groups: Sequence[_Group], expected: Arrays, found: Arrays
) -> list[tuple[float, float]]:
    """Return the energies of signal and error of one sample in each group."""
    ones: dict[str, OutputCloseness] = {}
    for name in {group.output for group in groups if group.size}:
        ones[name] = OutputCloseness()
        ones[name].add(expected[name], found[name])
    energies = []
    for group in groups:
        ours, theirs = expected[group.output], found[group.output]
        signal, noise = (
            _compute_energies(group, ones[group.output])
            if group.size
            else _count_differing(ours, theirs)
        )
        energies.append((signal, noise * _compute_size_share(ours, theirs)))
    return energies


def _add_errors(errors: dict[str, Array], expected: Arrays, found: Arrays) -> None:
    """Add the errors of one sample to each output's sum; one of another shape is left out."""
    for name, array in expected.items():
        if array.dtype.kind == "f" and array.shape == found[name].shape:
            with np.errstate(invalid="ignore"):
                error = found[name].astype(np.float64) - array
            # What is not finite in both is no error.
            total = errors.setdefault(name, np.zeros(array.shape))
            if total.shape == error.shape:
                total += np.where(np.isfinite(error), error, 0.0)


def _compute_offsets(groups: Sequence[_Group], errors: Mapping[str, Array], count: int) -> Array:
    """Return, by group, the energy of the mean error over so many samples."""
    sums = {}
    for name, total in errors.items():
        one = OutputCloseness()
        one.add(total / math.sqrt(count), total)
        sums[name] = one.sums
    return np.array(
        [
            float(sums[group.output][group.size].signal[group.channels].sum())
            if group.size in sums.get(group.output, {})
            else 0.0
            for group in groups
        ]
    )


def _compute_energies(group: _Group, one: OutputCloseness) -> tuple[float, float]:
    if group.size not in one.sums:
        return 0.0, 0.0
    sums = one.sums[group.size]
    noise = float(sums.noise[group.channels].sum())
    return float(sums.signal[group.channels].sum()), noise if math.isfinite(noise) else math.inf


def _count_differing(expected: Array, found: Array) -> tuple[float, float]:
    """Return the size of an output of integers, and how many of its values differ."""
    if expected.shape != found.shape:
        return float(expected.size), float(expected.size)
    return float(expected.size), float(np.sum(expected != found))


def _compute_size_share(expected: Array, found: Array) -> float:
    """Return what share of all values there are too many or too few; 1 if neither."""
    difference = abs(found.size - expected.size)
    return difference / max(expected.size, 1) if difference else 1.0


def _find_reshaped(groups: Sequence[_Group], expected: Arrays, found: Arrays) -> set[int]:
    """Return the groups of outputs whose shapes differ in one sample."""
    names = {name for name, array in expected.items() if array.shape != found[name].shape}
    return {number for number, group in enumerate(groups) if group.output in names}


def _compute_decibels(signal: Array, noise: Array) -> Array:
    """Return SQNR in dB for pairs of energies."""
    pairs = zip(signal.tolist(), noise.tolist(), strict=True)
    return np.array([sqnr_db(*pair) for pair in pairs], np.float64)


def _list_judged(count: int, reshaped: frozenset[int]) -> list[int]:
    """Return which of so many groups can be judged: all, if none keeps its shape."""
    return [group for group in range(count) if group not in reshaped] or list(range(count))


def _is_agreement_chance(ours: Array, theirs: Array) -> bool:
    """Return whether best classes agree about as often as by chance, where that can be told."""
    classes = np.union1d(ours, theirs)
    chance = sum(float(np.mean(ours == c) * np.mean(theirs == c)) for c in classes)
    if chance > MOST_CHANCE:
        return False
    kappa = (float(np.mean(ours == theirs)) - chance) / (1 - chance)
    return kappa <= LEAST_KAPPA
