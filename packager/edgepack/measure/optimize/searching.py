"""The search on the device: settings of the variants that are left, and which point is best."""

from __future__ import annotations

from collections.abc import Iterator

from edgepack.base.schema import NotMeasured
from edgepack.measure.optimize.pruning import Screened, find_pruned
from edgepack.measure.tune.halving import find_finalists
from edgepack.measure.tune.searching import MeasuredCandidate, TuneSearch, format_candidate
from edgepack.records.run import Memory
from edgepack.records.tuning import find_energy

_NS_PER_MS, _MB = 1e6, 1e6
_NOT_SEARCHED = ("p99_ms", "predict_ms", "first_ms", "load_ms", "temperature_c")


class OptimizeSearch(TuneSearch):
    """A search over variants and their settings, whose answer is within limits."""

    comparisons = 2

    def run(self) -> None:
        """Run each variant as it is, prune, search the settings of the others, measure memory."""
        self.make_first_runs()
        self.pruned = find_pruned(
            {
                tried.settings.variant: Screened(
                    self.site.bundle.manifest.find_variant(tried.settings.variant),
                    tried.entrant.latency,
                )
                for tried in self.tried
                if tried.entrant.default and not tried.entrant.problem
            },
            self.question.limits,
        )
        self.require_budget()
        self.run_rungs()
        # Those that may be the answer first: the front needs the memory of all.
        self.measure_memory(sorted(self.list_finalists(), key=self._is_left, reverse=True))

    def rank(self) -> list[MeasuredCandidate]:
        """Return the measured candidates that may be the answer, fastest first."""
        return [
            tried
            for tried in self.list_finalists()
            if self._is_left(tried) and not any(self.explain_missed(tried))
        ]

    def list_finalists(self) -> list[MeasuredCandidate]:
        """Return the candidates that were measured to the end, fastest first."""
        return [self.tried[each.number] for each in find_finalists(self.entrants)]

    def _is_left(self, tried: MeasuredCandidate) -> bool:
        return tried.settings.variant not in self.pruned

    def explain_missed(self, tried: MeasuredCandidate) -> Iterator[str]:
        """Yield the limits that a candidate misses, of those that the search measures."""
        limits, p50_ms = self.question.limits, tried.entrant.latency / _NS_PER_MS
        name = format_candidate(tried)
        if limits.p50_ms is not None and p50_ms > limits.p50_ms:
            yield f"{name}: p50_ms is {p50_ms:.4g} of at most {limits.p50_ms:g} ms"
        if limits.memory_mb is not None and isinstance(tried.memory, Memory):
            peak_mb = tried.memory.peak_bytes / _MB
            if peak_mb > limits.memory_mb:
                yield f"{name}: memory_mb is {peak_mb:.4g} of at most {limits.memory_mb:g} MB"
        energy_mj = find_energy(tried.runs)
        if limits.energy_mj is not None and energy_mj is not None and energy_mj > limits.energy_mj:
            yield f"{name}: energy_mj is {energy_mj:.4g} of at most {limits.energy_mj:g} mJ"

    def find_nearest(self) -> str:
        """Return which limits the fastest candidate misses."""
        left = [each for each in self.list_finalists() if self._is_left(each)]
        missed = next((list(self.explain_missed(each)) for each in left), [])
        return "; ".join(missed) or "no variant may be the answer"

    def find_fp32(self) -> MeasuredCandidate | None:
        """Return fp32 with onnxruntime's defaults: the CPU's, or another's where that is not there.

        None where no fp32 variant works.
        """
        manifest = self.site.bundle.manifest
        found = [
            tried
            for tried in self.tried
            if tried.entrant.default
            and not tried.entrant.problem
            and manifest.find_variant(tried.settings.variant).recipe == "fp32"
        ]
        backends = [manifest.find_variant(each.settings.variant).backend for each in found]
        return min(
            zip(found, backends, strict=True), key=lambda pair: pair[1] != "cpu", default=(None,)
        )[0]

    def find_own_defaults(self, answer: MeasuredCandidate) -> MeasuredCandidate:
        """Return the variant of a candidate with onnxruntime's defaults."""
        return next(
            tried
            for tried in self.tried
            if tried.entrant.default and tried.settings.variant == answer.settings.variant
        )

    def count_runs(self) -> int:
        """Return how many process runs were made of all candidates."""
        return sum(len(tried.runs) for tried in self.tried)

    def list_notes(self) -> Iterator[str]:
        """Yield what else has to be known of the answer."""
        yield from self.notes
        limits = self.question.limits
        if named := [name for name in _NOT_SEARCHED if name in limits.given]:
            yield (
                f"the search does not judge {', '.join(named)}: edgepack bench does, of a build"
                " with the answer"
            )
        ranked = self.rank()
        if "memory_mb" in limits.given and any(
            isinstance(tried.memory, NotMeasured) for tried in ranked
        ):
            yield "memory was not measured of all candidates: edgepack bench judges memory_mb"
        if "energy_mj" in limits.given and not any(
            run.energy_mj is not None for tried in ranked for run in tried.runs
        ):
            yield "no sensor tells what an inference takes: energy_mj is not judged"
