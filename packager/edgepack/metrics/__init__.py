"""How much of what fp32 says in an output a variant says too: a metric for each kind of output."""

from edgepack.metrics.base import Found, Nothing, OutputMetric
from edgepack.metrics.choosing import ABOUT, metric_for

__all__ = ["ABOUT", "Found", "Nothing", "OutputMetric", "metric_for"]
