"""Reports as JSON documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from edgepack.errors import BundleError
from edgepack.records.pipeline import PipelineReport
from edgepack.records.run import EvaluationReport, ImportedReport, RunReport

Report = RunReport | EvaluationReport | ImportedReport | PipelineReport
Kind = Literal["bench", "evaluation", "imported", "pipeline"]

MODELS: dict[Kind, type[Report]] = {
    "bench": RunReport,
    "evaluation": EvaluationReport,
    "imported": ImportedReport,
    "pipeline": PipelineReport,
}
TELLING_FIELDS: dict[str, Kind] = {
    "kind": "pipeline",
    "runs": "bench",
    "measured": "evaluation",
    "tool": "imported",
}
"""A field that each report of a kind has, and none of the kinds that come after it."""
REMEDY = "delete the file, or measure again with edgepack bench"


def find_kind(report: Report) -> Kind:
    """Return what a report is of."""
    return next(kind for kind, model in MODELS.items() if isinstance(report, model))


def parse_report(raw: bytes, where: str, remedy: str = REMEDY) -> Report:
    """Return the report in a JSON document.

    Args:
        raw: The document.
        where: Where it lies, for errors.
        remedy: The hint of an error about a broken document.

    Raises:
        BundleError: It is broken, or of another schema version.
    """
    try:
        document = json.loads(raw)
        model = MODELS[_find_document_kind(document)]
        found, known = document.get("schema_version"), _find_version(model)
        if found != known:
            raise BundleError(
                f"the report has schema version {found!r}, this edgepack reads {known}",
                hint="read it with the edgepack that made it: pip install --upgrade edgepack",
                where=where,
            )
        return model.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        problem = f"the report cannot be read: {place}: {first['msg']}"
    except (ValueError, RecursionError) as error:
        problem = f"the report cannot be read: {error}"
    raise BundleError(problem, hint=remedy, where=where)


def read_report(path: Path) -> Report:
    """Return the report of a JSON file.

    Raises:
        BundleError: It cannot be read, is broken, or of another schema version.
    """
    return parse_report(read_document(path), str(path))


def read_documents(path: Path) -> list[bytes]:
    """Return the reports of a file: one, or a list such as ``edgepack runs export`` writes.

    Raises:
        BundleError: It cannot be read, or is a list that is broken.
    """
    raw = read_document(path)
    if not raw.lstrip().startswith(b"["):
        return [raw]
    try:
        return [json.dumps(one).encode() for one in json.loads(raw)]
    except (ValueError, RecursionError) as error:
        raise BundleError(
            f"the list of reports cannot be read: {error}",
            hint="export it again: edgepack runs export --format json",
            where=str(path),
        ) from error


def read_document(path: Path) -> bytes:
    """Return the content of a report's file.

    Raises:
        BundleError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(
            f"the report cannot be read: {error.strerror}",
            hint="give the path of a report file",
            where=str(path),
        ) from error


def _find_document_kind(document: Any) -> Kind:  # noqa: ANN401  (whatever JSON holds)
    fields = document if isinstance(document, dict) else {}
    kind = next((kind for field, kind in TELLING_FIELDS.items() if field in fields), None)
    if kind is None:
        raise ValueError(f"it has none of the fields {', '.join(TELLING_FIELDS)}")
    return kind


def _find_version(model: type[Report]) -> int:
    """Return the schema version that a model describes."""
    (version,) = get_args(model.model_fields["schema_version"].annotation)
    return int(version)
