"""``edgepack compare`` and ``bench --self-test`` on a real device: this machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from edgepack.base.progress import Silent
from edgepack.cli.main import run
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import BundleError, DeviceError, EdgepackError, UsageError
from edgepack.measure.compare import noise
from edgepack.measure.compare.comparing import CompareQuestion, compare
from edgepack.measure.compare.noise import measure_noise
from edgepack.project.profile import find_host_target
from edgepack.records import presets
from edgepack.records.comparison import Comparison
from edgepack.records.deciding import Rule
from edgepack.records.presets import Preset

from tests.support.reports.tiny_bundle import change_manifest, save_model, write_tiny_bundle

SHORT = Preset(
    "short",
    runs=6,
    duration_s=0.05,
    iterations=20,
    warm_up_s=0.02,
    window_s=0.01,
    warm_up_cap_s=0.5,
)
FEW = Rule(max_pairs=6)
CHANNELS = 16
SLOW = pytest.mark.slow(reason="makes 24 and 12 process runs")


def save_slow_model(path: Path, size: int) -> None:
    """Save a model that gives what :func:`save_model`'s gives, many times as slowly."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    save_model(path, size)
    model = onnx.load(path)
    model.graph.node[-1].output[0] = "plain"
    random = np.random.default_rng(1)
    pads = [2, 2, 2, 2]
    model.graph.node.extend(
        [
            helper.make_node("Conv", ["x", "w1"], ["h1"], pads=pads),
            helper.make_node("Conv", ["h1", "w2"], ["h2"], pads=pads),
            helper.make_node("ReduceMax", ["h2"], ["h3"], keepdims=1),
            helper.make_node("Mul", ["h3", "nothing"], ["h4"]),
            helper.make_node("Add", ["plain", "h4"], ["y"]),
        ]
    )
    weights = {
        "w1": random.standard_normal((CHANNELS, 3, 5, 5)),
        "w2": random.standard_normal((CHANNELS, CHANNELS, 5, 5)),
        "nothing": np.zeros(1),
    }
    for name, values in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    onnx.save(model, path)


def write_bundle(
    folder: Path, save: Callable[[Path, int], None] = save_model, **changes: Any
) -> Path:
    bundle = write_tiny_bundle(folder, size=64, save=save)
    change_manifest(bundle, lambda manifest: manifest.update(target=find_host_target(), **changes))
    return bundle


@pytest.fixture
def device(tmp_path: Path) -> Device:
    entry = LocalEntry(transport="local", target=find_host_target(), root=str(tmp_path / "root"))
    return Device("board", entry)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


def asked(candidate: Path, base: Path | None, **changes: Any) -> CompareQuestion:
    return CompareQuestion(candidate, base=base, **({"preset": SHORT, "rule": FEW} | changes))


def answers(found: Comparison) -> dict[str, str]:
    return {metric.name: metric.outcome for metric in found.devices[0].metrics}


@pytest.mark.slow(reason="makes 12 process runs")
def test_candidate_when_it_is_many_times_slower_fails(
    device: Device, bundle: Path, tmp_path: Path
) -> None:
    slow = write_bundle(tmp_path / "slow", save_slow_model)
    found = compare(asked(slow, bundle), [device])
    (on_device,) = found.devices
    assert answers(found)["p50"] == "FAIL"
    assert on_device.metrics[0].ratio > 2
    assert on_device.candidate.runs[0].golden_min_sqnr_db > 40
    assert any(reason.startswith("p50 is +") for reason in on_device.reasons)


@pytest.mark.slow(reason="makes 12 process runs")
def test_release_in_use_when_it_is_the_base_stays_in_use(
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(presets.PRESETS, "smoke", dataclasses.replace(SHORT, conclusive=False))
    other = write_bundle(tmp_path / "other", version="1.0.1")
    argv = ["compare", "current", str(other), "--device", "local", "--preset", "smoke"]
    assert run(argv) == 8
    assert "no release is in use there" in capsys.readouterr().err
    assert run(["push", str(bundle), "--device", "local", "--no-self-test"]) == 0
    files = ["--junit", "compare.xml", "--markdown", "compare.md"]
    capsys.readouterr()
    assert run([*argv, "--max-pairs", "6", *files, "--json"]) == 11
    (on_device,) = json.loads(capsys.readouterr().out)["devices"]
    assert on_device["outcome"] == "INCONCLUSIVE"
    assert "preset 'short' is too short to conclude anything" in on_device["reasons"]
    assert on_device["base"]["bundle"].startswith("tiny-1.0.0-")
    assert on_device["candidate"]["bundle"].startswith("tiny-1.0.1-")
    assert len(on_device["candidate"]["runs"]) == 6
    current = Path("~/.local/share/edgepack/tiny/current").expanduser().resolve()
    assert current.name == on_device["base"]["manifest_sha256"][:16]
    assert ElementTree.parse("compare.xml").getroot().tag == "testsuites"
    assert Path("compare.md").read_text().startswith("**edgepack compare: INCONCLUSIVE**")


@SLOW
def test_devices_when_there_are_two_are_compared_at_once(
    bundle: Path, tmp_path: Path, device: Device
) -> None:
    entry = device.entry.model_copy(update={"root": str(tmp_path / "second")})
    found = compare(asked(bundle, bundle), [device, Device("second", entry)])
    assert [each.device for each in found.devices] == ["board", "second"]
    assert {each.pairs for each in found.devices} == {6}


@pytest.mark.slow(reason="makes 12 process runs")
def test_device_when_it_cannot_be_used_is_missed_and_the_other_is_compared(
    bundle: Path, tmp_path: Path, device: Device
) -> None:
    gone = device.entry.model_copy(update={"python": str(tmp_path / "no-python")})
    found = compare(asked(bundle, bundle), [device, Device("gone", gone)])
    assert [each.device for each in found.devices] == ["board"]
    (missed,) = found.not_compared
    assert missed.device == "gone"
    assert missed.problem
    assert missed.hint
    assert found.outcome != "PASS"
    with pytest.raises(EdgepackError):
        compare(asked(bundle, bundle), [Device("gone", gone)])


def test_question_when_it_cannot_be_asked_changes_nothing(
    device: Device, bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="there is no metric 'mean'"):
        compare(asked(bundle, bundle, margins={"mean": 0.03}), [device])
    with pytest.raises(UsageError, match="no variant 'gpu'"):
        compare(asked(bundle, bundle, variant="gpu"), [device])
    foreign = write_bundle(tmp_path / "foreign")
    change_manifest(foreign, lambda manifest: manifest.update(target="raspberry-pi"))
    for pair in ((bundle, foreign), (foreign, bundle)):
        with pytest.raises(DeviceError, match="is for raspberry-pi"):
            compare(asked(*pair), [device])
    with pytest.raises(UsageError, match="'sustained' heats the device"):
        compare(asked(bundle, bundle, preset=presets.PRESETS["sustained"]), [device])
    (bundle / "models" / "cpu-fp32.onnx").write_bytes(b"altered")
    with pytest.raises(BundleError):
        compare(asked(bundle, bundle), [device])
    assert not (tmp_path / "root").exists()


@SLOW
def test_noise_when_a_bundle_is_measured_against_itself_is_that_of_all_pairs(
    device: Device, bundle: Path
) -> None:
    noise = measure_noise(asked(bundle, None), device, progress=Silent())
    assert noise.pairs == 6
    assert 0 < noise.pair_deviation < 2
    assert noise.smallest_slowdown > 0


def test_command_when_an_option_makes_no_sense_is_refused(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["compare", str(bundle), str(bundle), "--device", "local"]
    assert run([*argv, "--max-pairs", "7"]) == 2
    assert run([*argv, "--margin", "p50=much"]) == 2
    assert "write --margin p50=3" in capsys.readouterr().err
    assert run(["bench", str(bundle), "--device", "local", "--self-test", "--html", "x.html"]) == 2
    assert (
        "--self-test times a single stream of one variant, and makes no report"
        in capsys.readouterr().err
    )


def test_self_test_command_when_the_device_cannot_be_used_prints_no_document(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = {"transport": "local", "target": find_host_target(), "python": str(tmp_path / "none")}
    inventory = {"schema_version": 1, "devices": {"board": entry}}
    Path("devices.yaml").write_text(json.dumps(inventory))
    assert run(["bench", str(bundle), "--device", "board", "--self-test", "--json"]) != 0
    said = capsys.readouterr()
    assert not said.out
    assert "hint: " in said.err


@pytest.mark.slow(reason="makes 12 process runs")
def test_self_test_command_when_runs_may_not_be_used_prints_the_noise_and_why(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unsteady = dataclasses.replace(SHORT, warm_up_cap_s=0)
    monkeypatch.setitem(presets.PRESETS, "short", unsteady)
    measure_few = lambda question, *rest, **named: measure_noise(  # noqa: E731
        dataclasses.replace(question, rule=FEW), *rest, **named
    )
    monkeypatch.setattr(noise, "measure_noise", measure_few)
    argv = ["bench", str(bundle), "--device", "local", "--preset", "short", "--self-test"]
    assert run([*argv, "--json"]) == 11
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["pairs"] == 6
    assert "run 1 was not steady after 0 s of warm-up" in found["reasons"]
    assert "the runs must not be used" in said.err
