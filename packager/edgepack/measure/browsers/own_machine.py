"""What decides the speed of a browser that edgepack starts: it runs on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgepack.base.schema import NotMeasured
from edgepack.ondevice.harness import edgepack_conditions as conditions
from edgepack.ondevice.harness import edgepack_other_work as other_work
from edgepack.records.run import Conditions, OtherWork

NO_SENSOR = NotMeasured(reason="a browser does not report it")
UNKNOWN_CONDITIONS = Conditions(
    governor=NO_SENSOR,
    temperature_c=NO_SENSOR,
    throttle_events=NO_SENSOR,
    throttled_now=NO_SENSOR,
    throttled_since_boot=NO_SENSOR,
    power_mode=NO_SENSOR,
    load=NO_SENSOR,
)
"""Of a browser that somebody has opened."""
_NO_PROC = NotMeasured(reason="there is no /proc that counts the browser's processes")


def read_own_conditions() -> Conditions:
    """Return what decides this machine's speed now."""
    return Conditions.model_validate(conditions.read_conditions())


def read_own_boot_id() -> str | NotMeasured:
    """Return this machine's boot id."""
    found = conditions.read_boot_id()
    return found if isinstance(found, str) else NotMeasured.model_validate(found)


class OwnWork:
    """What others than a browser take of this machine's cores, from here on.

    Args:
        count_ns: Returns the processor time of all the browser's processes; None if unknown.
    """

    def __init__(self, count_ns: Callable[[], int | None]) -> None:
        self._count_ns = count_ns
        self._others = other_work.OtherWork()
        self._began_ns, self._before_ns = time.monotonic_ns(), count_ns()

    def measure(self) -> OtherWork | NotMeasured:
        """Return that until now."""
        after_ns, found = self._count_ns(), self._others.measure()
        if self._before_ns is None or after_ns is None or "cores" not in found:
            return _NO_PROC
        own = (after_ns - self._before_ns) / max(1, time.monotonic_ns() - self._began_ns)
        # edgepack itself, which hardly works meanwhile, counts among the others.
        others = found["other_cores"] + found["own_cores"] - own
        return OtherWork.model_validate(
            {**found, "own_cores": round(own, 4), "other_cores": round(max(0.0, others), 4)}
        )
