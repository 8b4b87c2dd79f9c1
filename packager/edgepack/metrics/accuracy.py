"""How well a variant keeps what fp32 computes: metrics, and closeness of outputs. Pure numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from edgepack.base.arrays import Array
from edgepack.base.statistics import standard_deviation, t_quantile

EQUAL_SQNR_DB = 200.0
"""The SQNR in dB of equal outputs: more than float32 can express. Because JSON has no infinity, its
negative stands for outputs that are only noise or no numbers."""
SIMILAR_RANGE = 16.0
"""Channels whose ranges differ by no more than this factor are measured together."""
_Z95 = 1.959964
"""The 97.5th percentile of the standard normal distribution."""


def sqnr_db(signal: float, noise: float) -> float:
    """Return the signal to noise ratio in dB of two energies; 200 when there is no noise."""
    if not math.isfinite(noise):
        return -math.inf
    if noise == 0:
        return EQUAL_SQNR_DB
    return min(EQUAL_SQNR_DB, 10 * math.log10(signal / noise)) if signal > 0 else -math.inf


def min_sqnr_db(reference: Mapping[str, Array], outputs: Mapping[str, Array]) -> float:
    """Return the smallest SQNR over the outputs, each taken whole.

    Outputs of integers or bools count as equal if at least 99 in 100 values are.
    """
    return min(array_sqnr_db(reference[name], outputs[name]) for name in reference)


def array_sqnr_db(reference: Array, output: Array) -> float:
    """Return the SQNR of one output against its reference."""
    if reference.shape != output.shape:
        return -math.inf
    if reference.dtype.kind != "f":
        same = float(np.mean(reference == output)) if reference.size else 1.0
        return EQUAL_SQNR_DB if same >= 0.99 else -math.inf
    if np.array_equal(reference, output, equal_nan=True):
        return EQUAL_SQNR_DB
    ref, out = _drop_equal_infinities(reference, output)
    return sqnr_db(float(np.sum(ref**2)), float(np.sum((ref - out) ** 2)))


def _drop_equal_infinities(reference: Array, output: Array) -> tuple[Array, Array]:
    """Return both in float64, with 0 where both have the same NaN or infinity (a mask, say)."""
    ref, out = reference.astype(np.float64), output.astype(np.float64)
    same = ~np.isfinite(ref) & ((ref == out) | (np.isnan(ref) & np.isnan(out)))
    return np.where(same, 0.0, ref), np.where(same, 0.0, out)


def find_class_scores(output: Array) -> Array | None:
    """Return an output of one sample as a vector of class scores, or None if it is not one.

    They have the shape (1, classes) or (1, classes, 1, 1). An output with three axes would be a
    detector's head with one value for each place.
    """
    scores = output.squeeze()
    plain = output.ndim in (2, 4) and scores.ndim == 1 and output.shape[1] == scores.size
    return scores if plain and scores.size > 1 and scores.dtype.kind == "f" else None


@dataclass
class _Sums:
    """Sums over samples, a value for each channel."""

    signal: Array
    noise: Array
    peak: Array


@dataclass
class OutputCloseness:
    """Running sums over samples for one output, per channel.

    The channel axis is axis 1 for outputs of rank 4 and more, and the shorter of axes 1 and 2 for
    rank 3, where a detector's heads are laid out either way. A sample that is one vector, as class
    scores and embeddings are, is one channel: its values are of one kind, and a class that no
    sample shows has a small range without being another quantity. Samples with another number of
    channels, for example another sequence length, are summed separately.
    """

    sums: dict[int, _Sums] = field(default_factory=dict)
    """By number of channels."""
    dot: float = 0.0
    reference_energy: float = 0.0
    output_energy: float = 0.0

    def add(self, reference: Array, output: Array) -> None:
        """Add one sample; an output of another shape counts as all 0."""
        if output.shape != reference.shape:
            output = np.zeros_like(reference)
        ref, out = map(_split_by_channel, _drop_equal_infinities(reference, output))
        zeros = np.zeros(ref.shape[0])
        sums = self.sums.setdefault(ref.shape[0], _Sums(zeros, zeros, zeros))
        sums.signal = sums.signal + np.sum(ref**2, axis=1)
        sums.noise = sums.noise + np.sum((ref - out) ** 2, axis=1)
        sums.peak = np.maximum(sums.peak, np.max(np.abs(ref), axis=1, initial=0))
        # An output with infinities counts as if none of its values were numbers.
        with np.errstate(invalid="ignore"):
            self.dot += float(np.sum(ref * out))
        self.reference_energy += float(np.sum(ref**2))
        self.output_energy += float(np.sum(out**2))

    @property
    def cosine(self) -> float:
        """Cosine similarity over all samples and channels; 0 where NaN or infinity came in."""
        if self.reference_energy == self.output_energy == 0:
            return 1.0
        lengths = math.sqrt(self.reference_energy * self.output_energy)
        cosine = self.dot / lengths if lengths else 0.0
        return cosine if math.isfinite(cosine) else 0.0

    @property
    def whole_sqnr_db(self) -> float:
        """SQNR of all channels together."""
        noise = sum(float(sums.noise.sum()) for sums in self.sums.values())
        return sqnr_db(self.reference_energy, noise)

    @property
    def sqnr_db(self) -> float:
        """SQNR of the worst group of channels of similar range."""
        return min(
            (
                sqnr_db(float(sums.signal[group].sum()), float(sums.noise[group].sum()))
                for sums in self.sums.values()
                for group in group_by_range(sums.peak)
            ),
            default=EQUAL_SQNR_DB,
        )


_MOST_VALUES = 1 << 20
"""The most values of one sample's output that are used; of a larger output, evenly spread ones."""
_LEAST_VARIATION = 1e-4
"""The share of an output's magnitude below which its variation says nothing about the samples."""
_OTHER_QUANTITY = 64.0
"""The factor between channels' deviations above which they are different quantities, such as boxes
in pixels and their scores. Channels of one quantity are measured together."""


@dataclass
class Variation:
    """How much an output varies over samples, element by element, about its mean."""

    count: int = 0
    energy: float = 0.0
    """The sum of its squared values."""
    same_shape: bool = True
    _mean: Array | None = None
    _squares: Array | None = None

    def add(self, output: Array) -> Array:
        """Add one sample's output; infinite values count as 0. One of another shape is left out.

        Returns:
            By how much the squared distances from the mean grow with it, element by element: 0 with
            the first, with others about the variance.
        """
        values = output.astype(np.float64)
        values = np.where(np.isfinite(values), values, 0.0)
        if self._mean is None or self._squares is None:
            self._mean, self._squares = np.zeros(values.shape), np.zeros(values.shape)
        self.same_shape &= self._mean.shape == values.shape
        if not self.same_shape:
            return np.zeros(values.shape)
        self.count += 1
        before = values - self._mean
        self._mean += before / self.count
        growth = before * (values - self._mean)
        self._squares += growth
        self.energy += float(np.sum(values**2))
        return np.asarray(growth)

    @property
    def around_mean(self) -> float:
        """The sum over samples of squared distances from their mean."""
        return 0.0 if self._squares is None else float(self._squares.sum())

    @property
    def by_row(self) -> Array:
        """The same by the first axis of outputs ``(rows, values)``."""
        return np.zeros(0) if self._squares is None else np.asarray(self._squares.sum(axis=1))

    @property
    def share(self) -> float:
        """The deviation over samples as a share of the values: 0 where all are equal, 1 at most.

        It is also 1 where it is unknown: shapes differ, or there are no values.
        """
        if not self.same_shape or self.energy <= 0:
            return 1.0
        return math.sqrt(min(1.0, self.around_mean / self.energy))

    @property
    def tells(self) -> bool:
        """Whether the output depends on the samples that were added."""
        alike = self.count < 2 or not self.same_shape or self.energy <= 0
        return not alike and self.share > _LEAST_VARIATION

    @property
    def mean(self) -> Array:
        """The best constant; only for an output for which :attr:`tells` is true."""
        if self._mean is None:
            raise ValueError("there are no samples")
        return self._mean

    def sqnr_db(self, reference: Array, part: float) -> float:
        """Return the SQNR of an error that is a share of the deviation over samples.

        It is minus infinity where the output does not depend on the samples, or the reference is
        all 0.
        """
        values = reference.astype(np.float64)
        energy = float(np.sum(np.where(np.isfinite(values), values, 0.0) ** 2))
        if not self.tells or energy <= 0:
            return -math.inf
        return sqnr_db(energy, part**2 * self.around_mean / self.count)


@dataclass
class OutputR2:
    """Running sums over samples for the coefficient of determination of one output.

    Each element is compared with its own mean over the samples; where samples have several shapes,
    or there is one sample alone, against the mean of its channel. Of a vector each value is a
    channel. Channels whose deviations lie apart by a gap of more than 64 are of different
    quantities, and the worst of these is what counts.
    """

    variation: Variation = field(default_factory=Variation)
    """Of ``(channels, values)``."""
    errors: list[Array | tuple[Array, Array, int]] = field(default_factory=list)
    """By sample, for each channel: the sum of squared errors; where the variant's shape is another
    one, the sums of values and of squares, and how many values there are."""
    growths: list[Array] = field(default_factory=list)
    """By sample, for each channel: how much its variation grows with this sample."""
    sums: Array | None = None
    """For each channel, of all samples."""
    squares: Array | None = None
    size: int = 0
    """How many values each channel has, over all samples."""
    same_channels: bool = True

    def add(self, reference: Array, output: Array) -> None:
        """Add one sample."""
        same = reference.shape == output.shape
        ref, out = _drop_equal_infinities(reference, output if same else reference)
        ref, out = (_choose_columns(_split_by_quantity(each)) for each in (ref, out))
        growth = self.variation.add(ref).sum(axis=1)
        own = ref.sum(axis=1), np.sum(ref**2, axis=1), ref.shape[1]
        if self.sums is None or self.squares is None:
            self.sums, self.squares = np.zeros(len(ref)), np.zeros(len(ref))
        self.same_channels &= len(ref) == len(self.sums)
        if not self.same_channels:
            return
        self.sums = self.sums + own[0]
        self.squares = self.squares + own[1]
        self.size += own[2]
        self.errors.append(np.sum((ref - out) ** 2, axis=1) if same else own)
        self.growths.append(growth.astype(np.float32))

    def compute_values(self) -> list[float]:
        """Return each sample's part of the coefficient, which is their mean; empty if unknown."""
        worst = self._find_worst()
        return [] if worst is None else (1 - worst[0]).tolist()

    def compute_r2(self) -> R2Estimate | None:
        """Return the coefficient, or None where the reference gives nearly the same for all.

        Its interval is Student's t of the logarithm of the loss, error over variance, by
        linearizing the ratio, because both are estimates. Source: Cochran, Sampling Techniques, 3rd
        edition, 1977, 6.4.
        """
        worst = self._find_worst()
        if worst is None:
            return None
        shares, growths = worst
        count = len(shares)
        if not np.isfinite(shares).all():
            return R2Estimate(-math.inf, -math.inf, -math.inf, count)
        lost = float(shares.mean())
        if count == 1:
            return R2Estimate(1 - lost, -math.inf, 1.0, count)
        if lost == 0:
            return R2Estimate(1.0, 1.0, 1.0, count)
        parts = shares / lost - growths / growths.mean()
        error = standard_deviation(parts.tolist()) / math.sqrt(count)
        factor = math.exp(t_quantile(0.975, count - 1) * error)
        return R2Estimate(1 - lost, 1 - lost * factor, 1 - lost / factor, count)

    @property
    def is_of_one_quantity(self) -> bool:
        """Whether all channels that vary have one unit, judging by their deviations."""
        found = self._split_by_sample()
        return found is None or len(find_quantities(found[1], found[2])) <= 1

    def _find_worst(self) -> tuple[Array, Array] | None:
        """Return, of the worst quantity, each sample's share of the variance that is lost.

        Also, as ``(N,)`` too, by how much it varies more with each sample; 1 where nobody knows.
        """
        found = self._split_by_sample()
        if found is None:
            return None
        noise, varied, energy = found
        groups = find_quantities(varied, energy)
        if not groups:
            return None
        lost = [
            noise[:, channels].sum(axis=1) * len(noise) / varied[channels].sum()
            for channels in groups
        ]
        worst = max(range(len(groups)), key=lambda group: float(lost[group].mean()))
        if not self._by_element:
            return lost[worst], np.ones(len(noise))
        return lost[worst], np.array(self.growths, np.float64)[:, groups[worst]].sum(axis=1)

    @property
    def _by_element(self) -> bool:
        return self.variation.same_shape and len(self.errors) > 1

    def _split_by_sample(self) -> tuple[Array, Array, Array] | None:
        """Return errors by sample and channel, and by channel what varies and the energy."""
        if self.sums is None or self.squares is None or not self.same_channels:
            return None
        means = self.sums / max(1, self.size)
        around = np.maximum(self.squares - means * self.sums, 0.0)
        varied = self.variation.by_row if self._by_element else around
        noise = [
            np.maximum(each[1] - 2 * means * each[0] + each[2] * means**2, 0.0)
            if isinstance(each, tuple)
            else each
            for each in self.errors
        ]
        return np.array(noise), varied, self.squares


def find_quantities(varied: Array, energy: Array, gap: float = _OTHER_QUANTITY) -> list[Array]:
    """Return groups of channels that vary, by energies: those of one quantity each.

    Args:
        varied: (channels,) squared distances from the mean over samples, summed.
        energy: (channels,) squared values, summed alike.
        gap: The factor between deviations above which channels are different quantities.
    """
    varying = np.flatnonzero(varied > _LEAST_VARIATION**2 * energy)
    order = varying[np.argsort(-varied[varying], kind="stable")]
    gaps = np.flatnonzero(varied[order[:-1]] > gap**2 * varied[order[1:]]) + 1
    return [group for group in np.split(order, gaps) if group.size]


def _split_by_quantity(array: Array) -> Array:
    """Return ``(channels, everything else)``, where each value of a vector is a channel."""
    channels = _split_by_channel(array)
    return channels.T if len(channels) == 1 and channels.size <= _MOST_CHANNELS else channels


_MOST_CHANNELS = 4096
"""The longest vector whose values are channels; a longer one is one channel, like a signal."""


@dataclass(frozen=True, eq=False)
class Deviation:
    """How much an output varies over samples: the unit of errors that are not about zero.

    Each element is compared with its own mean over the samples or, where these have several shapes,
    against the mean of its channel. Channels are those of :class:`OutputCloseness`; those whose
    deviations lie apart by a gap of more than 64 are of different quantities.
    """

    groups: tuple[Array, ...]
    """Indices of the channels of each quantity that varies."""
    squares: Array
    """(channels,): the mean squared distance of a value from its mean."""

    @classmethod
    def of(cls, outputs: Sequence[Array]) -> Deviation | None:
        """Return that of an output in some samples; None if it is about the same in all of them."""
        rows = [
            _choose_columns(_split_by_channel(np.where(np.isfinite(o), o, 0).astype(float)))
            for o in outputs
        ]
        if len(rows) < 2 or len({len(row) for row in rows}) > 1:
            return None
        same = len({row.shape for row in rows}) == 1
        values = np.stack(rows) if same else np.concatenate(rows, axis=1)[None]
        mean = values.mean(axis=0) if same else values.mean(axis=2, keepdims=True)
        squares = ((values - mean) ** 2).mean(axis=(0, 2))
        groups = find_quantities(squares, (values**2).mean(axis=(0, 2)))
        return cls(tuple(groups), squares) if groups else None

    def compute_error(self, pairs: Sequence[tuple[Array, Array]]) -> Array:
        """Return the root mean squared error of each quantity, in its deviations.

        Args:
            pairs: What an output should be, of finite values, and what it is, each in one sample;
                with other channels than the samples had all quantities have one error.
        """
        sums = np.zeros(len(self.groups))
        for reference, output in pairs:
            if reference.shape != output.shape:
                return np.full(len(self.groups), math.inf)
            error = _choose_columns(
                _split_by_channel((reference.astype(float) - output.astype(float)) ** 2)
            )
            by_channel = error.mean(axis=1)
            if len(by_channel) == len(self.squares):
                sums += [by_channel[g].mean() / self.squares[g].mean() for g in self.groups]
            else:
                varying = np.concatenate(self.groups)
                sums += by_channel.mean() / self.squares[varying].mean()
        found = np.sqrt(sums / len(pairs))
        return np.where(np.isnan(found), math.inf, found)


@dataclass(frozen=True)
class R2Estimate:
    """The coefficient of determination of a variant's output, with fp32's as the truth.

    Over all elements of the output's worst quantity, each about its mean over the samples: 1 is
    fp32's own, 0 is the best constant's, whatever its cosine is, and less is worse than a constant.
    Of one quantity it is what scikit-learn calls ``r2_score`` with
    ``multioutput="variance_weighted"``.
    """

    value: float
    low: float
    """Of the 95 % interval by the samples' errors."""
    high: float
    count: int
    """Samples."""

    def bound_values(self) -> dict[str, float]:
        """Return value and interval as JSON holds them, which has no infinity."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        return {name: max(-_WORST_R2, end) for name, end in ends.items()}

    @property
    def beats_constants(self) -> bool:
        """Whether it is better than a constant: certainly so, where there are enough samples."""
        return (self.low if self.count >= _ENOUGH else self.value) > 0


_WORST_R2 = 1e9
"""The largest value in JSON; its negative stands for outputs that are no numbers."""
_ENOUGH = 8
"""The fewest samples with which an interval of their errors is meaningful."""


def _choose_columns(rows: Array) -> Array:
    """Return the columns of ``(channels, values)``, or some of them."""
    return rows[:, :: 1 + (rows.size - 1) // _MOST_VALUES] if rows.size else rows


def _split_by_channel(array: Array) -> Array:
    """Return ``(channels, everything else)``."""
    axis = find_quantity_axis(array.shape)
    if axis is None:
        return array.reshape(1, -1)
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def find_quantity_axis(shape: Sequence[int]) -> int | None:
    """Return the axis of an output's channels; None of a vector, see :class:`OutputCloseness`."""
    if 0 in shape or sum(size > 1 for size in shape) < 2:
        return None
    return 2 if len(shape) == 3 and shape[2] < shape[1] else min(1, len(shape) - 1)


def group_by_range(peak: Array) -> list[Array]:
    """Return groups of channel indices: in each, peaks differ by a factor of at most 16.

    Channels that are always zero join the group of the smallest peaks: a variant's values there are
    noise relative to those.
    """
    order = np.argsort(-peak, kind="stable")
    groups: list[list[int]] = []
    head = 0.0
    for channel in order:
        value = float(peak[channel])
        if not groups or (value > 0 and value * SIMILAR_RANGE < head):
            groups.append([])
            head = value
        groups[-1].append(int(channel))
    return [np.array(group) for group in groups]


def array_cosine(reference: Array, output: Array) -> float:
    """Return the cosine of one output with its reference, each taken whole; 0 if shapes differ."""
    if reference.shape != output.shape:
        return 0.0
    found = OutputCloseness()
    found.add(reference, output)
    return found.cosine


@dataclass(frozen=True)
class Drop:
    """How much worse a variant is than fp32, in the metric's unit; negative is better."""

    value: float
    interval: tuple[float, float] | None
    """Paired 95 % interval; None where there is no value per sample."""


def compute_paired_drop(fp32: Sequence[float], variant: Sequence[float]) -> Drop:
    """Return the mean drop of a higher-is-better metric with values per sample.

    The interval is the normal one on the paired differences. If hits and misses do not differ at
    all, it is the rule of three: at 95 %, fewer than 3 in n samples would differ. If other values
    do not differ, it is zero.
    """
    difference = np.asarray(fp32, np.float64) - np.asarray(variant, np.float64)
    mean, count = float(difference.mean()), len(difference)
    if not difference.any() and not {*fp32, *variant} <= {0.0, 1.0}:
        return Drop(0.0, (0.0, 0.0))
    if not difference.any():
        return Drop(0.0, (-min(1.0, 3 / count), min(1.0, 3 / count)))
    if count == 1:
        return Drop(mean, None)
    half = 1.96 * float(difference.std(ddof=1)) / math.sqrt(count)
    return Drop(mean, (mean - half, mean + half))


def compute_mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of independent samples' values; None of a single one.

    Of hits and misses it is Wilson's score interval, which holds near 0 and 1 too and where all are
    equal; of other values Student's t interval. Source: Wilson, Journal of the American Statistical
    Association 22, 1927.
    """
    count, centre = len(values), fmean(values)
    if set(values) <= {0.0, 1.0}:
        z2 = _Z95**2 / count
        middle = (centre + z2 / 2) / (1 + z2)
        reach = math.sqrt(z2 * centre * (1 - centre) + z2**2 / 4) / (1 + z2)
        return max(0.0, min(centre, middle - reach)), min(1.0, max(centre, middle + reach))
    if count == 1:
        return None
    reach = t_quantile(0.975, count - 1) * standard_deviation(values) / math.sqrt(count)
    return centre - reach, centre + reach
