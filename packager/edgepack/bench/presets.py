"""How long a benchmark takes, by name."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.errors import UsageError, nearest


@dataclass(frozen=True)
class Preset:
    """How many process runs are made, and how long each measures and warms up."""

    name: str
    runs: int
    duration_s: float
    iterations: int
    """Each run makes at least so many."""
    warm_up_s: float = 1.0
    window_s: float = 1.0
    """Of the test for steadiness that ends the warm-up."""
    warm_up_cap_s: float = 60.0
    conclusive: bool = True

    @property
    def arguments(self) -> list[str]:
        """The harness's arguments."""
        return [
            f"--duration-s={self.duration_s:g}",
            f"--iterations={self.iterations}",
            f"--warm-up-s={self.warm_up_s:g}",
            f"--window-s={self.window_s:g}",
            f"--warm-up-cap-s={self.warm_up_cap_s:g}",
        ]


# The least numbers of iterations are those for a 99 % confident p90 and p95. Source: MLPerf
# Inference rules, early stopping (64 and 130 with no sample above the estimate).
PRESETS = {
    preset.name: preset
    for preset in (
        Preset("quick", runs=3, duration_s=5, iterations=64),
        Preset("standard", runs=5, duration_s=10, iterations=130),
        Preset("gate", runs=6, duration_s=10, iterations=130),
        Preset(
            "smoke",
            runs=2,
            duration_s=0.3,
            iterations=20,
            warm_up_s=0.1,
            window_s=0.05,
            warm_up_cap_s=2,
            conclusive=False,
        ),
    )
}
"""``smoke`` shows that everything works; its verdict is never better than inconclusive."""


def find_preset(name: str) -> Preset:
    """Return a preset by its name.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in PRESETS:
        raise UsageError(
            f"there is no preset {name!r}", hint=nearest(name, PRESETS), where="--preset"
        )
    return PRESETS[name]
