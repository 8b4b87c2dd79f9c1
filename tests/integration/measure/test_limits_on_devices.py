"""A project's limits on a device: judged before it is touched as far as possible, then measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from edgepack import api
from edgepack.cli.main import run
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import LimitError
from edgepack.measure.bench.run import bench
from edgepack.project.limits import Limits
from edgepack.project.profile import find_host_target

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

PROJECT = "schema_version: 1\nname: {name}\nmodel: model.onnx\n"


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle in the working directory, and an inventory with this machine as ``board``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "config/edgepack").mkdir(parents=True)
    entry = {"transport": "local", "target": find_host_target(), "python": sys.executable}
    entry["root"] = str(tmp_path / "root")
    devices = {"schema_version": 1, "devices": {"board": entry}}
    (tmp_path / "config/edgepack/devices.yaml").write_text(json.dumps(devices))
    made = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(made, lambda manifest: manifest.update(target=find_host_target()))
    return made


def name_of(bundle: Path) -> str:
    return str(json.loads((bundle / "manifest.json").read_text())["name"])


def write_project(bundle: Path, text: str, name: str = "") -> None:
    Path("edgepack.yaml").write_text(PROJECT.format(name=name or name_of(bundle)) + text)


def test_bench_when_no_variant_can_be_within_a_limit_says_so_before_it_touches_the_device(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(bundle, "devices: {board: {limits: {size_mb: 0.00001}}}\n")
    assert run(["bench", str(bundle), "--device", "board", "--preset", "smoke"]) == 10
    told = capsys.readouterr().err
    assert "not within the project's limits: cpu-int8-static: its model has" in told
    assert "MB, the limit is 1e-05 MB" in told
    assert not Path("root").exists()


def test_bench_when_the_limits_contradict_each_other_says_where_before_it_touches_the_device(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(bundle, "limits: {p99_ms: 3}\ndevices: {board: {limits: {p50_ms: 4}}}\n")
    assert run(["bench", str(bundle), "--device", "board"]) == 3
    told = capsys.readouterr().err
    assert "edgepack.yaml:5:19: " in told
    assert "p50_ms: 4 is above p99_ms: 3" in told
    assert not Path("root").exists()


def test_bench_when_a_project_that_is_not_the_bundles_is_named_is_refused(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(bundle, "limits: {size_mb: 0.00001}\n", name="other")
    argv = ["bench", str(bundle), "--device", "board", "--preset", "smoke"]
    assert run([*argv, "--project", "edgepack.yaml"]) == 2
    assert "belongs to the project 'other'" in capsys.readouterr().err


@pytest.mark.in_turns
@pytest.mark.slow(reason="makes a dozen process runs")
@pytest.mark.parametrize(
    ("limits", "code", "told"),
    [
        ("{p50_ms: 0.000001}", 10, "p50_ms is "),
        ("{p50_ms: 60000, predict_ms: 0.000001}", 10, "predict_ms is "),
        ("{p50_ms: 60000, predict_ms: 60000, first_ms: 600000, memory_mb: 100000}", 0, ""),
        ("{energy_mj: 1000000, p50_ms: 60000}", 11, "energy_mj is at most"),
    ],
)
def test_bench_ends_as_the_limits_are_met(
    bundle: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    limits: str,
    code: int,
    told: str,
) -> None:
    # Whether this machine is quiet enough to conclude anything is not what is tested here.
    monkeypatch.setattr(api, "require_valid", lambda *_: None, raising=False)
    write_project(bundle, f"limits: {limits}\n")
    assert run(["bench", str(bundle), "--device", "board", "--preset", "smoke"]) == code
    done = capsys.readouterr()
    assert told in done.err
    assert "limit p50_ms" in done.out
    assert "of which session.run" in done.out


def test_limits_of_another_project_here_are_not_the_bundles(bundle: Path) -> None:
    write_project(bundle, "limits: {size_mb: 0.00001}\n", name="other")
    entry = LocalEntry(
        transport="local", target=find_host_target(), root="/nowhere", python=sys.executable
    )
    with pytest.raises(LimitError, match="the limit is 1e-05 MB"):
        bench(bundle, Device("board", entry), limits=Limits(size_mb=0.00001))
    # The command finds none, and so goes on to the verdict.
    assert run(["bench", str(bundle), "--device", "board", "--preset", "smoke"]) == 11
