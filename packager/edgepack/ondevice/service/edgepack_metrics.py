"""What the service counts, for Prometheus.

Needs Python 3.8 or newer and prometheus-client.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

PHASES = ("read", "wait", "infer", "write")
"""Of a request: reading its body, waiting in the queue, the model, and writing the answer."""
_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_BATCHES = (1, 2, 4, 8, 16, 32)
_ZONES = Path("/sys/class/thermal")


class Metrics:
    """The counters of a service, in a registry of their own.

    Args:
        read_gauges: Called at each scrape; returns for each model ``waiting`` and ``ready`` as
            numbers, ``info`` as texts, and ``outside`` as numbers by input.
    """

    def __init__(self, read_gauges: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "edgepack_requests",
            "Requests that were answered, by status of HTTP.",
            ["model", "route", "status"],
            registry=self.registry,
        )
        self.errors = Counter(
            "edgepack_errors",
            "Requests that failed, by reason.",
            ["model", "reason"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "edgepack_phase_seconds",
            "How long a request took, by phase.",
            ["model", "phase"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.batch = Histogram(
            "edgepack_batch_requests",
            "Requests that ran as one batch.",
            ["model"],
            buckets=_BATCHES,
            registry=self.registry,
        )
        self._read_gauges = read_gauges
        self.registry.register(self)

    def collect(self) -> Iterator[Any]:
        """Yield what is true at the time of a scrape; called by prometheus-client."""
        waiting = GaugeMetricFamily("edgepack_waiting", "Requests that wait.", labels=["model"])
        ready = GaugeMetricFamily(
            "edgepack_ready", "1 where the golden outputs were right here.", labels=["model"]
        )
        outside = GaugeMetricFamily(
            "edgepack_outside",
            "Requests with values beyond the range that int8 was calibrated with.",
            labels=["model", "input"],
        )
        info = GaugeMetricFamily(
            "edgepack_model",
            "The release in use.",
            labels=["model", "version", "digest", "variant"],
        )
        for model, found in self._read_gauges().items():
            waiting.add_metric([model], found["waiting"])
            ready.add_metric([model], found["ready"])
            if found["info"]:
                info.add_metric([model, *found["info"]], 1)
            for name, count in found["outside"].items():
                outside.add_metric([model, name], count)
        zones = GaugeMetricFamily(
            "edgepack_temperature_celsius", "Of the machine's zones.", labels=["zone"]
        )
        for zone, celsius in read_temperatures().items():
            zones.add_metric([zone], celsius)
        yield from (waiting, ready, outside, info, zones)


def read_temperatures(root: Path = _ZONES) -> Dict[str, float]:
    """Return the temperatures of Linux's thermal zones, in degrees Celsius; those that it reads.

    Source: Linux, Documentation/driver-api/thermal/sysfs-api.rst: ``temp`` is in millidegrees.
    """
    found: Dict[str, float] = {}
    for zone in sorted(root.glob("thermal_zone*")):
        try:
            name = (zone / "type").read_text(encoding="ascii").strip()
            found[f"{zone.name[12:]}:{name}"] = int((zone / "temp").read_text("ascii")) / 1000
        except (OSError, ValueError):
            continue  # a zone that is off says so with an error
    return found
