"""Keeps, shows and draws benchmark reports."""

from edgepack.results.documents import Report, read_report
from edgepack.results.html import write_html
from edgepack.results.rows import RunRow
from edgepack.results.store import ResultsStore, RunFilter, keep_report
from edgepack.results.table import (
    near_text,
    others_text,
    r2_text,
    report_table,
    row_table,
    rows_lines,
)
from edgepack.results.tried import NOT_COMPARABLE, tried_stages

__all__ = [
    "NOT_COMPARABLE",
    "Report",
    "ResultsStore",
    "RunFilter",
    "RunRow",
    "keep_report",
    "near_text",
    "others_text",
    "r2_text",
    "read_report",
    "report_table",
    "row_table",
    "rows_lines",
    "tried_stages",
    "write_html",
]
