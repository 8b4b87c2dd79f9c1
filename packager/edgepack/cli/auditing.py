"""``edgepack audit``: what was done to devices, from here and by others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edgepack import api
from edgepack.cli.groups import QuickGroup
from edgepack.cli.options import JsonOption, complete_selection, parse_moment
from edgepack.cli.rollouts import ParallelOption
from edgepack.cli.several import make_document, print_outcomes

if TYPE_CHECKING:
    from edgepack.base.progress import Progress

CLOCK_S = 60
"""From which difference of a board's clock on it is told."""
SOURCES = {"device": "only the device has it", "both": "the device has it too"}

audit_app = typer.Typer(
    cls=QuickGroup,
    help="The log of what was done to devices.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@audit_app.command(
    epilog="Examples: edgepack audit export --since 2026-11-01 --json  |  "
    "edgepack audit export --from-devices tag:lab"
)
def export(
    since: Annotated[
        str | None,
        typer.Option(help="Only records from then or later: an ISO 8601 date or time, UTC."),
    ] = None,
    from_devices: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICE",
            help="Fetch this device's own history too, which has what others did: a name, tag:NAME,"
            " target:ID, backend:NAME or 'all'; repeat for more.",
            autocompletion=complete_selection,
            show_default=False,
        ),
    ] = None,
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """List which bundle was current on which board from when to when, and all records.

    Without --from-devices it is what the log knows; a record has who has it: the log, the board's
    own history, or both.
    """
    from edgepack.cli.printing import print_json, write_line

    begin = parse_moment(since) if since else None
    log = api.read_audit_log()
    asked = _ask_devices(from_devices, parallel) if from_devices else []
    histories = [each.result for each in asked if each.result is not None]
    merged = api.merge_histories(log.records, histories)
    spans = api.list_audit_intervals(merged, begin, histories)
    records = [one for one in merged if begin is None or api.parse_moment(one.time) >= begin]
    if as_json:
        print_json(
            {
                "devices": {each.device: make_document(each) for each in asked},
                "intervals": spans,
                "records": records,
                "torn_lines": log.torn,
                "problem": log.broken,
            }
        )
    else:
        if asked:
            print_outcomes(asked, lambda history: _count_entries(history, merged))
        for line in (
            *(_format_interval(span, log) for span in spans),
            *map(_format_record, records),
        ):
            write_line(line)
        _warn_of_torn(log)
    log.require_whole()
    for each in asked:
        if each.error is not None:
            typer.echo(f"warning: of {each.device} only what the log has is known", err=True)
    if code := api.choose_exit_code(each.error for each in asked):
        raise typer.Exit(code)


def _ask_devices(words: list[str], parallel: int) -> list[api.Outcome[api.DeviceHistory]]:
    from edgepack.cli.fleet_view import watch

    devices = api.select_devices(words)
    with watch([device.name for device in devices]) as watcher:

        def act(device: api.Device, _progress: Progress) -> api.DeviceHistory:
            history = api.read_device_history(device)
            watcher.show(device.name, f"{len(history.entries)} switches")
            return history

        settings = api.RolloutSettings(parallel=parallel)
        return api.do_on_devices(devices, act, settings=settings, watcher=watcher)


def _count_entries(history: api.DeviceHistory, merged: list[api.MergedRecord]) -> str:
    there = [one for one in merged if one.source == "device" and one.device == history.device]
    clock = f"; its clock is {-history.clock_s:+g} s off" if abs(history.clock_s) >= CLOCK_S else ""
    return f"{len(history.entries)} switches, {len(there)} of them not in the log{clock}"


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
    write_line(f"{len(log.records)} records, the chain is unbroken; {log.place}")
    write_line(f"head {end or 'of an empty log'}")
    _warn_of_torn(log)


def _format_interval(span: api.UseInterval, log: api.AuditLog) -> str:
    proof = f"serial {span.serial}" if span.serial else span.host_key
    board = f"{span.device} ({proof})" if proof else span.device
    signer = f", signed by {span.signer}" if span.signer else ""
    what = f"{span.project} {span.digest or span.release}{signer}"
    return f"{board}: {what} from {span.start or 'a time not known here'} {_format_end(span, log)}"


def _format_end(span: api.UseInterval, log: api.AuditLog) -> str:
    """Return until when it was current, as far as somebody knows."""
    if span.end and span.ended_who:
        return f"to {span.end} ({span.ended_by} by {span.ended_who})"
    if span.end:
        return f"to {span.end} at the latest ({span.ended_by})"
    if span.seen_by == "device":
        return f"until now: the device said so at {span.seen}"
    who = "the team's log" if log.is_shared else "this machine"
    return f"until at least {span.seen}, as far as {who} knows"


def _format_record(record: api.MergedRecord) -> str:
    about = [record.project, record.release, record.detail]
    said = " ".join(word for word in about if word)
    failed = f": {record.error}" if record.error else ""
    who = f"{record.user}@{record.host}" if record.user else "somebody"
    what = f"{record.time} {who} {record.action} {record.device} {said} {record.result}{failed}"
    return what if record.source == "log" else f"{what} ({SOURCES[record.source]})"


def _warn_of_torn(log: api.AuditLog) -> None:
    for number in log.torn:
        typer.echo(
            f"warning: line {number} of the audit log was cut off: a crash in mid-write", err=True
        )
