"""The wall clock, for stamps in records only: durations come from monotonic clocks."""

from __future__ import annotations

from datetime import UTC, datetime


def format_now() -> str:
    """Return the present time as ISO 8601 in UTC, to the second: ``2026-11-21T09:30:12Z``."""
    return format_time(datetime.now(UTC))


def format_time(moment: datetime) -> str:
    """Return a time as :func:`format_now` does; without a zone it is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
