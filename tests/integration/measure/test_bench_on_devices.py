"""The whole measurement: push, harness and report, on this machine and over real SSH."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.base.progress import Lines
from edgepack.demo.server import LoopbackServer
from edgepack.devices.inventory import Device, LocalEntry, SshEntry
from edgepack.errors import BundleError, DeviceError, RemoteCommandError, UsageError
from edgepack.measure.bench.run import bench
from edgepack.records.run import Inconclusive, RunReport
from edgepack.results.store.store import ResultsStore

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

TARGET = "linux-x86-64"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


@pytest.fixture
def here(tmp_path: Path) -> Device:
    entry = LocalEntry(
        transport="local", target=TARGET, root=str(tmp_path / "root"), python=sys.executable
    )
    return Device("here", entry)


@pytest.fixture
def over_ssh(tmp_path: Path) -> Iterator[Device]:
    with LoopbackServer(tmp_path / "server") as server:
        entry = SshEntry(
            transport="ssh",
            host=server.host,
            port=server.port,
            user=server.user,
            key=str(server.client_key_path),
            host_key=server.host_key_fingerprint,
            ssh_config="/dev/null",
            python=sys.executable,
            root=str(tmp_path / "root"),
            target=TARGET,
        )
        yield Device("board", entry)


def check_smoke(report: RunReport, device: str) -> None:
    assert report.device == device
    assert report.bundle == f"tiny-1.0.0-{TARGET}"
    assert [len(run.latencies_ns) >= 20 for run in report.runs] == [True, True]
    assert report.placement.compute_share("CPUExecutionProvider") == 1.0
    assert len(report.canary.medians_ns) == 2
    assert isinstance(report.verdict, Inconclusive)


@pytest.mark.slow(reason="measures a whole bundle")
def test_bench_makes_a_report_when_the_device_is_this_machine(
    bundle: Path, here: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = bench(bundle, here, preset="smoke", progress=Lines())
    check_smoke(report, "here")
    assert report.variant_requested == "first that works"
    assert report.variant_used == "cpu-int8-static"
    said = capsys.readouterr().err.splitlines()
    assert "bench on here 3/7  cpu-int8-static: latency, process run 2 of 2" in said
    assert said[0].startswith("here: sent ")
    assert not list((tmp_path / "root").rglob("current"))
    ResultsStore().save(report)
    assert ResultsStore().load(report.id) == report


def test_bench_over_ssh_makes_a_report_of_the_variant_that_is_asked_for(
    bundle: Path, over_ssh: Device
) -> None:
    report = bench(bundle, over_ssh, preset="smoke", variant="cpu-fp32")
    check_smoke(report, "board")
    assert (report.variant_requested, report.variant_used) == ("cpu-fp32", "cpu-fp32")


def test_bench_refuses_a_variant_that_the_bundle_does_not_have(bundle: Path, here: Device) -> None:
    with pytest.raises(UsageError, match="cpu-fp32"):
        bench(bundle, here, preset="smoke", variant="cpu-fp23")


def test_bench_refuses_an_altered_bundle(bundle: Path, here: Device) -> None:
    (bundle / "models/cpu-fp32.onnx").write_bytes(b"something else")
    with pytest.raises(BundleError, match=r"models/cpu-fp32\.onnx"):
        bench(bundle, here, preset="smoke")


def test_bench_refuses_a_bundle_for_another_target(bundle: Path, here: Device) -> None:
    change_manifest(bundle, lambda manifest: manifest.update(target="raspberry-pi"))
    with pytest.raises(DeviceError, match="is for raspberry-pi"):
        bench(bundle, here, preset="smoke")
    assert not Path(here.entry.root).exists()


def test_bench_fails_with_the_reasons_when_no_variant_works(bundle: Path, here: Device) -> None:
    def change(manifest: dict) -> None:  # type: ignore[type-arg]
        for variant in manifest["variants"]:
            variant["requires"]["cpu"] = ["no_such_flag"]

    change_manifest(bundle, change)
    with pytest.raises(RemoteCommandError, match="this CPU lacks no_such_flag"):
        bench(bundle, here, preset="smoke")


def test_bench_says_how_to_install_the_runtime_when_it_is_missing(
    bundle: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -IS "$@"\n')
    bare.chmod(0o755)
    entry = LocalEntry(
        transport="local", target=TARGET, root=str(tmp_path / "root"), python=str(bare)
    )
    with pytest.raises(DeviceError, match=r"onnxruntime|numpy"):
        bench(bundle, Device("bare", entry), preset="smoke")
