"""Ranks several ways to make the samples, and words the warning about it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgepack.preprocessing.alternatives import Alternative
from edgepack.preprocessing.signs import compute_likelihood, compute_most_information, sign_test
from edgepack.preprocessing.verdict import FAR, PreprocessingSign, Seen, Setting

OFFSETS = (0, -1, 1)
"""What is added to each label: ImageNet is numbered with and without a class for background."""
SUSPECTS = (
    "order, scale, mean and std, layout, how pictures are resized, or labels that are one off"
)
FINALISTS = 3
_SURE = 0.05
_ALIKE = 0.97
_FAR_LARGER = 8
_FAR_NEARER = 4
_TELLING = 0.6
"""The share of the bits that predictions can say about samples: with fewer, samples may be of one
kind."""

Measure = Literal["labels", "boxes", "information", "detections", "normalization"]


@dataclass(frozen=True)
class RankedWay:
    """One way to make the samples, with one offset of the labels, and how good it is."""

    alternative: Alternative | None
    """None for the project's own."""
    offset: int
    measure: Measure
    value: float
    """The value that ways are ranked by: more is better."""
    shown: str
    hits: tuple[bool, ...] = ()
    """With labels, whether each sample is right."""
    likelihood: float = 0.0
    """With labels, the mean log-likelihood; see
    :func:`~edgepack.preprocessing.signs.compute_likelihood`."""
    most: float = 0.0
    """For information, the most that ``value`` can be; for detections, the least that counts."""
    span: float = 0.0
    """For information, the distance from the lowest to the highest value of the input."""
    divergence: float | None = None
    """For information, the distance from the first BatchNormalization; None if there is none."""

    @property
    def is_own(self) -> bool:
        """Whether it is what the project says."""
        return self.alternative is None and self.offset == 0


def rank(seen: Sequence[tuple[Alternative | None, Seen]], setting: Setting) -> list[RankedWay]:
    """Return what was tried, best first, the project's own among it, which is None in ``seen``.

    By labels where there are any; else by the bits that class scores say about samples, by the best
    detections' scores, or by the distance from the first BatchNormalization, whichever there is
    first. Empty where there is none of these.
    """
    tried = [
        entry
        for alternative, found in seen
        for entry in _rank_alternatives(alternative, found, setting)
    ]
    ordered = sorted(tried, key=lambda entry: -entry.value)
    if ordered and ordered[0].measure == "labels":
        # With few samples, ways that are nearly as often right cannot be ranked: there, likelihoods
        # decide.
        level = [e for e in ordered if sign_test(*_count_differences(ordered[0], e)) > _SURE]
        # Labels that are one off are reason enough: the input is left as it is then.
        level.sort(key=lambda e: (e.offset != 0, bool(e.offset and e.alternative), -e.likelihood))
    else:
        ordered.sort(key=lambda entry: _is_far(entry, tried))
        least = _ALIKE * ordered[0].value if ordered else 0.0
        # Where the range is far too large, models are surer of their answers, not for that right.
        level = [e for e in ordered if e.measure == "information" and e.value >= least]
        level = [entry for entry in level if not _is_far(entry, tried)]
        spans = [entry.span for entry in level]
        level.sort(key=lambda entry: entry.span > _FAR_LARGER * min(spans))
    return [*level, *(entry for entry in ordered if entry not in level)]


def _is_far(entry: RankedWay, tried: Sequence[RankedWay]) -> bool:
    """Return whether others are far nearer to what the first BatchNormalization expects."""
    known = [other.divergence for other in tried if other.divergence is not None]
    return entry.divergence is not None and entry.divergence > _FAR_NEARER * min(known)


def _rank_alternatives(
    alternative: Alternative | None, seen: Seen, setting: Setting
) -> list[RankedWay]:
    if seen.scores and setting.labels is not None:
        return [_rank_offset(alternative, seen, setting.labels, offset) for offset in OFFSETS]
    if seen.scores:
        bits, most = (
            seen.information,
            compute_most_information(len(seen.scores), seen.scores[0].size),
        )
        shown = f"predictions tell {bits:.2f} of at most {most:.2f} bits of the sample"
        if seen.divergence is not None:
            shown += f", {seen.divergence:.2g} nats from the first BatchNormalization"
        span, far = seen.highest - seen.lowest, seen.divergence
        return [
            RankedWay(
                alternative, 0, "information", bits, shown, most=most, span=span, divergence=far
            )
        ]
    if seen.right:
        shown = f"the best detection is there in {sum(seen.right)} of {len(seen.right)} pictures"
        hits = tuple(seen.right)
        return [RankedWay(alternative, 0, "boxes", sum(hits), shown, hits)]
    if seen.best:
        mean = float(np.mean(seen.best))
        shown = f"the best detection scores {mean:.2f} on average"
        return [RankedWay(alternative, 0, "detections", mean, shown, most=setting.least_score)]
    if seen.divergence is not None:
        shown = f"{seen.divergence:.3g} nats from the first BatchNormalization"
        return [RankedWay(alternative, 0, "normalization", -seen.divergence, shown)]
    return []


def _rank_offset(
    alternative: Alternative | None, seen: Seen, labels: Sequence[int], offset: int
) -> RankedWay:
    hits = tuple(a == b + offset for a, b in zip(seen.answers, labels, strict=True))
    shown = f"right for {sum(hits)} of {len(hits)}"
    sure = compute_likelihood(np.stack(seen.scores), [label + offset for label in labels])
    return RankedWay(alternative, offset, "labels", sum(hits), shown, hits, sure)


def _count_differences(first: RankedWay, second: RankedWay) -> tuple[int, int]:
    """Return how many samples the first is right for and the second is not, and the reverse."""
    pairs = list(zip(first.hits, second.hits, strict=True))
    return sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)


def is_clearly_better(best: RankedWay, own: RankedWay, tried: int) -> bool:
    """Return whether one of several that were ``tried`` is better than the project's own, for sure.

    With labels by a sign test, at 5 % for all that were tried together; else by a wide margin.
    """
    match best.measure:
        case "labels" | "boxes":
            return sign_test(*_count_differences(best, own)) < _SURE / max(1, tried)
        case "information":
            telling = best.value > _TELLING * best.most and best.value >= 2 * own.value
            return telling or ((own.divergence or 0.0) > FAR and _is_far(own, [best]))
        case "detections":
            return best.value >= max(best.most, 2 * own.value)
        case "normalization":
            return best.value >= own.value / 4


@dataclass(frozen=True)
class Described:
    """What the project says of the samples."""

    name: str
    """The name of the input."""
    sees: str
    """What the model sees, in words."""
    count: int
    """How many samples the best alternatives were tried on."""
    ways: int
    """How many alternatives were tried, offsets of labels apart."""
    may_be_picture: bool = False
    """Whether the input has the shape of a picture, and nothing says how one becomes it."""


def format_warning(
    finding: PreprocessingSign, ranked: Sequence[RankedWay], described: Described
) -> str:
    """Return the warning, in lines; empty if there is nothing to warn about.

    There is no warning if labels prove the preprocessing right. If it is only in doubt, there is a
    warning only where another way is clearly better.
    """
    own = next((entry for entry in ranked if entry.is_own), None)
    tried = described.ways + len(OFFSETS) - 1
    better = own is not None and is_clearly_better(ranked[0], own, tried)
    cleared = (
        own is not None
        and own.measure in ("labels", "boxes")
        and not (finding.by_chance or finding.below_claim)
    )
    if not better and (cleared or not finding.reasons):
        return ""
    now = f"{finding.right}, and " if finding.right else ""
    lines = list(finding.reasons) or [f"{now}other preprocessing is clearly better"]
    lines.append(f"suspects are {SUSPECTS}")
    if own is None:
        lines.append("nothing else could be tried: check how the samples are made")
    else:
        lines += _list_compared(ranked, own, described, better=better)
    if described.may_be_picture:
        lines.append(
            "nothing describes how the samples were made: check it; if they are pictures, give a"
            f" folder of them and inputs: {{{described.name}: {{image: ...}}}}, and more is tried"
            " (edgepack init)"
        )
    until = "until then every" if better else "if so, every"
    lines.append(f"{until} number of this build is of a model that sees {described.sees}")
    return "\n    ".join(lines)


def _list_compared(
    ranked: Sequence[RankedWay], own: RankedWay, described: Described, *, better: bool
) -> list[str]:
    """Return what was tried and what follows, by line."""
    others = [entry for entry in ranked if not entry.is_own]
    if not others:
        return ["nothing else could be tried: check how the samples are made"]
    best = others[0]
    ways = [f"{n} other ways to make the input"] if (n := described.ways) else []
    ways += ["labels that are one off"] if own.measure == "labels" else []
    as_it_is = f"as it is, {described.sees}: {own.shown}"
    found = f"{_describe_way(best, described)}: {best.shown}"
    tried = f"tried on {described.count} samples"
    what = " and ".join(ways)
    if not better:
        return [f"none of {what} {tried} is clearly better; {as_it_is}; best, {found}"]
    enough = best.value - abs(best.value) / 20
    near = [_describe_way(entry, described) for entry in others[1:] if entry.value >= enough]
    also = f" (nearly as good: {'; '.join(near[:2])})" if near else ""
    more = sum(best.hits) - sum(own.hits)
    gain = f", {more} more ({more / len(best.hits):.0%})" if best.hits else ""
    return [
        f"best of {what} {tried} is {found}{gain}{also}; {as_it_is}",
        _format_entry(best, described),
    ]


def choose_finalists(ranked: Sequence[RankedWay]) -> list[Alternative]:
    """Return the few best alternatives, to be tried on more samples, in order."""
    others = [entry.alternative for entry in ranked if entry.alternative]
    return list({id(alternative): alternative for alternative in others}.values())[:FINALISTS]


def _describe_way(entry: RankedWay, described: Described) -> str:
    text = entry.alternative.sees if entry.alternative else described.sees
    return f"{text}, labels {entry.offset:+d}" if entry.offset else text


def _format_entry(entry: RankedWay, described: Described) -> str:
    steps = []
    if entry.alternative and entry.alternative.image:
        steps.append(f"write inputs: {{{described.name}: {{{entry.alternative.write}}}}}")
    elif entry.alternative:
        steps.append(entry.alternative.write)
    if entry.offset:
        what = "add 1 to" if entry.offset > 0 else "subtract 1 from"
        steps.append(f"{what} every label, in a CSV of file,label or in the samples' own labels")
    return ", and ".join(steps)
