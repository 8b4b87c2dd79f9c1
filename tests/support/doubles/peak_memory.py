"""The peak of this process's memory."""

from __future__ import annotations

import resource
from pathlib import Path


def peak_bytes() -> int:
    """Return the peak of resident memory since the process's program began.

    ``ru_maxrss`` has also what the process that forked this one had then, on Linux.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
