"""Comparisons of two bundles on devices: which is slower, decided over pairs of process runs."""

from edgepack.comparison.comparing import CURRENT, MARGINS, Question, compare
from edgepack.comparison.deciding import Rule
from edgepack.comparison.formats import junit_xml, markdown, text_rows
from edgepack.comparison.noise import NoiseFloor, measure_noise
from edgepack.comparison.report import Comparison, DeviceComparison

__all__ = [
    "CURRENT",
    "MARGINS",
    "Comparison",
    "DeviceComparison",
    "NoiseFloor",
    "Question",
    "Rule",
    "compare",
    "junit_xml",
    "markdown",
    "measure_noise",
    "text_rows",
]
