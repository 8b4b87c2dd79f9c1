"""``edgepack audit``: what was done to devices from here."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.groups import QuickGroup
from edgepack.cli.options import JsonOption, parse_moment

audit_app = typer.Typer(
    cls=QuickGroup,
    help="The log of what was done to devices from this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@audit_app.command(epilog="Example: edgepack audit export --since 2026-11-01 --json")
def export(
    since: Annotated[
        str | None,
        typer.Option(help="Only records from then or later: an ISO 8601 date or time, UTC."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List which bundle was current on which board from when to when, and all records."""
    from edgepack.cli.printing import print_json, write_line

    begin = parse_moment(since) if since else None
    log = api.read_audit_log()
    spans = api.list_audit_intervals(log.records, begin)
    records = api.read_audit_log(since=begin).records
    if as_json:
        print_json(
            {
                "intervals": spans,
                "records": records,
                "torn_lines": log.torn,
                "problem": log.broken,
            }
        )
    else:
        for line in (*map(_format_interval, spans), *map(_format_record, records)):
            write_line(line)
        _warn_of_torn(log)
    log.require_whole()


@audit_app.command(epilog="Example: edgepack audit verify --head 9f86d081884c7d65...")
def verify(
    head: Annotated[
        str | None,
        typer.Option(help="A digest that was printed earlier and must still be in the log."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that no line of the log was altered, removed or inserted; print its end's digest."""
    from edgepack.cli.printing import print_json, write_line

    log = api.verify_audit_log(head=head)
    end = log.digests[-1] if log.digests else ""
    if as_json:
        print_json({"records": len(log.records), "torn_lines": log.torn, "head": end})
        return
    write_line(f"{len(log.records)} records, the chain is unbroken; {api.find_audit_log()}")
    write_line(f"head {end or 'of an empty log'}")
    _warn_of_torn(log)


def _format_interval(span: api.UseInterval) -> str:
    proof = f"serial {span.serial}" if span.serial else span.host_key
    board = f"{span.device} ({proof})" if proof else span.device
    until = f"to {span.end} ({span.ended_by})" if span.end else "until now"
    signer = f", signed by {span.signer}" if span.signer else ""
    what = f"{span.project} {span.digest or span.release}{signer}"
    return f"{board}: {what} from {span.start or 'a time not known here'} {until}"


def _format_record(record: api.Record) -> str:
    about = [record.project, record.release, record.detail]
    said = " ".join(word for word in about if word)
    failed = f": {record.error}" if record.error else ""
    who = f"{record.user}@{record.host}"
    return f"{record.time} {who} {record.action} {record.device} {said} {record.result}{failed}"


def _warn_of_torn(log: api.AuditLog) -> None:
    for number in log.torn:
        typer.echo(
            f"warning: line {number} of the audit log was cut off: a crash in mid-write", err=True
        )
