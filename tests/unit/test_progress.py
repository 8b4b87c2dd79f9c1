from __future__ import annotations

import pytest
from edgepack.progress import Bars, Lines, Silent


@pytest.fixture
def terminal(monkeypatch):
    """Make rich take stderr for a terminal that is wide enough."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def test_bars_when_a_part_says_how_far_it_is_show_it_until_the_part_is_done(terminal, capsys):
    bars = Bars()
    with bars.task("build", total=2) as advance:
        bars.within("calibration-1", 0, 40)
        bars.within("calibration-1", 30, 40)
        bars._bars.refresh()
        during = capsys.readouterr()
        advance("calibration-1")
        bars._bars.refresh()
        after = capsys.readouterr()
    assert "30/40" in during.err
    assert "/40" not in after.err.rsplit("build", 1)[-1]
    assert "1/2" in after.err
    assert during.out == after.out == ""


def test_bars_when_no_task_runs_take_a_late_word_quietly(terminal, capsys):
    bars = Bars()
    with bars.task("build", total=1):
        pass
    capsys.readouterr()
    bars.within("calibration-1", 1, 40)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("progress", [Lines(), Silent()])
def test_lines_when_a_part_says_how_far_it_is_write_nothing(progress, capsys):
    with progress.task("build", total=1):
        progress.within("calibration-1", 1, 40)
    assert capsys.readouterr() == ("", "")


def test_bars_when_a_task_says_what_it_is_at_show_it_behind_the_bar(terminal, capsys):
    bars = Bars()
    bars.status("too early")
    with bars.task("trying", total=1):
        bars.status("building engines: 2 min 10 s")
        bars._bars.refresh()
    assert "building engines: 2 min 10 s" in capsys.readouterr().err


def test_lines_when_a_task_says_often_what_it_is_at_write_it_now_and_then(capsys, monkeypatch):
    lines, now = Lines(), [100.0]
    monkeypatch.setattr("edgepack.progress.time.monotonic", lambda: now[0])
    for _ in range(10):
        lines.status(f"at {now[0]:g}")
        now[0] += 2.0
    assert capsys.readouterr().err.split("\n") == ["at 100", "at 106", "at 112", "at 118", ""]
