"""How long a benchmark takes, by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from edgepack.base.statistics import MIN_SAMPLES_P99, count_samples_needed
from edgepack.errors import UsageError, suggest_nearest
from edgepack.records.run import Scenario
from edgepack.records.scenarios import make_harness_arguments


@dataclass(frozen=True)
class Preset:
    """How many process runs are made, and how long each measures and warms up."""

    name: str
    runs: int
    duration_s: float
    iterations: int
    """The least number of iterations in each run."""
    warm_up_s: float = 1.0
    window_s: float = 1.0
    """The window of the test for steadiness that ends the warm-up, in seconds."""
    warm_up_cap_s: float = 60.0
    pause_s: float = 0.0
    """Seconds to cool down before each run, where the device reports its temperature."""
    heats: bool = False
    """Whether the run shows how heat slows the device down; heat does not make it invalid then."""
    creations: int = 3
    """How often a session is created cold, and how often warm."""
    conclusive: bool = True
    scenario: Scenario = field(default_factory=Scenario)

    @property
    def arguments(self) -> list[str]:
        """The harness's arguments."""
        return [
            f"--duration-s={self.duration_s:g}",
            f"--iterations={self.iterations}",
            f"--warm-up-s={self.warm_up_s:g}",
            f"--window-s={self.window_s:g}",
            f"--warm-up-cap-s={self.warm_up_cap_s:g}",
            *make_harness_arguments(self.scenario),
        ]

    @property
    def longest_s(self) -> float:
        """How long the timed part of a process run may take, of a model that is not slow."""
        per_s = self.scenario.queries_per_s
        return 2 * max(self.duration_s, self.iterations / per_s if per_s else 0.0)

    def with_runs(self, runs: int | None) -> Preset:
        """Return the preset with another number of process runs; the same where it is None."""
        return self if runs is None else replace(self, runs=runs)

    def with_samples_for(self, percents: Iterable[float]) -> Preset:
        """Return the preset with as many iterations as the percentiles need."""
        needed = (count_samples_needed(percent) for percent in percents)
        return replace(self, iterations=max(self.iterations, *needed))

    def with_scenario(self, scenario: Scenario) -> Preset:
        """Return the preset for a scenario, with as many queries as its percentile needs."""
        iterations = self.iterations
        if scenario.latency_bound_ms is not None:
            iterations = max(iterations, math.ceil(MIN_SAMPLES_P99 / self.runs))
        return replace(self, iterations=iterations, scenario=scenario)


# The least numbers of iterations are those for a 99 % confident p90 and p95. Source: MLPerf
# Inference rules, early stopping (64 and 130 with no sample above the estimate).
PRESETS = {
    preset.name: preset
    for preset in (
        Preset("quick", runs=3, duration_s=5, iterations=64),
        Preset("standard", runs=5, duration_s=10, iterations=130, pause_s=10),
        Preset("gate", runs=6, duration_s=10, iterations=130, pause_s=10),
        Preset("sustained", runs=1, duration_s=1800, iterations=MIN_SAMPLES_P99, heats=True),
        Preset(
            "smoke",
            runs=2,
            duration_s=0.3,
            iterations=20,
            warm_up_s=0.1,
            window_s=0.05,
            warm_up_cap_s=2,
            creations=1,
            conclusive=False,
        ),
    )
}
"""``sustained`` is one run of half an hour, which shows how the device heats up. ``smoke`` shows
that everything works; its verdict is never better than inconclusive."""


def find_preset(name: str) -> Preset:
    """Return a preset by its name.

    Raises:
        UsageError: There is no preset of that name.
    """
    if name not in PRESETS:
        raise UsageError(
            f"there is no preset {name!r}", hint=suggest_nearest(name, PRESETS), where="--preset"
        )
    return PRESETS[name]
