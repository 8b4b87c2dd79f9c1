"""Keeps, shows and draws benchmark reports."""

from edgepack.results.html import write_html
from edgepack.results.store import (
    Listing,
    list_reports,
    load_report,
    read_report,
    reports_dir,
    save_report,
)
from edgepack.results.table import report_table, reports_table

__all__ = [
    "Listing",
    "list_reports",
    "load_report",
    "read_report",
    "report_table",
    "reports_dir",
    "reports_table",
    "save_report",
    "write_html",
]
