from __future__ import annotations

import io

from edgepack.base.progress import Work
from edgepack.cli.fleet_view import DeviceRow, FleetLines, FleetTable, make_rows_table
from edgepack.deploy.fleet.schedule import Retry, Settled, Start
from edgepack.errors import DeviceError, UnreachableError
from rich.console import Console


def drawn(rows: list[DeviceRow], most: int = 50) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(make_rows_table(rows, most=most))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_table_when_devices_differ_has_a_line_for_each_with_state_bytes_try_and_error():
    full = DeviceError("no space left\nmore of it", hint="h")
    off = UnreachableError("refuses", hint="h")
    rows = {name: DeviceRow(name) for name in "abcd"}
    rows["a"].done = "123 bytes"
    rows["a"].take_in(Settled("a", "done", 1))
    rows["b"].take_in(Settled("b", "failed", 1, full))
    rows["c"].take_in(Start("c", 1))
    rows["c"].take_in(Retry("c", 1, off, 0.52))
    text = drawn(list(rows.values()))
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("│")}
    assert "done" in lines["a"]
    assert "123 bytes" in lines["a"]
    assert "no space left" in lines["b"]
    assert "more of it" not in text
    assert "again" in lines["c"]
    assert "refuses; again in 0.5 s" in lines["c"]
    assert "waiting" in lines["d"]


def test_table_when_there_are_more_devices_than_lines_shows_what_failed_or_runs():
    rows = [DeviceRow(f"d{number}", state="done") for number in range(40)]
    rows[37].state, rows[39].state = "failed", "running"
    text = drawn(rows, most=3)
    assert "d37" in text
    assert "d39" in text
    assert "and 37 more" in text


def test_table_when_a_device_says_what_a_terminal_obeys_shows_it_harmless():
    assert "\x1b" not in drawn([DeviceRow("a", said="\x1b[2J[red]x")]).replace("\x1b[1m", "")
    assert "[red]x" in drawn([DeviceRow("a", said="\x1b[2J[red]x")])


def test_lines_when_there_is_no_terminal_tell_what_ended_only(capsys):
    lines = FleetLines(["a", "b"])
    lines.tell(Start("a", 1))
    with lines.progress("a").start_task(Work("push", total=2)) as advance:
        advance("model")
    lines.tell(Settled("a", "failed", 1, DeviceError("no space left", hint="h")))
    lines.tell(Settled("b", "pending", 0))
    assert capsys.readouterr().err == "a: failed: no space left\nb: pending\n"


def test_lines_when_somebody_has_to_do_something_tell_it(capsys):
    FleetLines(["a"]).progress("a").note("open this address in the browser: http://x/")
    assert capsys.readouterr().err == "a: open this address in the browser: http://x/\n"


def test_table_when_somebody_has_to_do_something_has_it_whole_above():
    console = Console(file=io.StringIO(), width=40)
    address = f"http://127.0.0.1:8765/{'x' * 24}/"
    FleetTable(["a"], console).progress("a").note(f"open this address: {address}")
    assert f"a: open this address: {address}\n" in console.file.getvalue()  # type: ignore[attr-defined]


def test_row_when_the_push_says_what_it_is_at_shows_that():
    lines = FleetLines(["a"])
    lines.progress("a").show_status("building engines of trt: 2 min 10 s")
    assert "building engines of trt: 2 min 10 s" in drawn(list(lines.rows.values()))
