"""What the service counts, for Prometheus.

Needs Python 3.8 or newer and prometheus-client.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

if __package__:
    from ..harness import edgepack_sysfs as sysfs
else:  # a bundle's, in the folder of the harness
    sys.path.append(str(Path(__file__).resolve().parents[1] / "harness"))
    import edgepack_sysfs as sysfs  # type: ignore[import-not-found,no-redef]

PHASES = ("read", "wait", "infer", "write")
"""Of a request: reading its body, waiting in the queue, the model, and writing the answer."""
ROUTES = ("infer", "predict")
"""That answer with a model."""
_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_BATCHES = (1, 2, 4, 8, 16, 32)


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


def read_temperatures(root: Path = sysfs.ROOT) -> Dict[str, float]:
    """Return the temperatures of the thermal zones that are on, in degrees Celsius."""
    found = {
        name: sysfs.parse_number(sysfs.read(zone / "temp"))
        for name, zone in sysfs.find_zones(root).items()
    }
    return {
        name: value / 1000
        for name, value in found.items()
        if value is not None and value > sysfs.COLDEST
    }
