"""Collects what a bug report needs: the version, the machine and the traceback."""

from __future__ import annotations

TITLE = "BUG in edgepack"


def format_bug(traceback: str) -> str:
    """Return a bug as text that can be pasted into a report.

    Args:
        traceback: As :func:`traceback.format_exc` returns it.
    """
    import platform

    from edgepack.base.revision import format_version

    return (
        f"{TITLE} {format_version()} (Python {platform.python_version()},"
        f" {platform.platform()})\n```\n{traceback.rstrip()}\n```"
    )
