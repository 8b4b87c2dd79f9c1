"""What an output is read as, and how well a variant says the same as fp32: a measure for each kind.

Nothing here is edgepack's: only numpy, and what the words mean in the field. Each reading takes the
outputs of the same samples from fp32 and from a variant, as lists of arrays, and returns a
:class:`Skill`. fp32 is the truth: a bundle promises what its model says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.proofs.net import Array

Outputs = Sequence[Array]
SILENT = 1e-3
"""A window with less than this part of the mean energy says nothing."""
NEIGHBOURS = 5


@dataclass(frozen=True)
class Skill:
    """How much of what fp32 says a variant says too."""

    measure: float
    """The task's measure: 1 is fp32's own, in its unit a hundredth is a point."""
    constant: float
    """What the best constant reaches of it."""
    r2: float | None
    """About each element's mean over the samples; None where fp32 hardly varies."""
    what: str
    """The measure's name."""

    @property
    def share(self) -> float:
        """The measure with 0 for the best constant, 1 for fp32."""
        if self.constant >= 1:
            return 1.0 if self.measure >= 1 else 0.0
        return (self.measure - self.constant) / (1 - self.constant)

    @property
    def nearness(self) -> float:
        """R², or the share where that is none or says it more finely."""
        is_finer = self.r2 is None or self.what.startswith("R²")
        return self.share if is_finer or self.r2 is None else self.r2

    @property
    def lost_points(self) -> float:
        """What is lost of the measure, in points of a hundred."""
        return 100 * (1 - self.measure)


def r2(reference: Outputs, found: Outputs) -> float | None:
    """Return 1 less the share of the error in the spread about each element's mean."""
    if any(a.shape != b.shape for a, b in zip(reference, found, strict=True)):
        return None if len({a.shape for a in reference}) > 1 else float("-inf")
    if len({a.shape for a in reference}) > 1 or len(reference) < 2:
        return None
    ref = np.stack(reference).astype(np.float64)
    out = np.stack(found).astype(np.float64)
    if not np.isfinite(ref).all():
        return None
    spread = float(((ref - ref.mean(0)) ** 2).sum())
    if spread <= 1e-8 * float((ref**2).sum()) or spread == 0:
        return None
    if not np.isfinite(out).all():
        return float("-inf")
    return 1 - float(((ref - out) ** 2).sum()) / spread


@dataclass(frozen=True)
class Value:
    """A number, or several that are read as they are: the coefficient of determination.

    Numbers of other units are read ``apart``: that of the worst counts.
    """

    kind = "score"
    apart: bool = False

    def skill(self, reference: Outputs, found: Outputs) -> Skill | None:
        """Return None where fp32 hardly varies."""
        if self.apart and len({a.shape for a in (*reference, *found)}) == 1:
            return self._worst(reference, found)
        value = r2(reference, found)
        return None if value is None else Skill(value, 0.0, value, "R²")

    def _worst(self, reference: Outputs, found: Outputs) -> Skill | None:
        columns = [
            r2([a.reshape(-1)[k] for a in reference], [a.reshape(-1)[k] for a in found])
            for k in range(reference[0].size)
        ]
        told = [value for value in columns if value is not None]
        if not told:
            return None
        what = f"R² of element {columns.index(min(told))}"
        return Skill(min(told), 0.0, r2(reference, found), what)


@dataclass(frozen=True)
class Classes:
    """Scores of classes on the last axis: how often the best class is the same."""

    kind = "classes"
    axis: int = -1
    balanced: bool = False
    """Whether each class counts alike, however rare it is."""

    def skill(self, reference: Outputs, found: Outputs) -> Skill | None:
        """Return R² where fp32 gives one class for all samples."""
        ours = np.stack([np.argmax(a, self.axis).reshape(-1) for a in reference])
        theirs = np.stack([np.argmax(np.nan_to_num(a), self.axis).reshape(-1) for a in found])
        if self.balanced:
            kinds = np.unique(ours)
            right = float(np.mean([np.mean(theirs[ours == kind] == kind) for kind in kinds]))
            value = r2(reference, found)
            return Skill(right, 1 / len(kinds), value, "same class, each alike")
        often = np.mean([Counter(column).most_common(1)[0][1] for column in ours.T]) / len(ours)
        if often == 1:
            return Value().skill(reference, found)
        return Skill(
            float(np.mean(ours == theirs)), float(often), r2(reference, found), "same class"
        )


@dataclass(frozen=True)
class Probability:
    """One number that is held against a threshold: decisions, and the order behind them."""

    kind = "probability"
    threshold: float = 0.5

    def skill(self, reference: Outputs, found: Outputs) -> Skill | None:
        """Return balanced accuracy, or the area under the curve where that is less."""
        ours = np.array([a.reshape(-1).max() for a in reference], np.float64)
        theirs = np.nan_to_num(np.array([a.reshape(-1).max() for a in found], np.float64))
        is_yes = ours > self.threshold
        value = r2(reference, found)
        if is_yes.all() or not is_yes.any():
            return None if value is None else Skill(value, 0.0, value, "R²")
        same = (theirs > self.threshold) == is_yes
        balanced = (same[is_yes].mean() + same[~is_yes].mean()) / 2
        above = theirs[is_yes][:, None] - theirs[~is_yes][None]
        area = float((above > 0).mean() + (above == 0).mean() / 2)
        return Skill(float(min(balanced, area)), 0.5, value, "balanced decisions")


@dataclass(frozen=True)
class Mask:
    """A class for each place: mean intersection over union, of the classes that fp32 has.

    Of one channel what is above the threshold is one class, of several the best channel is it; of
    integers each value is.
    """

    kind = "mask"
    threshold: float = 0.0

    def skill(self, reference: Outputs, found: Outputs) -> Skill | None:
        """Return mean IoU; the constant is the commonest class of each place."""
        ours, theirs = (np.stack([self._classes(a) for a in many]) for many in (reference, found))
        kinds = np.unique(ours)
        if len(kinds) < 2:
            return Value().skill(reference, found)
        counts = np.stack([(ours == kind).sum(0) for kind in kinds])
        commonest = np.broadcast_to(kinds[counts.argmax(0)], ours.shape)
        return Skill(
            _mean_iou(ours, theirs, kinds),
            _mean_iou(ours, commonest, kinds),
            r2(reference, found),
            "mean IoU",
        )

    def _classes(self, output: Array) -> Array:
        if output.dtype.kind in "iub":
            return output.astype(np.int64)
        if output.shape[1] == 1:
            return (output > self.threshold).astype(np.int64)
        return np.argmax(np.nan_to_num(output), axis=1)


def _mean_iou(ours: Array, theirs: Array, kinds: Array) -> float:
    values = []
    for kind in kinds:
        one, other = ours == kind, theirs == kind
        values.append((one & other).sum() / max((one | other).sum(), 1))
    return float(np.mean(values))


@dataclass(frozen=True)
class Embedding:
    """A vector for each sample: which others are its nearest, by the cosine."""

    kind = "embedding"

    def skill(self, reference: Outputs, found: Outputs) -> Skill | None:
        """Return the share of the five nearest neighbours that stay."""
        near = []
        for outputs in (reference, found):
            vectors = np.nan_to_num(np.stack([a.reshape(-1) for a in outputs]).astype(np.float64))
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-12
            likeness = vectors @ vectors.T
            np.fill_diagonal(likeness, -np.inf)
            near.append(np.argsort(-likeness, axis=1, kind="stable")[:, :NEIGHBOURS])
        same = [len(set(a) & set(b)) for a, b in zip(*near, strict=True)]
        chance = NEIGHBOURS / (len(reference) - 1)
        return Skill(
            float(np.mean(same)) / NEIGHBOURS, chance, r2(reference, found), "same neighbours"
        )


@dataclass(frozen=True)
class Tokens:
    """Tokens, as integers or as scores on the last axis: 1 less the edit distance by length."""

    kind = "tokens"
    blank: int | None = None
    """With it repeated tokens are one and blanks none, as in CTC."""

    def skill(self, reference: Outputs, found: Outputs) -> Skill | None:
        """Return None where fp32 gives one sequence for all samples."""
        ours, theirs = ([self._tokens(a) for a in many] for many in (reference, found))
        if len(set(map(tuple, ours))) == 1:
            return None
        kinds = {token for tokens in ours for token in tokens}
        constant = max(
            [_mean_match(ours, [[kind] * len(t) for t in ours]) for kind in kinds]
            + [_mean_match(ours, [_commonest(ours)] * len(ours))]
        )
        return Skill(_mean_match(ours, theirs), constant, None, "1 - edit distance")

    def _tokens(self, output: Array) -> list[int]:
        ids = output if output.dtype.kind in "iub" else np.argmax(np.nan_to_num(output), -1)
        tokens = [int(token) for token in ids.reshape(-1)]
        if self.blank is None:
            return tokens
        changed = [t for k, t in enumerate(tokens) if k == 0 or t != tokens[k - 1]]
        return [token for token in changed if token != self.blank]


def _commonest(many: list[list[int]]) -> list[int]:
    length = int(np.median([len(tokens) for tokens in many]))
    return [Counter(t[k] for t in many if len(t) > k).most_common(1)[0][0] for k in range(length)]


def _mean_match(ours: list[list[int]], theirs: list[list[int]]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return float(np.mean([max(0.0, 1 - _edits(a, b) / max(len(a), 1)) for a, b in pairs]))


def _edits(one: list[int], other: list[int]) -> int:
    """Return the Levenshtein distance."""
    row = list(range(len(other) + 1))
    for i, token in enumerate(one):
        before, row[0] = row[0], i + 1
        for j, candidate in enumerate(other):
            changed = before + (token != candidate)
            before = row[j + 1]
            row[j + 1] = min(changed, row[j] + 1, before + 1)
    return row[-1]


@dataclass(frozen=True)
class Signal:
    """Samples over time or space: the share of each window's energy that is right.

    Of windows that are not silent the mean of 1 - error / energy, 0 at least; energy is taken about
    each element's mean over the samples. 20 dB in every window are 0.99.
    """

    kind = "signal"
    window: int = 32

    def skill(self, reference: Outputs, found: Outputs) -> Skill | None:
        """Return None where fp32 hardly varies."""
        value = r2(reference, found)
        if value is None:
            return None
        ref = np.stack([a.reshape(-1) for a in reference]).astype(np.float64)
        out = np.stack([a.reshape(-1) for a in found]).astype(np.float64)
        if not np.isfinite(out).all():
            return Skill(0.0, 0.0, value, "windowed SQNR")
        length = ref.shape[1] // self.window * self.window or ref.shape[1]
        by_window = (len(ref), -1, min(self.window, ref.shape[1]))
        energy = ((ref - ref.mean(0))[:, :length].reshape(by_window) ** 2).sum(-1)
        error = ((ref - out)[:, :length].reshape(by_window) ** 2).sum(-1)
        loud = energy > SILENT * energy.mean()
        right = 1 - np.minimum(1, error[loud] / energy[loud])
        return Skill(float(right.mean()), 0.0, value, "windowed SQNR")


class Constant:
    """An output that says the same of every sample: nothing is asked of it but its value."""

    kind = "constant"

    def skill(self, reference: Outputs, found: Outputs) -> Skill | None:
        """Return how near the values are, 0 beyond a tenth of their size."""
        ref, out = np.stack(reference), np.stack(found)
        size = float(np.abs(ref).max()) or 1.0
        worst = float(np.abs(ref - out).max()) / size
        return Skill(max(0.0, 1 - worst), 0.9, None, "constant's value")


Reading = Value | Classes | Probability | Mask | Embedding | Tokens | Signal | Constant
