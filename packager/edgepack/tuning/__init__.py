"""Tuning: which settings of the runtime a bundle is fastest with on a device."""

from edgepack.tuning.keeping import keep_tuning, load_tuning
from edgepack.tuning.report import TuneReport
from edgepack.tuning.searching import Question
from edgepack.tuning.tuning import TunePlan, plan_tuning, tune
from edgepack.tuning.writing import Override, make_override, write_override

__all__ = [
    "Override",
    "Question",
    "TunePlan",
    "TuneReport",
    "keep_tuning",
    "load_tuning",
    "make_override",
    "plan_tuning",
    "tune",
    "write_override",
]
