"""Ctrl-C in the middle of a build, as a terminal sends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.nets import tiny_models
from tests.support.slow_cases import slow_after

SLOW_SAMPLES = """
import pathlib, time
import numpy as np

def samples():
    pathlib.Path("started").touch()
    while True:
        time.sleep(0.05)
        yield {"image": np.zeros((1, 3, 8, 8), np.float32)}
"""


def start_build(folder: Path, *before: str) -> subprocess.Popen:
    tiny_models.conv_net(folder / "net.onnx")
    (folder / "slow.py").write_text(SLOW_SAMPLES)
    (folder / "edgepack.yaml").write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\ntargets: [host]\n"
        "samples: {calibration: {python: 'slow:samples'}}\n"
    )
    return subprocess.Popen(
        [*before, sys.executable, "-m", "edgepack", "build"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "EDGEPACK_TEST_MARK": str(folder)},
        start_new_session=True,
    )


def marked_processes(folder: Path) -> list[int]:
    """Processes that inherited this test's environment and still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"EDGEPACK_TEST_MARK={folder}".encode() in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def wait_until(condition, what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("number", "code"),
    slow_after(1, [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]),
)
def test_build_when_interrupted_leaves_no_process_and_nothing_half_written(
    tmp_path, own_home, number, code
):
    # Under nohup SIGHUP is ignored, also by what it starts.
    child = start_build(tmp_path, "env", "--default-signal=HUP")
    wait_until((tmp_path / "started").exists, "the build never started its samples")
    os.kill(child.pid, number)
    _, said = child.communicate(timeout=30)
    assert child.returncode == code
    assert b"Traceback" not in said
    wait_until(lambda: not marked_processes(tmp_path), f"left: {marked_processes(tmp_path)}", 10)
    assert not (tmp_path / "dist").exists()
    assert not [p for p in (own_home / ".cache").rglob("*") if p.name.startswith(".")]


@pytest.mark.slow(reason="builds in a process of its own")
def test_build_when_the_terminal_is_gone_goes_on_under_nohup(tmp_path):
    child = start_build(tmp_path, "nohup")
    wait_until((tmp_path / "started").exists, "the build never started its samples")
    os.kill(child.pid, signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1)
    child.terminate()
    child.communicate(timeout=30)
    assert child.returncode == 143


@pytest.mark.slow(reason="builds in a process of its own")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_build_when_killed_outright_leaves_no_process(tmp_path):
    child = start_build(tmp_path)
    wait_until((tmp_path / "started").exists, "the build never started its samples")
    child.kill()
    child.communicate(timeout=30)
    wait_until(lambda: not marked_processes(tmp_path), f"left: {marked_processes(tmp_path)}", 15)


@pytest.mark.slow(reason="builds in a process of its own")
def test_library_when_building_writes_nothing_of_onnxruntimes_into_the_cache(tmp_path, own_home):
    project = tiny_models.write_project(tmp_path)
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    for name in ("TF_BUILD", "GITHUB_ACTIONS", "GITLAB_CI", "JENKINS_URL", "CI"):
        environment.pop(name, None)
    argv = [sys.executable, "-m", "edgepack", "build", "--project", str(project)]
    done = subprocess.run(
        [*argv, "--target", "host", "--out", str(tmp_path / "dist")],
        env=environment, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folders = {path.name for path in (own_home / ".cache").iterdir()}
    assert folders == {"edgepack"}
    assert np.load(tmp_path / "cal.npz")["image"].shape[0] == 24
