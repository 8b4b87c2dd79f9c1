"""The database that a team shares, where ``EDGEPACK_RESULTS`` names one of PostgreSQL's.

Besides the results, rollouts, the audit log and devices lie there then; see
:mod:`edgepack.base.team_tables`.
"""

from __future__ import annotations

import os

VARIABLE = "EDGEPACK_RESULTS"
"""The environment variable with the URL of the results' database, and so of a team's."""

TRY_VARIABLE = "EDGEPACK_JOB"
"""The environment variable that tells a job's process which it is: ``17.2``, the second try of job
17."""


def is_in_team() -> bool:
    """Return whether the environment names a team's database."""
    return os.environ.get(VARIABLE, "").startswith("postgres")
