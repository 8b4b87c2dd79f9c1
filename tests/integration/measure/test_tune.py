"""``edgepack tune`` on this machine: with a harness that simulates, and once for real."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.builder.build import build
from edgepack.builder.inspect import inspect
from edgepack.bundle.reading import load_bundle
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.devices.harness import Harness
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.transports import connect
from edgepack.errors import (
    LimitError,
    RemoteCommandError,
    UnreachableError,
    UsageError,
)
from edgepack.measure.tune import searching
from edgepack.measure.tune.keeping import find_tunings_dir, load_tuning
from edgepack.measure.tune.searching import TuneQuestion
from edgepack.measure.tune.space import AFFINITIES, BLOCK_BASE, SPINNING, format_settings
from edgepack.measure.tune.tuning import plan_tuning, tune
from edgepack.project.limits import Limits
from edgepack.project.profile import find_host_target
from edgepack.records.presets import Preset
from edgepack.records.run import Selection
from edgepack.records.tuning import Confirmation, TuneReport

from tests.support.doubles.simulated_runs import FACTS, STATE, Simulated
from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import change_manifest, import_loader, write_tiny_bundle
from tests.support.servers.fault_proxy import FaultProxy
from tests.support.servers.loopback import ssh_device


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


def write_bundle(folder: Path) -> Path:
    bundle = write_tiny_bundle(folder)
    change_manifest(bundle, lambda manifest: manifest.update(target=find_host_target()))
    return bundle


@pytest.fixture
def device(tmp_path: Path) -> Device:
    root = str(tmp_path / "root")
    entry = LocalEntry(
        transport="local", target=find_host_target(), root=root, python=sys.executable
    )
    return Device("board", entry)


def best_is_bound(session: dict[str, Any], _: Preset) -> float:
    """Two bound threads are 20 % faster than all else, and int8 is twice as fast as fp32."""
    level = {"all": 1.0, "extended": 1.5, "basic": 2.0}[
        session.get("graph_optimization_level", "all")
    ]
    bound = 0.8 if AFFINITIES in session["config"] and SPINNING not in session["config"] else 1.0
    threads = 1.1 if session["intra_op_num_threads"] == 1 else 1.0
    threads *= 1.1 if BLOCK_BASE in session["config"] else 1.0
    return 5.0 * level * bound * threads / (2 if "int8" in session["variant"] else 1)


def settings_of(report: TuneReport) -> str:
    return format_settings(report.candidate(report.answer).settings)


def test_fastest_settings_when_confirmed_are_the_answer(
    bundle: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    simulated = Simulated(monkeypatch, best_is_bound)
    report = tune(TuneQuestion(bundle), device)
    answer = report.candidate(report.answer)
    assert answer.settings.variant == "cpu-int8-static"
    assert AFFINITIES in answer.settings.session.config
    assert report.confirmed
    assert isinstance(report.confirmation, Confirmation)
    assert report.candidate(report.confirmation.base).defaults
    p50 = report.confirmation.metrics[0]
    assert p50.name == "p50"
    assert 0.78 < p50.ratio < 0.82
    assert p50.high is not None
    assert p50.high < 1
    assert report.front[0] == report.answer
    assert (
        sum(len(one.runs) for one in report.candidates) + 2 * len(report.confirmation.base_runs)
        == simulated.runs
    )
    assert {one.settings.variant for one in report.candidates} == {"cpu-fp32", "cpu-int8-static"}
    assert sum(one.present for one in report.candidates) == 2


def test_tuning_when_it_ends_leaves_the_bundle_and_no_release_in_use(
    bundle: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    Simulated(monkeypatch, best_is_bound)
    tune(TuneQuestion(bundle), device)
    project = Path(device.entry.root) / "tiny"
    assert not (project / "current").exists()
    (release,) = (path for path in (project / "releases").iterdir() if path.is_dir())
    manifest = (bundle / "manifest.json").read_bytes()
    assert (release / "manifest.json").read_bytes() == manifest


def test_device_over_ssh_when_it_vanishes_leaves_what_was_measured(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    real = Harness.measure
    seen: list[TuneReport] = []
    with LoopbackServer(tmp_path / "server") as server, FaultProxy(server.port) as proxy:
        over_ssh = ssh_device(
            server,
            port=proxy.port,
            target=find_host_target(),
            root=str(tmp_path / "root"),
            python=sys.executable,
        )

        def ms(session: dict[str, Any], preset: Preset) -> float:
            if simulated.runs == 20:
                proxy.__exit__()
                real(simulated.harness, session["variant"], preset)
            return best_is_bound(session, preset)

        simulated = Simulated(monkeypatch, ms)
        with pytest.raises(UnreachableError):
            tune(TuneQuestion(bundle), over_ssh, on_unfinished=seen.append)
    (report,) = seen
    assert report.unfinished
    assert sum(len(one.runs) for one in report.candidates) == 19
    assert report.candidate(report.answer).defaults


def test_device_when_it_throttles_is_noted_and_an_emulated_one_confirms_nothing(
    bundle: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    hot = STATE.model_copy(update={"throttled_now": ["frequency capped"]})
    simulated = Simulated(monkeypatch, best_is_bound, after=hot)
    facts = FACTS.model_copy(update={"emulated": True})
    chosen = Selection(variant="cpu-fp32", unused=[], device=facts)
    monkeypatch.setattr(Harness, "select", lambda _, variant: chosen)
    report = tune(TuneQuestion(bundle, variants=["cpu-fp32"]), device)
    assert f"slowed down in {simulated.runs} process runs" in report.notes[-1]
    assert report.candidate(report.answer).defaults
    assert "emulated" in report.why
    assert not report.confirmed


def test_candidate_when_it_is_fast_and_wrong_or_crashes_is_out(
    bundle: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    def ms(session: dict[str, Any], _: Preset) -> float:
        if session["intra_op_num_threads"] == 2:
            raise RemoteCommandError("the harness failed with exit code 139", hint="see above")
        return 1.0 if session.get("graph_optimization_level") == "basic" else 5.0

    def sqnr_db(session: dict[str, Any], _: Preset) -> float:
        return 12.0 if session.get("graph_optimization_level") == "basic" else 120.0

    def lasts(session: dict[str, Any]) -> bool:
        return session.get("graph_optimization_level") != "extended"

    Simulated(monkeypatch, ms, sqnr_db, lasts=lasts)
    report = tune(TuneQuestion(bundle), device)
    problems = {
        format_settings(one.settings): one.problem for one in report.candidates if one.problem
    }
    assert problems["2 threads"] == "the harness failed with exit code 139"
    wrong = "its outputs are 12.0 dB near the golden ones, 40.0 dB are needed"
    assert problems["graph basic"] == wrong
    assert problems["graph extended"] == "fed its own state, h_out, y became NaN or infinite"
    assert not any(report.candidate(number).problem for number in report.front)
    assert report.candidate(report.answer).problem == ""


@pytest.mark.parametrize("most", [0, 20])
def test_defaults_when_they_fail_at_once_or_later_end_it(
    bundle: Path, device: Device, monkeypatch: pytest.MonkeyPatch, most: int
):
    failing = RemoteCommandError("the harness failed with exit code 137", hint="see above")

    def ms(session: dict[str, Any], _: Preset) -> float:
        if session["intra_op_num_threads"] == 0 and simulated.runs > most:
            raise failing
        return 5.0

    simulated = Simulated(monkeypatch, ms)
    with pytest.raises(RemoteCommandError, match="defaults work for no variant"):
        tune(TuneQuestion(bundle), device)


def test_answer_when_nothing_is_faster_or_only_seemed_so_is_the_defaults(
    bundle: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    Simulated(monkeypatch, lambda session, _: 5.0 + bool(session["config"]))
    question = TuneQuestion(bundle, variants=["cpu-fp32"])
    assert settings_of(tune(question, device)) == "defaults"

    def seemed(session: dict[str, Any], preset: Preset) -> float:
        in_pairs = preset.duration_s == question.confirm.duration_s
        return 6.0 if in_pairs and session["config"] else 5.0 - bool(session["config"])

    Simulated(monkeypatch, seemed)
    report = tune(question, device)
    assert isinstance(report.confirmation, Confirmation)
    assert report.confirmation.outcome == "FAIL"
    assert settings_of(report) == "defaults"
    assert "but slower than the defaults" in report.why


def test_budget_when_it_is_too_small_is_refused_and_says_what_is_needed(
    bundle: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]

    def ms(session: dict[str, Any], _: Preset) -> float:
        now[0] += 3.0
        return 5.0

    monkeypatch.setattr(searching, "monotonic", lambda: now[0])
    simulated = Simulated(monkeypatch, ms)
    with pytest.raises(UsageError, match="a budget of 20 s is too small") as caught:
        tune(TuneQuestion(bundle, budget_s=20), device)
    assert simulated.runs == 4
    needed_s = int(caught.value.hint.split()[2].removesuffix("s"))
    now[0], simulated.runs = 0.0, 0
    report = tune(TuneQuestion(bundle, budget_s=needed_s), device)
    assert simulated.runs * 3.0 <= needed_s
    assert isinstance(report.confirmation, NotMeasured | Confirmation)
    assert any("were not tried" in note for note in report.notes)


def test_variant_when_it_misses_a_limit_or_is_not_there_is_not_tuned(bundle: Path, device: Device):
    def lose(manifest: dict[str, Any]) -> None:
        for entry, drop in zip(manifest["variants"], (0.2, 0.0), strict=True):
            entry["accuracy"] = {
                "metric": "top1",
                "higher_is_better": True,
                "samples": 10,
                "fp32": 0.9,
                "value": 0.9 - drop,
                "drop": drop,
                "drop_interval": None,
                "agreement": None,
                "worst": {"output": "y", "cosine": 1.0, "sqnr_db": 50.0},
            }

    change_manifest(bundle, lose)
    plan = plan_tuning(TuneQuestion(bundle, limits=Limits(metric_drop=0.1)), device)
    assert [passed.variant for passed in plan.unused] == ["cpu-int8-static"]
    assert {settings.variant for settings in plan.candidates} == {"cpu-fp32"}
    only = TuneQuestion(bundle, limits=Limits(metric_drop=0.1), variants=["cpu-int8-static"])
    with pytest.raises(LimitError, match="top1 drops by"):
        plan_tuning(only, device)
    with pytest.raises(UsageError, match="no variant 'cpu-fp23'"):
        plan_tuning(TuneQuestion(bundle, variants=["cpu-fp23"]), device)


@pytest.mark.parametrize(
    ("end", "code", "words_of_it"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (UnreachableError("the device is gone", hint="switch it on"), 8, "the device is gone"),
    ],
)
def test_what_was_measured_when_it_ends_early_is_kept_and_the_defaults_are_the_answer(
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    end: BaseException,
    code: int,
    words_of_it: str,
):
    def ms(session: dict[str, Any], preset: Preset) -> float:
        if simulated.runs > 30:
            raise end
        return best_is_bound(session, preset)

    simulated = Simulated(monkeypatch, ms)
    assert run(["tune", str(bundle), "--device", "local"]) == code
    said = capsys.readouterr()
    assert "UNFINISHED" in said.out
    assert words_of_it in said.out
    assert "search 1/" in said.err
    (path,) = find_tunings_dir().iterdir()
    report = load_tuning(path)
    assert report.unfinished
    assert report.candidate(report.answer).defaults
    assert sum(len(one.runs) for one in report.candidates) == 30


@pytest.mark.slow(reason="makes some 30 process runs")
def test_command_when_it_writes_changes_the_project_file_which_a_build_then_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    project = tiny_models.write_project(tmp_path, "# the end", samples=False)
    monkeypatch.chdir(tmp_path)
    fp32 = build(project=project, targets=["host"], variants=["cpu-fp32"], out=Path("first"))
    first = fp32.bundles[0].bundle
    Simulated(monkeypatch, best_is_bound)
    argv = ["tune", str(first.path), "--device", "local"]
    assert run(argv) == 0
    told = capsys.readouterr().out
    assert "answer: cpu-fp32 (2 threads" in told
    assert "targets:" in told
    before = project.read_text()
    assert run([*argv, "--write", "--json"]) == 0
    report = TuneReport.model_validate_json(capsys.readouterr().out)
    text = project.read_text()
    assert text.startswith(before)
    assert f"# edgepack tune on local, {report.created[:10]}: " in text
    session = report.candidate(report.answer).settings.session
    assert session.intra_op_num_threads == 2
    built = build(project=project, targets=["host"], variants=["cpu-fp32"], out=Path("second"))
    (variant,) = built.bundles[0].bundle.manifest.variants
    assert variant.session == session
    assert built.bundles[0].bundle.digest != first.digest
    assert run([*argv, "--write"]) == 0
    assert "has these settings already" in capsys.readouterr().out
    assert project.read_text() == text


def test_command_when_nothing_is_confirmed_writes_nothing(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """The file keeps what an earlier search may have confirmed."""
    own = (
        "[{id: host, variants: [{backend: cpu, recipe: fp32, session: {intra_op_num_threads: 2}}]}]"
    )
    project = tiny_models.write_project(tmp_path, f"targets: {own}", samples=False)
    before = project.read_text().replace("name: net", "name: tiny")
    project.write_text(before)
    Simulated(monkeypatch, lambda *_: 5.0)
    argv = ["tune", str(bundle), "--device", "local", "--project", str(project), "--write"]
    assert run(argv) == 0
    assert "is unchanged: no settings for it were confirmed" in capsys.readouterr().out
    assert project.read_text() == before


def test_defaults_of_another_variant_when_they_are_the_fastest_are_compared_with_the_bundle(
    bundle: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    def ms(session: dict[str, Any], _: Preset) -> float:
        defaults = {"variant": session["variant"], "intra_op_num_threads": 0, "config": {}}
        slower = 2.0 if "int8" in session["variant"] else 1.0
        return 5.0 * slower * (1.0 if session == defaults else 1.2)

    Simulated(monkeypatch, ms)
    report = tune(TuneQuestion(bundle), device)
    assert report.confirmed
    assert isinstance(report.confirmation, Confirmation)
    base, answer = report.candidate(report.confirmation.base), report.candidate(report.answer)
    assert (base.settings.variant, base.present) == ("cpu-int8-static", True)
    assert (answer.settings.variant, answer.defaults) == ("cpu-fp32", True)
    assert "less than cpu-int8-static (" in report.why


def test_inspect_when_a_target_is_named_shows_the_variants_of_the_project(tmp_path: Path):
    own = "targets: [{id: host, variants: [{backend: cpu, recipe: fp32}]}]"
    project = tiny_models.write_project(tmp_path, own, samples=False)
    found = inspect(None, ["host"], project=project)
    assert [variant.variant for variant in found.variants] == ["cpu-fp32"]


def test_command_when_dry_lists_the_candidates_and_pushes_nothing(
    bundle: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["tune", str(bundle), "--device", "local", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "cpu-fp32: defaults\n" in told
    assert "cpu-fp32: 1 thread\n" in told
    assert not Path("~/.local/share/edgepack/tiny").expanduser().exists()
    assert run(["tune", str(bundle), "--device", "local", "--budget", "soon"]) == 2
    assert "write 90s, 10m or 1h" in capsys.readouterr().err
    assert run(["tune", str(bundle), "--device", "local", "--write"]) == 2


def test_loader_when_given_settings_uses_them_and_leaves_the_bundle(bundle: Path):
    loader = import_loader()
    before = {path: path.stat().st_mtime_ns for path in bundle.rglob("*")}
    session = {
        "intra_op_num_threads": 2,
        "graph_optimization_level": "basic",
        "config": {SPINNING: "0", AFFINITIES: "1"},
    }
    model = loader.load(bundle, "cpu-fp32", settings={"session": session})
    options = model.session.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    assert options.get_session_config_entry(SPINNING) == "0"
    assert options.get_session_config_entry(AFFINITIES) == "1"
    plain = loader.load(bundle, "cpu-fp32").session.get_session_options()
    assert plain.intra_op_num_threads == 1
    assert plain.graph_optimization_level.name == "ORT_ENABLE_ALL"
    assert {path: path.stat().st_mtime_ns for path in bundle.rglob("*")} == before


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"sesion": {}}, "no setting 'sesion'"),
        ({"session": {"threads": 1}}, "no setting 'threads'"),
        ({"session": {"config": {"session.intra_op.spinning": "0"}}}, "is it"),
        ({"session": {"config": {SPINNING: "no"}}}, "it takes 0 or 1"),
        ({"session": {"graph_optimization_level": "O3"}}, "it takes one of disabled, basic"),
        ({"providers": [{"name": "CUDAExecutionProvider"}]}, "not CUDAExecutionProvider"),
        (
            {"providers": [{"name": "CPUExecutionProvider", "options": {"x": "1"}}]},
            "has no options",
        ),
    ],
)
def test_loader_when_given_settings_that_are_none_refuses_them(
    bundle: Path, settings: dict[str, Any], why: str
):
    loader = import_loader()
    with pytest.raises(loader.LoadError, match=why):
        loader.load(bundle, "cpu-fp32", settings=settings)


def test_harness_when_given_settings_measures_with_them_and_serves_without(bundle: Path):
    here = Device("here", LocalEntry(transport="local", target=find_host_target()))
    settings = '{"session": {"config": {"session.intra_op_thread_affinities": "1;2"}}}'
    brief = Preset("brief", 1, 0.01, 5, warm_up_s=0.01, warm_up_cap_s=0)
    with connect(here) as transport:
        plain = Harness(transport, PurePosixPath(bundle), sys.executable, load_timeout_s=60)
        # Two affinities are refused where there are not three threads: the settings arrived.
        with pytest.raises(RemoteCommandError, match="Number of affinities"):
            replace(plain, session=settings).measure("cpu-fp32", brief)
        two = '{"session": {"intra_op_num_threads": 2}}'
        assert replace(plain, session=two).measure("cpu-fp32", brief).variant == "cpu-fp32"
        with pytest.raises(RemoteCommandError, match="select takes no --session"):
            replace(plain, session=two).select("cpu-fp32")


@pytest.mark.in_turns
@pytest.mark.slow(reason="makes some 30 process runs")
def test_tuning_for_real_answers_with_what_is_no_slower_than_the_defaults(
    bundle: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    every = searching.list_settings
    few = lambda *given, **named: every(*given, **named)[:4]  # noqa: E731
    monkeypatch.setattr(searching, "list_settings", few)
    monkeypatch.setattr(searching, "MOST_PAIRS", 6)
    monkeypatch.setattr(TuneQuestion, "confirm", TuneQuestion.search)
    report = tune(TuneQuestion(bundle, variants=["cpu-fp32"]), device)
    assert len(report.candidates) == 4
    assert all(one.runs for one in report.candidates)
    assert load_bundle(bundle).digest == report.manifest_sha256
    if not report.candidate(report.answer).defaults:
        assert report.confirmed
