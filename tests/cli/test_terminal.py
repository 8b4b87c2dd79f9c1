"""What a terminal, a pipe or nobody at all does to the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.project.profile import load_profile
from edgepack.records.run import RunReport
from edgepack.results.store.store import ResultsStore

from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import write_tiny_bundle

EDGEPACK = [sys.executable, "-m", "edgepack"]


def rename_input(model: Path, name: str) -> Path:
    """Give a model's image input another name."""
    loaded = onnx.load(model)
    loaded.graph.input[0].name = name
    for node in loaded.graph.node:
        node.input[:] = [name if used == "image" else used for used in node.input]
    onnx.save(loaded, model)
    return model


@pytest.fixture
def smoke(tmp_path: Path) -> list[str]:
    """A short benchmark of a tiny bundle on a device that is this machine."""
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "edgepack"
    config.mkdir(parents=True)
    entry = f'{{transport: local, target: linux-x86-64, python: "{sys.executable}"}}'
    (config / "devices.yaml").write_text(f"schema_version: 1\ndevices:\n  here: {entry}\n")
    bundle = write_tiny_bundle(tmp_path / "bundle")
    return ["bench", str(bundle), "--device", "here", "--preset", "smoke"]


@pytest.mark.slow(reason="starts whole commands")
def test_bench_when_inconclusive_prints_and_stores_the_report_and_exits_with_11(smoke, capsys):
    assert run([*smoke, "--json"]) == 11
    streams = capsys.readouterr()
    report = RunReport.model_validate_json(streams.out)
    assert ResultsStore().load(report.id) == report
    assert "here: the measurement is INCONCLUSIVE: preset 'smoke' is too short" in streams.err
    assert "--device here --preset standard" in streams.err
    assert run(smoke) == 11
    stored = capsys.readouterr().out.rpartition("stored as ")[2].strip()
    assert [row.id for row in ResultsStore().rows()] == [report.id, stored]


@pytest.mark.slow(reason="starts whole commands")
@pytest.mark.parametrize("command", ["inspect", "build"])
def test_command_when_its_reader_has_gone_ends_quietly(tmp_path, command):
    model = tiny_models.conv_net(tmp_path / "net.onnx")
    reading, writing = os.pipe()
    os.close(reading)
    argv = [*EDGEPACK, command, str(model), *(["--target", "host"] if command == "build" else [])]
    done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    os.close(writing)
    assert done.returncode == 141
    assert b"Broken" not in done.stderr


@pytest.mark.slow(reason="starts whole commands")
def test_command_when_both_of_its_readers_have_gone_ends_with_141(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    argv = [*EDGEPACK, "inspect", str(tmp_path / "none.onnx")]
    done = subprocess.run(argv, stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == 141


def test_command_when_interrupted_says_so(monkeypatch, capsys):
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgepack.backends.listing.find_target_files", interrupt)
    assert run(["targets", "list"]) == 130
    assert capsys.readouterr().err == "interrupted; nothing half-written is left\n"


@pytest.mark.slow(reason="starts whole commands")
@pytest.mark.parametrize("closed", [False, True])
def test_device_add_when_nobody_can_be_asked_names_the_option(tmp_path, closed):
    with LoopbackServer(tmp_path / "board") as server:
        argv = [*EDGEPACK, "device", "add", "board", f"{server.user}@{server.host}"]
        argv += ["--port", str(server.port), "--key", str(server.client_key_path)]
        if closed:
            argv = ["sh", "-c", 'exec "$@" <&-', "sh", *argv]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert server.host_key_fingerprint in done.stderr
    assert "--fingerprint SHA256:" in done.stderr
    assert "interrupted" not in done.stderr


def test_inspect_when_a_name_holds_escape_sequences_shows_none(tmp_path, capsys):
    model = rename_input(tiny_models.conv_net(tmp_path / "net.onnx"), "im\x1b[31mage")
    assert run(["inspect", str(model)]) == 0
    text = capsys.readouterr().out
    assert "im\ufffd[31mage" in text
    assert "\x1b" not in text
    assert run(["inspect", str(tmp_path / "no\x1b[31mne.onnx")]) == 4
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.slow(reason="starts whole commands")
def test_inspect_when_stdout_is_ascii_escapes_the_names(tmp_path):
    model = rename_input(tiny_models.conv_net(tmp_path / "net.onnx"), "bild\u00e4")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [*EDGEPACK, "inspect", str(model)], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"bild\\xe4" in done.stdout


@pytest.mark.slow(reason="starts whole commands")
def test_build_when_the_terminal_is_narrow_shows_its_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    project = tiny_models.write_project(tmp_path)
    out = str(tmp_path / "dist")
    assert run(["build", "--project", str(project), "--target", "host", "--out", out]) == 0
    text = capsys.readouterr().out
    for variant in load_profile("host").variants:
        assert variant.id in text
    assert " 1 │" in text
