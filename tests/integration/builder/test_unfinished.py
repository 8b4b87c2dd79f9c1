"""Measurements that end early: what was measured is kept, marked, and decides nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import DeviceError, InconclusiveError, UnreachableError
from edgepack.measure.bench.run import bench
from edgepack.measure.compare.comparing import CompareQuestion, compare
from edgepack.project.profile import find_host_target
from edgepack.records import presets
from edgepack.records.comparison import Comparison
from edgepack.records.deciding import Rule
from edgepack.records.presets import Preset
from edgepack.records.run import RunReport
from edgepack.results.store.store import ResultsStore

from tests.support.doubles.watched_progress import Watched
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.fault_proxy import FaultProxy
from tests.support.servers.loopback import ssh_device

SHORT = Preset(
    "short",
    runs=3,
    duration_s=0.05,
    iterations=20,
    warm_up_s=0.02,
    window_s=0.01,
    warm_up_cap_s=0.5,
)


@pytest.fixture(autouse=True)
def short_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.PRESETS, "short", SHORT)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(bundle, lambda manifest: manifest.update(target=find_host_target()))
    return bundle


class CallsAt(Watched):
    """Calls something when a part of a task is done."""

    def __init__(self, part: str, call: Callable[[], None]) -> None:
        self._part, self._call = part, call

    def ended(self, part: str) -> None:
        if part.startswith(self._part):
            self._call()


@pytest.fixture
def over_wire(tmp_path: Path) -> Iterator[tuple[Device, Callable[[], None]]]:
    """A device over SSH, and what cuts the wire."""
    with LoopbackServer(tmp_path / "server") as server, FaultProxy(server.port) as proxy:
        root = str(tmp_path / "root")
        device = ssh_device(
            server, port=proxy.port, target=find_host_target(), root=root, python=sys.executable
        )
        yield device, proxy.__exit__


def prefix_that(folder: Path, number: int, command: str) -> list[str]:
    """Return a ``run_prefix`` that lets processes run, but runs a command in place of one run."""
    script = folder / "prefix.sh"
    count = shlex.quote(str(folder / "count"))
    script.write_text(
        f"""#!/bin/sh
case "$*" in *edgepack_harness.py\\ measure*)
  echo >> {count}
  [ "$(wc -l < {count})" -ne {number} ] || {{ {command}; }}
esac
exec "$@"
"""
    )
    script.chmod(0o755)
    return [str(script)]


def inventory(folder: Path, **devices: list[str]) -> None:
    """Write devices.yaml with devices that are this machine, each with its ``run_prefix``."""
    entries = {
        name: {
            "transport": "local",
            "target": find_host_target(),
            "root": str(folder / name),
            "python": sys.executable,
            "run_prefix": prefix,
        }
        for name, prefix in devices.items()
    }
    text = json.dumps({"schema_version": 1, "devices": entries})
    (folder / "devices.yaml").write_text(text)


@pytest.mark.slow(reason="makes several process runs")
def test_bench_when_the_connection_is_lost_keeps_the_runs_before(
    bundle: Path, over_wire: tuple[Device, Callable[[], None]]
) -> None:
    device, cut = over_wire
    kept: list[RunReport] = []
    progress = CallsAt("process run 2", cut)
    with pytest.raises(UnreachableError) as caught:
        bench(bundle, device, preset="short", progress=progress, on_unfinished=kept.append)
    (report,) = kept
    assert len(report.runs) == 2
    assert report.unfinished == caught.value.problem
    assert report.memory.kind == report.placement.kind == "not-measured"
    assert report.verdict.reasons[0] == f"it ended early: {report.unfinished}"


def test_bench_when_the_connection_is_lost_before_a_run_ended_keeps_nothing(
    bundle: Path, over_wire: tuple[Device, Callable[[], None]]
) -> None:
    device, cut = over_wire
    kept: list[RunReport] = []
    progress = CallsAt("select", cut)
    with pytest.raises(DeviceError, match="the connection was lost"):
        bench(bundle, device, preset="short", progress=progress, on_unfinished=kept.append)
    assert not kept


@pytest.mark.in_turns
@pytest.mark.slow(reason="makes several process runs")
@pytest.mark.parametrize(
    ("command", "code", "why"),
    [
        ("kill -9 $$", 9, "the harness failed with exit code 137"),
        ("kill -INT EDGEPACK; sleep 60", 130, "it was interrupted here"),
    ],
)
def test_bench_command_when_a_run_does_not_end_stores_and_shows_the_others(  # noqa: PLR0917
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    code: int,
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = command.replace("EDGEPACK", str(os.getpid()))
    inventory(tmp_path, board=prefix_that(tmp_path, 2, command))
    argv = ["bench", str(bundle), "--device", "board", "--preset", "short", "--json"]
    assert run(argv) == code
    store = ResultsStore()
    (report,) = store.load_all([row.id for row in store.rows()])
    assert json.loads(capsys.readouterr().out)["id"] == report.id
    assert len(report.runs) == 1
    assert report.unfinished.startswith(why)
    assert report.verdict.kind == "invalid"


def asked(bundle: Path, **changes: Any) -> CompareQuestion:
    rule = Rule(max_pairs=6)
    return CompareQuestion(bundle, base=bundle, preset=SHORT, rule=rule, **changes)


@pytest.mark.slow(reason="makes several process runs")
def test_compare_when_the_connection_is_lost_decides_nothing_there(
    bundle: Path, over_wire: tuple[Device, Callable[[], None]]
) -> None:
    device, cut = over_wire
    found = compare(asked(bundle), [device], progress=CallsAt("pair 2", cut))
    (on_device,) = found.devices
    assert on_device.pairs == 2
    assert found.outcome == on_device.outcome == "INCONCLUSIVE"
    assert {metric.outcome for metric in on_device.metrics} == {"INCONCLUSIVE"}
    assert on_device.unfinished.startswith("the connection was lost")
    assert on_device.reasons[0] == f"it ended early: {on_device.unfinished}"
    assert on_device.base.placement.kind == "not-measured"


@pytest.mark.slow(reason="makes 12 process runs")
def test_compare_when_a_decided_device_vanishes_before_its_placement_is_known_decides_nothing(
    bundle: Path, over_wire: tuple[Device, Callable[[], None]]
) -> None:
    device, cut = over_wire
    question = dataclasses.replace(asked(bundle), margins={"p50": 1e9})
    found = compare(question, [device], progress=CallsAt("pair 6", cut))
    (on_device,) = found.devices
    assert on_device.metrics[0].pass_p < 0.01
    assert on_device.outcome == on_device.metrics[0].outcome == "INCONCLUSIVE"


@pytest.mark.slow(reason="makes several process runs")
def test_compare_when_the_first_pair_is_not_whole_raises_what_ended_it(
    bundle: Path, tmp_path: Path
) -> None:
    prefix = prefix_that(tmp_path, 2, "exit 5")
    root = str(tmp_path / "root")
    entry = LocalEntry(transport="local", target=find_host_target(), root=root, run_prefix=prefix)
    with pytest.raises(Exception, match="exit code 5"):
        compare(asked(bundle), [Device("board", entry)])


@pytest.mark.slow(reason="what it shows is shown of compare above")
def test_noise_when_the_device_vanishes_is_not_given(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    inventory(tmp_path, board=prefix_that(tmp_path, 3, "exit 5"))
    argv = ["bench", str(bundle), "--device", "board", "--preset", "short", "--self-test"]
    assert run([*argv, "--json"]) == InconclusiveError.exit_code
    said = capsys.readouterr()
    assert not said.out
    assert "it ended early, after 1 pairs: the harness failed with exit code 5" in said.err


@pytest.mark.slow(reason="makes several process runs")
@pytest.mark.parametrize("others", [0, 1])
def test_compare_command_when_interrupted_shows_what_was_measured(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    others: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    interrupt = prefix_that(tmp_path, 3, f"kill -INT {os.getpid()}; sleep {0 if others else 60}")
    inventory(tmp_path, board=interrupt, **{f"other{n}": [] for n in range(others)})
    argv = ["compare", str(bundle), str(bundle), "--preset", "short", "--max-pairs", "40"]
    argv += ["--margin", "p50=0", "--junit", "compare.xml", "--json"]
    for name in ("board", *(f"other{n}" for n in range(others))):
        argv += ["--device", name]
    assert run(argv) == 130
    found = Comparison.model_validate_json(capsys.readouterr().out)
    board = found.devices[0]
    assert board.unfinished == "it was interrupted here"
    assert board.pairs >= 1
    assert found.outcome == "INCONCLUSIVE"
    assert len(found.devices) + len(found.not_compared) == 1 + others
    skipped = ElementTree.parse("compare.xml").findall(".//testcase[@name='usable']/skipped")
    said = "INCONCLUSIVE: it ended early: it was interrupted here"
    assert skipped[0].get("message", "").startswith(said)
