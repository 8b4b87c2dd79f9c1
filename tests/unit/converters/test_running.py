from __future__ import annotations

import os
import platform
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from edgepack.errors import ModelError, ToolError

from tests.support.doubles.converters import make_inside

ANSWER = '{"inputs": [], "outputs": [], "versions": {}}'
ATTACK = """
    import json, os, socket, subprocess

    def convert(source, folder, options):
        done = {{}}
        def attempt(name, act):
            try:
                act()
                done[name] = "done"
            except OSError as error:
                done[name] = type(error).__name__
        home = {home!r}
        attempt("write", lambda: open(os.path.join(home, "stolen"), "w").close())
        attempt("read", lambda: open(os.path.join(home, "secret")).read())
        attempt("list", lambda: os.listdir(home))
        attempt("connect", lambda: socket.create_connection(("127.0.0.1", {port}), 5))
        attempt("unix", lambda: socket.socket(socket.AF_UNIX))
        attempt("program", lambda: subprocess.run(
            ["/bin/sh", "-c", "echo x > " + home + "/by_shell"], check=False))
        attempt("other", lambda: os.kill({parent}, 0))
        attempt("environment", lambda: open("/proc/{parent}/environ").read())
        attempt("rights", lambda: os.chmod(os.path.join(home, "secret"), 0o777))
        attempt("times", lambda: os.utime(os.path.join(home, "secret")))
        attempt("cut", lambda: os.truncate(os.path.join(home, "secret"), 0))
        attempt("own", lambda: open(os.path.join(folder, "model.onnx"), "w").close())
        answer = {answer}
        answer["done"] = done
        return answer
"""
confined_here = pytest.mark.skipif(
    platform.system() != "Linux", reason="elsewhere Apple's sandbox confines the process"
)


def attack(tmp_path: Path, *, confined: bool) -> tuple[dict[str, str], Path]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "secret").write_text("key")
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = {"home": str(home), "port": server.getsockname()[1], "parent": os.getpid()}
        script = ATTACK.format(**words, answer=ANSWER)
        inside = make_inside(tmp_path, script, confined=confined)
        out = tmp_path / "out"
        out.mkdir()
        return inside.convert(out)["done"], home


@confined_here
def test_code_in_a_model_when_confined_reaches_no_files_no_network_and_no_process(tmp_path):
    done, home = attack(tmp_path, confined=True)
    assert done.pop("own") == "done"
    assert done.pop("program") == "done"  # it runs, as confined as what started it
    assert {name for name, found in done.items() if found != "PermissionError"} == set()
    assert [each.name for each in home.iterdir()] == ["secret"]


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "answer.json"])
def test_link_that_a_confined_process_leaves_is_not_followed(tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_text("key")
    script = f"""
        import os

        def convert(source, folder, options):
            for name in {{"model.onnx", {name!r}}}:
                path = os.path.join(folder, name)
                if name == {name!r}:
                    os.symlink({str(secret)!r}, path)
                else:
                    open(path, "w").close()
            return {ANSWER}
    """
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ToolError, match=r"cannot be taken|ended with exit code"):
        make_inside(tmp_path, script).convert(out)
    assert "key" not in {path.read_text() for path in out.iterdir()}


def test_code_in_a_model_when_trusted_could_have_reached_all_of_it(tmp_path):
    done, home = attack(tmp_path, confined=False)
    assert set(done.values()) == {"done"}, done
    assert {each.name for each in home.iterdir()} == {"secret", "stolen", "by_shell"}
    assert (home / "secret").read_text() == ""


def test_converter_when_it_runs_sees_no_variables_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for models")
    script = f"""
        import os

        def convert(source, folder, options):
            open(os.path.join(folder, "model.onnx"), "w").close()
            return {{**{ANSWER}, "environment": dict(os.environ)}}
    """
    found = make_inside(tmp_path, script).convert(tmp_path)["environment"]
    assert "not for models" not in found.values()
    assert found["ORT_DISABLE_TELEMETRY"] == "1"
    assert found["HOME"] != os.environ["HOME"]


def convert(tmp_path: Path, body: str, **settings: float) -> ToolError | ModelError:
    script = f"""
import os, sys, time

def convert(source, folder, options):
    print("the exporter's own words", file=sys.stderr)
    {body}
"""
    with pytest.raises((ToolError, ModelError)) as caught:
        make_inside(tmp_path, script, **settings).convert(tmp_path)
    return caught.value


def test_converter_when_it_hangs_is_stopped_with_its_last_lines(tmp_path):
    error = convert(tmp_path, "time.sleep(600)", most_s=2.0)
    assert "took longer than 2 s" in error.problem
    assert "the exporter's own words" in error.problem


def test_converter_when_it_hangs_takes_what_it_started_with_it(tmp_path):
    note = tmp_path / "pid"
    script = f"""
        import os, subprocess, time

        def convert(source, folder, options):
            child = subprocess.Popen(["/bin/sleep", "600"])
            with open(os.path.join({str(tmp_path)!r}, "pid"), "w") as file:
                file.write(str(child.pid))
            time.sleep(600)
    """
    with pytest.raises(ToolError):
        make_inside(tmp_path, script, confined=False, most_s=2.0).convert(tmp_path)
    assert ends(int(note.read_text()))


def ends(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False


def test_converter_when_it_fills_the_memory_ends_before_the_machine_does(tmp_path):
    error = convert(tmp_path, "bytearray(1 << 31)", most_bytes=1 << 29)
    assert "MemoryError" in error.problem


def test_converter_when_a_library_crashes_names_the_signal_and_the_file(tmp_path):
    error = convert(tmp_path, "os.abort()")
    assert error.where == "net.double"
    assert "SIGABRT" in error.problem
    assert "the exporter's own words" in error.problem


def test_converter_when_it_ends_with_an_odd_code_says_it(tmp_path):
    error = convert(tmp_path, "os._exit(255)")
    assert "ended with exit code 255" in error.problem


def test_converter_when_it_raises_shows_its_last_lines(tmp_path):
    error = convert(tmp_path, "raise KeyError('no such weight')")
    assert "exit code 1" in error.problem
    assert "no such weight" in error.problem


def test_converter_when_it_refuses_is_a_refusal_of_the_model(tmp_path):
    error = convert(
        tmp_path,
        "from edgepack_inside import Refused; raise Refused('it has a Fold', 'leave it out')",
    )
    assert isinstance(error, ModelError)
    assert (error.problem, error.hint) == ("it has a Fold", "leave it out")


def test_framework_when_run_gives_its_outputs_for_each_feed(tmp_path):
    script = """
        def load(source, signature, options):
            return lambda arrays: [arrays[0] + arrays[1], arrays[0].astype("int64")]
    """
    signature = {
        "inputs": [{"name": "x", "source": "a"}, {"name": "y", "source": "b"}],
        "outputs": [{"name": "sum", "source": "s"}, {"name": "whole", "source": "w"}],
    }
    feeds = [
        {"x": np.full((2, n), n, np.float32), "y": np.ones((2, n), np.float32)} for n in (1, 3)
    ]
    first, second = make_inside(tmp_path, script).run(signature, feeds)
    assert first["sum"].tolist() == [[2], [2]]
    assert second["sum"].shape == (2, 3)
    assert second["whole"].dtype == np.int64
