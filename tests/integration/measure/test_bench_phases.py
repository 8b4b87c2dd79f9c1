"""What a benchmark measures beside its process runs: creation, sweeps, scenarios, a trace."""

from __future__ import annotations

import errno
import json
import sys
from functools import partial
from pathlib import Path, PurePosixPath

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.cli.main import run
from edgepack.devices.harness import Harness
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, RemoteCommandError, ToolError, UsageError
from edgepack.measure.bench.measuring import time_cold_and_warm
from edgepack.measure.bench.run import bench
from edgepack.records.run import Creation, RunReport
from edgepack.records.scenarios import make_scenario

from tests.support.reports.tiny_bundle import write_tiny_bundle

TARGET = "linux-x86-64"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


@pytest.fixture
def here(tmp_path: Path) -> Device:
    entry = LocalEntry(
        transport="local",
        target=TARGET,
        root=str(tmp_path / "root"),
        python=sys.executable,
        run_prefix=["nice", "-n", "1"],
    )
    return Device("here", entry)


@pytest.mark.slow(reason="measures a whole bundle")
def test_bench_when_all_phases_are_asked_for_reports_each(
    bundle: Path, here: Device, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    report = bench(
        bundle,
        here,
        preset="smoke",
        scenario=make_scenario("offline"),
        batches=[4],
        shapes=["x=1x3x9x9"],
        perfetto=trace,
    )
    assert isinstance(report.creation, Creation)
    assert min(report.creation.warm_ns) > 0
    cold = report.creation.cold_ns
    assert isinstance(cold, NotMeasured) or min(cold) > 0

    assert report.scenario.name == "offline"
    assert [len(run.latencies_ns) for run in report.runs] == [1, 1]
    assert report.runs[0].inferences == report.runs[1].inferences
    assert report.argv[:3] == ["nice", "-n", "1"]
    assert {"measure", "--iterations=20", "--scenario=offline"} <= set(report.argv)

    taken, refused = report.sweep
    assert (taken.shapes, taken.batch, taken.problem) == ({"x": [4, 3, 8, 8]}, 4, "")
    assert len(taken.latencies_ns) >= 20
    assert (refused.batch, refused.latencies_ns) == (1, [])
    assert "has shape [1, 3, 9, 9], expected ['n', 3, 8, 8]" in refused.problem

    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert not isinstance(report.placement, NotMeasured)
    assert {"query", *(node.name for node in report.placement.nodes)} <= names


class FakeHarness(Harness):
    """Creates sessions in the times given, in order, of cold and of warm ones."""

    times: dict[bool, list[int | NotMeasured]]

    def create(self, variant: str, *, cold: bool) -> int | NotMeasured:
        if not self.times[cold]:
            raise RemoteCommandError("the harness crashed", hint="see its last lines")
        return self.times[cold].pop(0)


@pytest.mark.parametrize(
    ("cold", "warm", "expected"),
    [
        ([9, 8], [5, 6], Creation(cold_ns=[9, 8], warm_ns=[5, 6])),
        (
            [9, NotMeasured(reason="it stayed")],
            [5, 6],
            Creation(cold_ns=NotMeasured(reason="it stayed"), warm_ns=[5, 6]),
        ),
        ([], [], NotMeasured(reason="the harness crashed")),
    ],
)
def test_create_sessions_when_the_device_cannot_says_why(
    cold: list[int | NotMeasured],
    warm: list[int | NotMeasured],
    expected: Creation | NotMeasured,
    here: Device,
) -> None:
    with connect(here) as transport:
        harness = FakeHarness(transport, PurePosixPath("/"), sys.executable)
        object.__setattr__(harness, "times", {True: cold, False: warm})
        assert time_cold_and_warm(partial(harness.create, "cpu-fp32"), 2) == expected


def test_bench_when_the_trace_cannot_be_written_says_so_before_it_measures(
    bundle: Path, here: Device, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        bench(bundle, here, preset="smoke", perfetto=tmp_path / "file" / "trace.json")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("command", "option"),
    [("bench", "--html"), ("compare", "--junit"), ("compare", "--markdown")],
)
def test_command_when_its_file_cannot_be_written_says_so_before_it_measures(
    bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, option: str
) -> None:
    bundles = [str(bundle)] * (2 if command == "compare" else 1)
    assert run([command, *bundles, "--device", "local", option, str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {option}: {tmp_path} cannot be written")
    assert not list(tmp_path.parent.glob("*.partial"))


def test_bench_when_it_fails_leaves_no_trace_file(
    bundle: Path, here: Device, tmp_path: Path
) -> None:
    other = Device("other", here.entry.model_copy(update={"target": "raspberry-pi"}))
    with pytest.raises(DeviceError, match="raspberry-pi"):
        bench(bundle, other, preset="smoke", perfetto=tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--qps", "5"],
        ["--scenario", "server", "--qps", "5"],
        ["--scenario", "servre"],
        ["--batch", "0"],
        ["--shape", "x=1x3"],
        ["--self-test", "--batch", "2"],
        ["--self-test", "--scenario", "offline"],
        ["--self-test", "--perfetto", "trace.json"],
    ],
)
def test_command_when_options_do_not_belong_together_is_refused(
    bundle: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert run(["bench", str(bundle), "--device", "local", *options]) == 2
    assert "hint: " in capsys.readouterr().err


@pytest.mark.slow(reason="measures a whole bundle")
def test_bench_when_the_trace_cannot_be_written_loses_no_report(
    bundle: Path, here: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("edgepack.measure.bench.run.write_atomically", full)
    kept: list[RunReport] = []
    trace = tmp_path / "trace.json"
    with pytest.raises(ToolError, match="cannot write the trace: No space left"):
        bench(bundle, here, preset="smoke", perfetto=trace, on_unfinished=kept.append)
    assert len(kept[0].runs) == 2
    assert kept[0].unfinished == ""
