"""Keeps, shows and draws benchmark reports."""

from edgepack.results.documents import Report, read_report
from edgepack.results.html import write_html
from edgepack.results.rows import RunRow
from edgepack.results.store import ResultsStore, RunFilter, keep_report
from edgepack.results.table import report_table, row_table, rows_lines

__all__ = [
    "Report",
    "ResultsStore",
    "RunFilter",
    "RunRow",
    "keep_report",
    "read_report",
    "report_table",
    "row_table",
    "rows_lines",
    "write_html",
]
