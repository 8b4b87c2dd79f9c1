"""``edgepack runtime``: a build on a device over real SSH, from a real git repository in small."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy import runtimes
from edgepack.devices.inventory import load_device
from edgepack.devices.provisioning import provision as provisioning
from edgepack.devices.provisioning import wheels as fetching
from edgepack.devices.provisioning.building import Survey, _find_lacking, count_jobs
from edgepack.devices.provisioning.store import RuntimeStore
from edgepack.project.profile import RuntimeBuild, find_host_target, find_target_file

from tests.integration.devices.test_provision import ONNXRUNTIME, PROVIDERS, write_wheel
from tests.support.servers.loopback import ssh_entry

# Makes the wheel that the repository has, after it has waited as long as a file says, and failed
# while there is another.
BUILD = """#!/bin/sh -e
echo "arguments: $*"
while [ -e "$SITE/wait" ]; do echo working; sleep 0.1; done
[ ! -e "$SITE/fail" ] || { echo "cc1plus: no space left on device" >&2; exit 3; }
mkdir -p build/dist
cp ./*.whl build/dist/
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A device ``board`` of a target ``own``, whose runtime is built from a repository here."""
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    found = fetching.find_bundled_pip()
    if not found:
        pytest.skip("this Python carries no pip wheel, which the index here lacks too")
    monkeypatch.chdir(tmp_path)
    index = tmp_path / "index"
    write_wheel(index, "numpy", "2.0.0")
    write_wheel(index, "onnxruntime", ONNXRUNTIME, PROVIDERS)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{index} {Path(found[0]).parent}")
    monkeypatch.setenv("SITE", str(tmp_path))
    monkeypatch.setattr(runtimes, "POLL_S", 0.2)
    monkeypatch.setattr(provisioning, "find_broken_providers", lambda *_: {})
    commit = make_repository(tmp_path / "repository")
    (tmp_path / "commit").write_text(commit)
    write_target(tmp_path, build=instructions(tmp_path, commit[:10]))
    with LoopbackServer(tmp_path / "server") as server:
        entry = ssh_entry(server) | {"target": "own", "root": str(tmp_path / "root")}
        inventory = {"schema_version": 1, "devices": {"board": entry, "other": entry}}
        (tmp_path / "devices.yaml").write_text(json.dumps(inventory))
        yield tmp_path
        if list((tmp_path / "root").glob("builds/*/lock")):
            run(["runtime", "build", "own", "--device", "board", "--stop"])


def make_repository(folder: Path) -> str:
    write_wheel(
        folder,
        "onnxruntime_own",
        ONNXRUNTIME,
        PROVIDERS.replace("['CPU", "['OwnExecutionProvider', 'CPU"),
        "onnxruntime",
    )
    (folder / "build.sh").write_text(BUILD)
    (folder / "build.sh").chmod(0o755)

    def git(*words: str) -> str:
        who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com"]
        argv = ["git", *who, "-C", str(folder), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v1"]):
        git(*words)
    return git("rev-parse", "HEAD")


def instructions(site: Path, commit: str, **changes: object) -> dict[str, Any]:
    return {
        "source": f"file://{site}/repository",
        "ref": "v1",
        "commit": commit,
        "arguments": ["--config=Release", "a b"],
        "wheel": "build/dist/*.whl",
        "packages": [],
        "pip": ["numpy"],
        "free_gb": 0.001,
        "memory_gb_per_job": 0.001,
        **changes,
    }


def write_target(site: Path, **runtime: object) -> None:
    profile = yaml.safe_load(find_target_file(find_host_target()).read_text(encoding="utf-8"))
    profile["id"] = "own"
    profile["runtime"] |= runtime
    (site / "targets").mkdir(exist_ok=True)
    # As JSON, whose texts are quoted: a commit may look like a number (12e345).
    (site / "targets" / "own.yaml").write_text(json.dumps(profile))


def look(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["runtime", "build", "own", "--device", "board", "--look", "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.in_turns
@pytest.mark.slow(reason="makes virtual environments")
def test_what_is_built_on_one_board_provisions_the_others(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["runtime", "build", "own", "--device", "board", "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)
    about = kept["about"]
    assert (about["ref"], about["arguments"]) == ("v1", "--config=Release 'a b'")
    assert about["commit"] == (site / "commit").read_text()
    assert about["providers"] == "CPUExecutionProvider"
    assert not list((site / "root").glob("builds/*"))
    assert run(["device", "provision", "other", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["providers"] == ["OwnExecutionProvider", "CPUExecutionProvider"]
    assert (
        made["origin"]
        == f"onnxruntime-own {ONNXRUNTIME} of the runtime store ({kept['sha256'][:12]})"
    )
    assert run(["device", "wheels", "other", "--to", "house"]) == 0
    capsys.readouterr()
    assert list((site / "house").glob("onnxruntime_own-*.whl"))
    # From a wheelhouse on a machine without the store, though another onnxruntime is in there.
    write_wheel(site / "house", "onnxruntime", ONNXRUNTIME, PROVIDERS)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_DATA_HOME", str(site / "elsewhere"))
        assert run(["device", "provision", "other", "--wheelhouse", "house", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["providers"] == [
        "OwnExecutionProvider",
        "CPUExecutionProvider",
    ]
    [wheel] = RuntimeStore().folder.glob("*/*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"x")
    assert run(["device", "provision", "other"]) == 7
    assert "has changed since it was kept" in capsys.readouterr().err


@pytest.mark.in_turns
@pytest.mark.slow(reason="makes virtual environments")
def test_build_goes_on_without_us_and_after_it_was_killed(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "wait").touch()
    assert run(["runtime", "build", "own", "--device", "board", "--detach"]) == 0
    assert "it runs" in capsys.readouterr().out
    wait_until(lambda: "working" in look(capsys)["log"])
    assert run(["runtime", "build", "own", "--device", "board", "--stop"]) == 0
    state = look(capsys)
    assert (state["runs"], state["exit_code"]) == (False, None)
    assert state["done"] == ["00-tools", "01-source"]
    # As a reboot leaves it, too; what is done is not done again.
    marker = next(site.glob("root/builds/*/source")) / "kept"
    marker.touch()
    (site / "wait").unlink()
    assert run(["runtime", "build", "own", "--device", "board", "--detach"]) == 0
    wait_until(lambda: look(capsys)["exit_code"] == 0)
    assert marker.exists()
    assert run(["runtime", "build", "own", "--device", "board"]) == 0
    assert f"kept onnxruntime_own-{ONNXRUNTIME}-py3-none-any.whl as" in capsys.readouterr().out


@pytest.mark.in_turns
@pytest.mark.slow(reason="makes virtual environments")
def test_step_that_fails_is_named_with_its_words_and_goes_on_once_mended(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "fail").touch()
    assert run(["runtime", "build", "own", "--device", "board"]) == 9
    said = capsys.readouterr().err
    assert "the step '02-build' of the build failed with exit code 3" in said
    assert "| cc1plus: no space left on device" in said
    assert RuntimeStore().list_all().runtimes == []
    (site / "fail").unlink()
    assert run(["runtime", "build", "own", "--device", "board"]) == 0


@pytest.mark.in_turns
@pytest.mark.slow(reason="makes virtual environments")
@pytest.mark.parametrize("fault", ["does not work", "is not there"])
def test_provider_that_is_missing_on_the_board_is_not_kept_and_the_old_environment_stays(
    site: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    assert run(["device", "provision", "board"]) == 0
    before = (site / "root" / "venv").readlink()
    if fault == "does not work":
        why = "no kernel image is available for execution on the device"
        broken = {"CPUExecutionProvider": why}
        monkeypatch.setattr(provisioning, "find_broken_providers", lambda *_: broken)
    else:
        path = site / "targets" / "own.yaml"
        profile = yaml.safe_load(path.read_text())
        cuda = {"id": "cuda-fp16", "backend": "cuda", "recipe": "fp16", "placement": 0.9}
        providers = [{"name": "CUDAExecutionProvider"}, {"name": "CPUExecutionProvider"}]
        profile["variants"].insert(0, cuda | {"providers": providers})
        path.write_text(json.dumps(profile))
        why = "CUDAExecutionProvider: it is not in the runtime"
    assert run(["runtime", "build", "own", "--device", "board"]) == 9
    assert why in capsys.readouterr().err
    assert RuntimeStore().list_all().runtimes == []
    assert (site / "root" / "venv").readlink() == before
    assert run(["runtime", "build", "own", "--device", "board", "--remove"]) == 0
    assert not list((site / "root").glob("builds/*"))


@pytest.mark.slow(reason="makes virtual environments")
def test_follower_of_what_another_takes_away_hears_that(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "wait").touch()
    assert run(["runtime", "build", "own", "--device", "board", "--detach"]) == 0
    other = threading.Timer(1, runtimes.stop_build, [load_device("board")], {"remove": True})
    other.start()
    assert run(["runtime", "build", "own", "--device", "board"]) == 9
    other.join()
    assert "has been taken away meanwhile" in capsys.readouterr().err


def test_build_that_has_begun_needs_no_further_disk(site: Path) -> None:
    survey = Survey(
        cores=1,
        memory_bytes=10**12,
        swap_bytes=0,
        free_bytes=0,
        missing_paths=[],
        missing_packages=[],
    )
    build = RuntimeBuild(**instructions(site, "0" * 40))
    assert list(_find_lacking(survey, build, has_begun=True)) == []
    assert len(list(_find_lacking(survey, build, has_begun=False))) == 1


def test_board_that_lacks_something_hears_all_of_it_before_anything_begins(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        "packages": ["no-such-package"],
        "paths": ["/no/such/nvcc"],
        "about_paths": "it is part of JetPack",
        "free_gb": 1e6,
        "memory_gb_per_job": 1e5,
    }
    write_target(site, build=instructions(site, "0" * 40, **changes))
    assert run(["runtime", "build", "own", "--device", "board"]) == 8
    said = capsys.readouterr().err
    for problem in (
        "as root there: apt-get install -y no-such-package",
        "there is no /no/such/nvcc: it is part of JetPack",
        "GB are free where 'root' of devices.yaml lies, 1e+06 needed",
        "one compiler needs 100000",
    ):
        assert problem in said
    assert not (site / "root").exists()


def test_source_of_another_commit_is_not_built(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_target(site, build=instructions(site, "0" * 40))
    assert run(["runtime", "build", "own", "--device", "board"]) == 9
    said = capsys.readouterr().err
    assert "the step '01-source' of the build failed with exit code 1" in said
    assert f"not {'0' * 40}" in said


def test_target_without_instructions_or_of_another_device_is_refused(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["runtime", "build", "jetson", "--device", "board"]) == 2
    assert "device 'board' is of target 'own', not 'jetson'" in capsys.readouterr().err
    write_target(site)
    assert run(["runtime", "build", "own", "--device", "board"]) == 2
    assert "has no instructions to build onnxruntime" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("memory_gb", "swap_gb", "jobs"), [(6, 0, 2), (6, 4, 2), (2, 1, 1), (64, 0, 8), (7, 4, 3)]
)
def test_jobs_are_as_many_as_memory_and_half_the_swap_hold(
    memory_gb: int, swap_gb: int, jobs: int
) -> None:
    survey = Survey(
        cores=8,
        memory_bytes=memory_gb * 10**9,
        swap_bytes=swap_gb * 10**9,
        free_bytes=0,
        missing_paths=[],
        missing_packages=[],
    )
    changes = {"memory_gb_per_job": 3.0}
    assert count_jobs(survey, RuntimeBuild(**instructions(Path(), "0" * 40, **changes))) == jobs
