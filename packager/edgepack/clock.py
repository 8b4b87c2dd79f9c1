"""The wall clock, for stamps in records only: durations come from monotonic clocks."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC, to the second: ``2026-11-21T09:30:12Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
