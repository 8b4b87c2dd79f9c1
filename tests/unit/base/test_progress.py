from __future__ import annotations

import pytest
from edgepack.base.progress import LEFT_EVERY_S, Bars, Lines, Silent, Work


@pytest.fixture
def terminal(monkeypatch):
    """Make rich take stderr for a terminal that is wide enough."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def now(monkeypatch):
    """Give the clock that progress goes by, in a list."""
    clock = [1000.0]
    monkeypatch.setattr("edgepack.base.progress.time.monotonic", lambda: clock[0])
    return clock


def test_bars_when_a_part_says_how_far_it_is_show_it_until_the_part_is_done(terminal, capsys):
    bars = Bars()
    with bars.start_task(Work("build", total=2)) as task:
        task.begin("calibration-1", "linux cpu: finding ranges")
        task.report("calibration-1", 0, 40)
        task.report("calibration-1", 30, 40)
        bars._running.bars.refresh()
        during = capsys.readouterr()
        task("calibration-1")
        bars._running.bars.refresh()
        after = capsys.readouterr()
    assert "linux cpu: finding ranges, 30/40" in during.err
    assert "/40" not in after.err.rsplit("build", 1)[-1]
    assert "1/2" in after.err
    assert during.out == after.out == ""


def test_bars_when_the_task_is_over_take_a_late_word_quietly(terminal, capsys):
    bars = Bars()
    with bars.start_task(Work("build", total=1)) as task:
        pass
    capsys.readouterr()
    task.report("calibration-1", 1, 40)
    bars.show_status("late")
    assert capsys.readouterr() == ("", "")


def test_bars_when_parts_are_alike_say_how_long_the_rest_takes(terminal, now, capsys):
    bars = Bars()
    with bars.start_task(Work("bench", total=3, kinds={"run": 3})) as task:
        task.begin("run 1", kind="run")
        now[0] += 60
        task("run 1")
        bars._running.bars.refresh()
    assert f"about {2 * 60 // 60} min left" in capsys.readouterr().err


def test_bars_when_bytes_are_counted_show_them_and_no_names(terminal, capsys):
    bars = Bars()
    with bars.start_task(Work("pi: sending", total=4_000_000, unit="bytes")) as task:
        task("models/cpu-fp32.onnx", by=3_000_000)
        bars._running.bars.refresh()
    said = capsys.readouterr().err
    assert "3.0/4.0 MB" in said
    assert "cpu-fp32" not in said


@pytest.mark.parametrize("progress", [Lines(), Silent()])
def test_lines_when_a_part_says_at_once_how_far_it_is_write_nothing_of_it(progress, capsys):
    with progress.start_task(Work("build", total=1)) as task:
        task.begin("calibration-1")
        capsys.readouterr()
        task.report("calibration-1", 1, 40)
    assert capsys.readouterr() == ("", "")


def test_lines_name_what_begins_and_count_what_was_done_before(capsys):
    with Lines().start_task(Work("build", total=5)) as task:
        task("reading samples", kind="samples")
        task("preparing", kind="prepared")
        task.begin("int8-1", "linux cpu-int8: quantizing")
        task.begin("eval-1", "linux cpu-fp32: measuring accuracy on 120 samples")
        task("int8-1")
        task("eval-1")
        task("fusion", kind="fusion")
    assert capsys.readouterr().err.splitlines() == [
        "build 2/5  2 done already",
        "build 3/5  linux cpu-int8: quantizing",
        "build 4/5  linux cpu-fp32: measuring accuracy on 120 samples",
        "build 5/5  1 done already",
    ]


def test_lines_when_parts_find_something_tell_that_when_they_are_done(capsys):
    with Lines().start_task(Work("search", total=2, finds=True)) as task:
        task.begin("threads 2")
        assert capsys.readouterr().err == ""
        task("threads 2", found="3 ms")
    assert capsys.readouterr().err == "search 1/2  threads 2: 3 ms\n"


def test_lines_when_a_part_is_long_say_now_and_then_how_far_it_is(now, capsys):
    with Lines().start_task(Work("build", total=2)) as task:
        task.begin("calibration-1", "finding ranges")
        for done in range(101):
            task.report("calibration-1", done, 400)
            now[0] += 1.0
    said = capsys.readouterr().err.splitlines()[1:]
    every = int(LEFT_EVERY_S)
    lefts = {30: "370 s", 60: "340 s", 90: "310 s"}
    assert [line.split(",")[1] for line in said] == [f" {n}/400" for n in lefts]
    assert every == 30
    assert said[0] == "finding ranges, 30/400, about 7 min left"  # 370 s, rounded up


def test_lines_when_bytes_are_sent_write_nothing_for_a_quick_push(capsys):
    with Lines().start_task(Work("pi: sending", total=4, unit="bytes")) as task:
        for name in "abcd":
            task(name, by=1)
    assert capsys.readouterr().err == ""


def test_bars_when_a_task_says_what_it_is_at_show_it_below_the_bar(terminal, capsys):
    bars = Bars()
    bars.show_status("too early")
    with bars.start_task(Work("trying", total=1)):
        bars.show_status("building engines: 2 min 10 s")
        bars._running.bars.refresh()
    assert "building engines: 2 min 10 s" in capsys.readouterr().err


def test_lines_when_a_task_says_often_what_it_is_at_write_it_now_and_then(capsys, now):
    lines = Lines()
    now[0] = 100.0
    for _ in range(10):
        lines.show_status(f"at {now[0]:g}")
        now[0] += 2.0
    assert capsys.readouterr().err.split("\n") == ["at 100", "at 106", "at 112", "at 118", ""]
