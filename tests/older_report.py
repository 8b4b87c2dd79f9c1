"""Reports as edgepack wrote them when their schema version was 1."""

from __future__ import annotations

import json

from edgepack.records.run import RunReport

NEW = {
    "creation", "sweep", "canary", "tuned", "unfinished", "project", "scenario", "edgepack", "argv",
}  # fmt: skip
NEW_OF_RUNS = {"timed_from_ns", "timed_to_ns", "inferences", "sampling", "energy"}
NEW_OF_CONDITIONS = {"power_mode", "load"}
NEW_OF_FACTS = {"driver"}


def older_document(report: RunReport) -> bytes:
    """Return a report's JSON with nothing in it that version 1 did not have."""
    found = report.model_dump(mode="json", exclude=NEW)
    found["schema_version"] = 1
    for name in NEW_OF_FACTS & set(found["facts"]):
        del found["facts"][name]
    for run in found["runs"]:
        for name in NEW_OF_RUNS:
            del run[name]
    for conditions in (
        found["facts"]["conditions"],
        *(run[when] for run in found["runs"] for when in ("before", "after")),
    ):
        for name in NEW_OF_CONDITIONS:
            del conditions[name]
    return json.dumps(found).encode()
