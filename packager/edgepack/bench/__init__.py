"""Measures bundles on devices; the numbers come with a verdict on whether they may be used."""

from edgepack.bench.device_accuracy import DeviceAccuracy, evaluate
from edgepack.bench.presets import PRESETS
from edgepack.bench.run import bench
from edgepack.bench.verdict import require_valid

__all__ = ["PRESETS", "DeviceAccuracy", "bench", "evaluate", "require_valid"]
