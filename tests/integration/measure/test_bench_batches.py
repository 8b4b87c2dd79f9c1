"""Batches on this machine, by the command: the best one, joined samples, and wrong outputs."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from edgepack.cli.main import run
from edgepack.project.profile import find_host_target
from edgepack.records.run import RunReport

from tests.integration.ondevice.test_harness_modes import save_mixing
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Return a function that measures a bundle here: exit code, report, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    here = {"transport": "local", "target": find_host_target(), "python": sys.executable}
    here["root"] = str(tmp_path / "root")
    (tmp_path / "devices.yaml").write_text(
        json.dumps({"schema_version": 1, "devices": {"here": here}})
    )

    def measure(bundle: Path, *options: str) -> tuple[int, RunReport | None, str]:
        change_manifest(bundle, lambda manifest: manifest.update(target=find_host_target()))
        argv = ["bench", str(bundle), "--device", "here", "--preset", "smoke"]
        argv += [
            "--results",
            f"sqlite:///{tmp_path}/results.sqlite",
            "--variant",
            "cpu-fp32",
            "--json",
        ]
        code = run([*argv, *options])
        streams = capsys.readouterr()
        report = RunReport.model_validate_json(streams.out) if streams.out else None
        return code, report, streams.err

    return measure


@pytest.mark.slow(reason="measures a whole bundle")
def test_best_batch_ends_a_sweep_and_its_outputs_were_checked(bench: Any, tmp_path: Path) -> None:
    options = ["--batch", "1", "--batch", "4", "--latency-bound-ms", "500"]
    code, report, _ = bench(write_tiny_bundle(tmp_path / "bundle"), *options)
    assert code == 11  # smoke is never VALID
    assert report.verdict.kind == "inconclusive"
    assert [point.checked.problem for point in report.sweep] == ["", ""]
    assert [point.checked.how for point in report.sweep] == [
        "golden outputs",
        "golden outputs, for each sample of the batch",
    ]
    rates = {
        point.batch: point.batch / sorted(point.latencies_ns)[len(point.latencies_ns) // 2] * 1e9
        for point in report.sweep
    }
    best = max(rates, key=lambda batch: rates[batch])
    assert (report.best_batch.batch, report.best_batch.is_within) == (best, True)
    assert report.best_batch.samples_per_s == pytest.approx(rates[best], rel=0.05)


def test_wrong_outputs_of_a_batch_make_the_measurement_invalid(bench: Any, tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle", save=partial(save_mixing, mix="mean"))
    options = ["--batch", "1", "--batch", "4", "--latency-bound-ms", "500"]
    code, report, said = bench(bundle, *options)
    assert code == 11
    assert report.verdict.cause == "outputs"
    (reason,) = report.verdict.reasons
    assert reason.startswith("x=4x3x8x8: outputs for sample 1 of 4 in the batch are")
    alone, batch = report.sweep
    assert alone.latencies_ns
    assert (batch.latencies_ns, batch.is_wrong) == ([], True)
    assert report.best_batch.batch == 1
    assert "use it one by one, in its own sizes" in said


@pytest.mark.in_turns
@pytest.mark.slow(reason="measures whole bundles")
@pytest.mark.parametrize(
    "options",
    [
        ["--scenario", "offline", "--max-batch", "4"],
        ["--scenario", "server", "--qps", "2000", "--latency-bound-ms", "500", "--max-batch", "4"],
    ],
    ids=["offline", "server"],
)
def test_joined_samples_are_measured_and_their_outputs_checked(
    bench: Any, tmp_path: Path, options: list[str]
) -> None:
    code, report, _ = bench(write_tiny_bundle(tmp_path / "right"), *options)
    assert code == 11
    assert report.scenario.max_batch == 4
    assert all(each.joined.min_sqnr_db > 100 for each in report.runs)
    assert all(each.joined.batches <= each.inferences for each in report.runs)
    assert report.verdict.kind == "inconclusive"
    mixing = write_tiny_bundle(tmp_path / "mixing", save=partial(save_mixing, mix="reverse"))
    code, report, said = bench(mixing, *options)
    assert code == 11
    assert report.verdict.cause == "outputs"
    assert "in batches, outputs are" in report.verdict.reasons[0]
    assert "one by one" in said


def test_joined_samples_of_a_fixed_batch_are_refused_before_the_device_is_asked(
    bench: Any, tmp_path: Path
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")

    def fix(manifest: dict[str, Any]) -> None:
        manifest["inputs"][0]["shape"][0] = 1

    change_manifest(bundle, fix)
    code, report, said = bench(bundle, "--scenario", "offline", "--max-batch", "4")
    assert (code, report) == (2, None)
    assert "the input 'x' has the fixed shape [1, 3, 8, 8]" in said
    assert not (tmp_path / "root").exists()


def test_bound_that_bounds_nothing_is_refused(bench: Any, tmp_path: Path) -> None:
    code, report, said = bench(write_tiny_bundle(tmp_path / "bundle"), "--latency-bound-ms", "50")
    assert (code, report) == (2, None)
    assert "--latency-bound-ms belongs to the scenario server" in said
    assert "--batch" in said
