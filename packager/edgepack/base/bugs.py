"""What a report of a bug needs: the version, the machine and the traceback."""

from __future__ import annotations

import platform

from edgepack.base.revision import version_text

ASK = "please report it with the lines above and, if you can, the model"


def bug_text(traceback: str) -> str:
    """Return a bug as text that can be pasted into a report.

    Args:
        traceback: As :func:`traceback.format_exc` returns it.
    """
    return (
        f"BUG in edgepack {version_text()} (Python {platform.python_version()},"
        f" {platform.platform()})\n```\n{traceback.rstrip()}\n```"
    )
