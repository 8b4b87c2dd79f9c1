"""Chooses how a model is quantized: what it tries, in which order, and what it keeps.

Five questions, each asked only if the one before leaves it open:

1. Which methods bring the outputs nearer to the float model's? (:meth:`Search.improve`)
2. Are the outputs more than noise? If not, what costs most is taken out of 8 bits, or int8 is
   refused. (:meth:`Search.require_signal`)
3. Are outputs that are read value by value near enough? If not, what costs most is taken out of 8
   bits, if that is a little of the model. (:meth:`Search.approach`)
4. Do inputs that no sample shows break an output? If so, ranges are widened for them, or all is
   searched for anew with such inputs among the samples, where the samples lose nothing by it.
   (:meth:`Search.hold`, :meth:`Search.hold_anew`)
5. Does the model meet the limit that the user sets? If not, as little as possible is taken out of
   8 bits. (:meth:`Search.meet`)

Out of 8 bits, tensors go to 16 where the provider takes operators of both; hardware for integers
may compute no floats. Where that is not enough, layers stay float against noise and for a limit.

The first four are judged on held-out calibration samples
(:mod:`edgepack.quantization.search.closeness`), the fifth by the user's own metric.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from edgepack.base.worker import report
from edgepack.errors import EdgepackError, StepError, format_list
from edgepack.metrics.accuracy import EQUAL_SQNR_DB
from edgepack.quantization.qdq.dialect import WITHOUT_INT8
from edgepack.quantization.search.closeness import NOTICEABLE_DB, ClosenessVerdict, ModelCloseness
from edgepack.quantization.search.costs import Costs
from edgepack.quantization.search.mixed_precision import (
    WORTHWHILE_DB,
    Ladder,
    make_float_ladder,
    make_wide_ladder,
)
from edgepack.quantization.search.scheme import Scheme
from edgepack.samples.changing import WORDS

if TYPE_CHECKING:
    from edgepack.quantization.search.outside import Holding


REPAIRED_DB = 10.0
"""The target for a ruined model: an error of a tenth of what its outputs vary by."""
NEAR_DB = 20.0
"""The target for outputs that are read value by value: an error of a tenth of what they vary by. Of
nanodet_m's worst channels 20.8 dB so are 25.0 about 0, and 12.3 are 17.7: it keeps 89 % of its
detections at 17.5 dB about 0, 96 % at 22 dB and 98.5 % at 23.5 dB (u8/s8, 274 detections in 200
images, onnxruntime 1.31.1, x86-64, 2026-11-21)."""
MOST_MEASURED = 12
"""How often the metric is measured at most for one model."""
MOST_REPAIRED, MOST_APPROACHED = 1 / 2, 1 / 4
"""The share of the places that are left float at most, to repair noise or meet a limit, and that
are taken out of 8 bits to approach the float model: int8 is what was asked for."""
MOST_HELD = 3
"""For how many kinds of inputs ranges are widened at most."""
_MET = (0.0, 0.0)

Stage = Literal["activations", "model", "limit"]
"""What is judged: activations in integers with the weights exact, on held-out calibration samples;
the whole model in integers, on the same; or that, on the evaluation samples. Figures of different
stages measure different things, so they cannot be compared."""


@dataclass(frozen=True)
class SchemeTrial:
    """A scheme that was tried: its file, and how close that is."""

    scheme: Scheme
    """As written: more nodes may stay float than was asked for."""
    path: Path
    """The model in a folder of its own."""
    closeness: ModelCloseness


@dataclass(frozen=True)
class Measured:
    """What the user's metric says of a model, on the evaluation samples."""

    drop: float
    """How much worse than the float model, in the metric's unit; NaN where the metric is."""
    sqnr_db: float
    """Of the worst group of channels of the worst output."""
    by: str = ""
    """The simulator that computed it, in words; empty for this machine's CPU."""


@dataclass(frozen=True)
class SearchLine:
    """One line of what a search did."""

    what: str
    on: str
    """The samples it was judged on: ``calibration`` (those held out) or ``evaluation``."""
    accepted: bool = False
    """Whether it was kept: the last one that was is the best."""
    sqnr_db: float | None = None
    """Of the worst group of channels of the worst output; None if there was nothing to judge."""
    agreement: float | None = None
    """Share of samples with the float model's best class."""
    metric_drop: float | None = None
    stage: Stage = "model"
    why: str = ""
    """Why it was kept or not, for people."""

    def __str__(self) -> str:
        parts = [
            "" if self.metric_drop is None else f"metric drop {self.metric_drop:.4f}",
            "" if self.sqnr_db is None else f"{self.sqnr_db:.1f} dB",
            "" if self.agreement is None else f"agreement {self.agreement:.0%}",
        ]
        found = ", ".join(filter(None, parts))
        return f"{self.what}{': ' if found else ''}{found}{' (kept)' if self.accepted else ''}"

    def make_facts(self) -> dict[str, Any]:
        """Return it as JSON-ready values, the same in every build of the same inputs."""
        numbers = {
            "sqnr_db": self.sqnr_db and round(max(self.sqnr_db, -EQUAL_SQNR_DB), 1),
            "agreement": self.agreement and round(self.agreement, 4),
            "metric_drop": self.metric_drop and round(self.metric_drop, 6),
        }
        texts = {"what": self.what, "on": self.on, "stage": self.stage, "why": self.why}
        return {**texts, "accepted": self.accepted, **numbers}


class Limit(Protocol):
    """How much may be lost."""

    def compute_excess(self, drop: float, sqnr_db: float) -> tuple[float, float]:
        """Return by how much the drop is too large and the SQNR too small; (0, 0) if met."""


class Maker(Protocol):
    """Writes and judges models; the search knows neither files nor samples."""

    def make(self, scheme: Scheme, *, fitted: bool = False) -> SchemeTrial | None:
        """Return the scheme as a model, or None if it would compute nothing in integers.

        Args:
            scheme: What to write.
            fitted: Whether to fit its weights first, to what stays quantized of it.
        """

    def compare(self, trial: SchemeTrial, other: SchemeTrial) -> ClosenessVerdict:
        """Return whether a trial's outputs are closer to the float model's than another's."""

    def measure_costs(self, trial: SchemeTrial) -> Costs:
        """Return what places cost."""

    def measure(self, trial: SchemeTrial) -> Measured:
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
    best: SchemeTrial
    mixed: bool = False
    """Whether the provider takes operators of 16 bits beside those of 8."""
    tried: list[SearchLine] = field(default_factory=list)
    _measured: int = 0
    _excess: tuple[float, float] = (math.inf, math.inf)
    """By how much the best one misses the limit."""

    def improve(self, methods: Sequence[Method]) -> None:
        """Try methods one after the other, each on top of those that were kept."""
        first = "what the search starts from, with weights rounded too"
        what = "ranges from lowest to highest, nearest rounding"
        self._record_trial(what, self.best, accepted=True, why=first)
        for method in methods:
            report(0, 0, method.what)
            with self.optional(method.what):
                for scheme in method.apply(self.best.scheme):
                    self._try_scheme(method.what, scheme)

    @contextmanager
    def optional(self, what: str) -> Iterator[None]:
        """Record an error in an optional part instead of raising it.

        Args:
            what: Its name for people.
        """
        try:
            yield
        except EdgepackError as error:
            failed = f"{what} failed, {error.problem}"
            self.tried.append(SearchLine(failed, "calibration", why="it failed"))

    def _try_scheme(self, what: str, scheme: Scheme) -> None:
        trial = self.maker.make(scheme)
        if trial is not None:
            self._settle_if_closer(what, trial)

    def _settle_if_closer(self, what: str, trial: SchemeTrial) -> None:
        found = self.maker.compare(trial, self.best)
        self._settle_trial(what, trial, accepted=found.verdict == "closer", why=found.why)

    def require_signal(self) -> None:
        """Make sure that the outputs are more than noise, if need be with places out of 8 bits.

        What costs most is taken out, until the error is a tenth of what the outputs vary by.

        Raises:
            StepError: With half of the places left float, the outputs still are noise.
        """
        ruined, ruin = self.best, self.best.closeness.ruin
        if not ruin:
            return

        def has_signal(what: str, trial: SchemeTrial) -> bool:
            found = trial.closeness
            is_enough = found.resolved_db >= REPAIRED_DB and not found.ruin
            closer = self.maker.compare(trial, self.best)
            why = "its outputs are no noise any more" if is_enough else closer.why
            accepted = is_enough or closer.verdict == "closer"
            self._settle_trial(what, trial, accepted=accepted, why=why)
            return is_enough

        self._climb_ladders(self._make_ladders(None), has_signal, fitted=False)
        if self.best is not ruined:
            self._fit_anew()
        if self.best.closeness.ruin:
            raise StepError(
                f"int8 gives noise: on held-out calibration samples {ruin}; tried:"
                f" {describe(self.tried)}",
                hint="quantize weights with one scale per channel if the provider takes that, give"
                f" calibration samples like those in use, or {WITHOUT_INT8}",
            )

    def _fit_anew(self) -> None:
        trial = self.maker.make(self.best.scheme, fitted=True)
        if trial is not None:
            self._settle_if_closer("weights fitted to what stays quantized", trial)

    def approach(self, least_db: float) -> None:
        """Bring the worst output near the float model's, if a quarter of the places is enough.

        Otherwise it takes out of 8 bits what gains a dB over taking out half of that. Where the
        provider takes 16 bits, nothing is left float for it.

        Args:
            least_db: SQNR of the worst group of channels of the worst output, in dB.
        """
        missing = least_db - self.best.closeness.sqnr_db
        if missing <= 0:
            return
        fitted = bool(self.best.scheme.weight_scales)
        scheme, costs = self.best.scheme.plain, self.maker.measure_costs(self.best)
        make = make_wide_ladder if self.mixed else make_float_ladder
        ladder = make(scheme, costs, MOST_APPROACHED)
        for what, scheme in map(ladder.make_rung, ladder.find_promising(missing)):
            trial = self.maker.make(scheme, fitted=fitted)
            if trial is None:
                return
            is_enough = trial.closeness.sqnr_db >= least_db
            gain = trial.closeness.compute_gain_db(self.best.closeness)
            is_worthwhile = gain >= WORTHWHILE_DB
            why = (
                f"it reaches {least_db:g} dB"
                if is_enough
                else f"{gain:+.1f} dB; taking out more is worth {WORTHWHILE_DB:g} dB or more"
            )
            self._settle_trial(what, trial, accepted=is_enough or is_worthwhile, why=why)
            if is_enough:
                return

    def hold(self, holding: Holding) -> None:
        """Widen ranges for inputs that no sample shows, where samples lose nothing by it.

        It takes one kind of input after the other, starting with the one that breaks an output
        most. Of many kinds it takes some, because each needs newly fitted weights.

        Args:
            holding: Finds which inputs break a model, and widens ranges for them.
        """
        broken = holding.find_errors(self.best.path)
        fitted = bool(self.best.scheme.weight_scales)
        for kind in list(dict.fromkeys(each.input for each in broken))[:MOST_HELD]:
            if kind not in {each.input for each in broken}:
                continue
            what = f"ranges that hold {WORDS[kind]} too"
            report(0, 0, what)
            scheme = holding.widen_ranges(self.best.scheme.plain, kind)
            trial = self.maker.make(scheme, fitted=fitted)
            if trial is None:
                return
            judged, left = self.maker.compare(trial, self.best), holding.find_errors(trial.path)
            gain_db = trial.closeness.compute_gain_db(self.best.closeness)
            is_fixed = len(left) < len(broken) and kind not in {each.input for each in left}
            is_free = judged.verdict != "farther" and gain_db > -WORTHWHILE_DB
            effect = "they break no output any more" if is_fixed else "an output is still broken"
            why = f"{effect}; {judged.why}"
            self._settle_trial(what, trial, accepted=is_fixed and is_free, why=why)
            broken = left if self.best is trial else broken

    def hold_anew(self, holding: Holding, anew: Callable[[Sequence[str]], SchemeTrial]) -> None:
        """Search once more with what still breaks the model among the samples, and keep the better.

        The samples decide ranges and methods, and these may break other inputs.

        Args:
            holding: Finds which inputs break a model.
            anew: Returns what was found with kinds of inputs among the samples, judged on the same
                samples as all else.
        """
        broken = holding.find_errors(self.best.path)
        if not broken:
            return
        kinds = list(dict.fromkeys(each.input for each in broken))
        words = format_list([WORDS[kind] for kind in kinds], len(kinds))
        what = f"all anew, with {words} among the samples"
        trial = anew(kinds)
        judged, left = self.maker.compare(trial, self.best), holding.find_errors(trial.path)
        gain_db = trial.closeness.compute_gain_db(self.best.closeness)
        is_fixed = len(left) < len(broken) and (not left or left[0].error <= broken[0].error)
        takes_more = trial.scheme.places_left_out > self.best.scheme.places_left_out
        least_db = WORTHWHILE_DB if takes_more else -WORTHWHILE_DB
        is_free = judged.verdict != "farther" and gain_db > least_db
        effect = f"{len(left)} outputs are broken, and {len(broken)} were before"
        why = f"{effect}; {'less is in 8 bits; ' if takes_more else ''}{judged.why}"
        self._settle_trial(what, trial, accepted=is_fixed and is_free, why=why)

    def meet(self, limit: Limit) -> None:
        """Search for a model that meets a limit; where none does, keep the nearest.

        What costs least at run time is tried first.

        Args:
            limit: What the user allows.
        """

        def is_met(what: str, trial: SchemeTrial) -> bool:
            return self._judge_limit(what, trial, limit)

        if not is_met("as it is", self.best):
            fitted = bool(self.best.scheme.weight_scales)
            self._climb_ladders(self._make_ladders(MOST_MEASURED), is_met, fitted=fitted)

    def _climb_ladders(
        self,
        ladders: Iterable[Ladder],
        is_enough: Callable[[str, SchemeTrial], bool],
        *,
        fitted: bool,
    ) -> None:
        """Take more and more out of 8 bits, until it is enough; then look for less that is.

        Args:
            ladders: Climbed one after the other.
            is_enough: Takes what was made, and the model; keeps it or not.
            fitted: Whether to fit weights.
        """

        def is_enough_at(ladder: Ladder, count: int) -> bool:
            what, scheme = ladder.make_rung(count)
            trial = self.maker.make(scheme, fitted=fitted)
            return trial is not None and is_enough(what, trial)

        for ladder in ladders:
            missed = 0
            for count in ladder.list_counts():
                if is_enough_at(ladder, count):
                    self._find_lowest(is_enough_at, ladder, missed, count)
                    return
                missed = count

    def _find_lowest(
        self, is_enough_at: Callable[[Ladder, int], bool], ladder: Ladder, missed: int, enough: int
    ) -> None:
        """Look for the lowest rung that is enough, above one that is not."""
        while enough - missed > 1 and self._measured < MOST_MEASURED:
            middle = (missed + enough) // 2
            if is_enough_at(ladder, middle):
                enough = middle
            else:
                missed = middle

    def _judge_limit(self, what: str, trial: SchemeTrial, limit: Limit) -> bool:
        """Return whether a model meets a limit; keep it if it does, or is nearer than the best."""
        found = self.maker.measure(trial)
        excess = limit.compute_excess(found.drop, found.sqnr_db)
        is_kept = excess == _MET or excess < self._excess
        known = math.isfinite(found.drop)
        self.tried.append(
            SearchLine(
                what if known else f"{what}, with which the metric is no number",
                "evaluation",
                is_kept,
                found.sqnr_db,
                metric_drop=found.drop if known else None,
                stage="limit",
                why=_explain_limit(excess, found.by, is_kept=is_kept),
            )
        )
        self._measured += 1
        self._excess = min(excess, self._excess)
        if trial is not self.best:
            self._keep_trial(trial, accepted=is_kept)
        return excess == _MET

    def _make_ladders(self, most_measured: int | None) -> Iterator[Ladder]:
        """Yield what may bring the outputs nearer, starting with what costs least at run time.

        Args:
            most_measured: How often the metric may be measured in all; None if it is not.
        """

        def count_steps(share: int) -> int | None:
            return None if most_measured is None else (most_measured - self._measured) // share

        costs, scheme = self.maker.measure_costs(self.best), self.best.scheme.plain
        if self.mixed and costs.tensors_db >= NOTICEABLE_DB:
            # As many measurements again are left for nodes that stay float.
            ladder = make_wide_ladder(scheme, costs, steps=count_steps(2))
            yield ladder
            _, scheme = ladder.make_rung(ladder.most)
        yield make_float_ladder(scheme, costs, MOST_REPAIRED, count_steps(1))

    def _settle_trial(self, what: str, trial: SchemeTrial, *, accepted: bool, why: str) -> None:
        self._record_trial(what, trial, accepted=accepted, why=why)
        self._keep_trial(trial, accepted=accepted)

    def _record_trial(self, what: str, trial: SchemeTrial, *, accepted: bool, why: str) -> None:
        found = trial.closeness
        self.tried.append(
            SearchLine(what, "calibration", accepted, found.sqnr_db, found.agreement, why=why)
        )

    def _keep_trial(self, trial: SchemeTrial, *, accepted: bool) -> None:
        """Make a trial the best one, or reject it; remove the file of the other."""
        loser = self.best if accepted else trial
        self.best = trial if accepted else self.best
        shutil.rmtree(loser.path.parent)


def _explain_limit(excess: tuple[float, float], by: str, *, is_kept: bool) -> str:
    where = f" in {by}" if by else ""
    if excess == _MET:
        return f"it meets the limit{where}"
    less = " by less than before" if is_kept else ""
    return f"it misses the limit{less}{where}"


def describe(tried: Sequence[SearchLine]) -> str:
    """Return what was tried as one line, in which what was kept is marked."""
    return "; ".join(map(str, tried))
