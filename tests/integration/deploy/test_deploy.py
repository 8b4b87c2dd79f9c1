"""A release comes into use if it works on the device, and is taken back if it does not."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.progress import Silent
from edgepack.deploy import audit
from edgepack.deploy.push import push, rollback
from edgepack.deploy.verify import verify_device
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import BusyError, RemoteCommandError, TooSlowError

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle


def device(root: Path, **entry: Any) -> Device:
    settings = {"transport": "local", "target": "linux-x86-64", "python": sys.executable, **entry}
    return Device("here", LocalEntry.model_validate({**settings, "root": str(root)}))


@pytest.fixture(autouse=True)
def own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return version_of(write_tiny_bundle(tmp_path / "bundle"), "1.0.0")


def version_of(bundle: Path, version: str) -> Path:
    change_manifest(bundle, lambda manifest: manifest.update(version=version))
    return bundle


def current(root: Path) -> str:
    return (root / "tiny" / "current").readlink().name


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def append(bundle: Path, name: str, code: str) -> None:
    """Put code at the end of a program in a bundle, and its hash into the manifest."""
    path = bundle / name
    path.write_text(path.read_text() + code)

    def rehash(manifest: dict[str, Any]) -> None:
        entry = next(entry for entry in manifest["files"] if entry["path"] == name)
        entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        entry["size_bytes"] = path.stat().st_size

    change_manifest(bundle, rehash)


def keeps_engines(manifest: dict[str, Any]) -> None:
    """Have onnxruntime write a file into the first variant's cache, as it would an engine."""
    config = manifest["variants"][0]["session"]["config"]
    config["session.collect_node_memory_stats_to_file"] = "{cache}/engine"


def cached(root: Path) -> list[Path]:
    return [path for path in (root / "tiny" / "cache").rglob("*") if path.is_file()]


class Told(Silent):
    def __init__(self) -> None:
        self.statuses: list[str] = []

    def show_status(self, text: str) -> None:
        self.statuses.append(text)


def running(word: str) -> list[str]:
    """Return the command lines of all processes that have a word in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:  # it has ended
            continue
        found += [line] if word in line else []
    return found


def actions() -> list[tuple[str, str]]:
    return [(one.action, one.result) for one in audit.read_audit_log().records]


def test_release_that_works_becomes_current(tmp_path: Path, bundle: Path) -> None:
    root = tmp_path / "root"
    first = push(bundle, device(root))
    assert (first.variant, current(root)) == ("cpu-int8-static", first.release)
    again = push(bundle, device(root))
    assert (again.variant, again.already_there) == (None, True)


def write_python(path: Path, root: Path, first: str, script: str) -> str:
    """Write a Python that first does something to all releases but the first, as ``$one``."""
    path.write_text(
        f"""#!/bin/sh
case "$*" in *edgepack_harness*)
  cd {root}/tiny/releases && for one in *; do [ "$one" = {first} ] || {script}; done
esac
exec {sys.executable} "$@"
"""
    )
    path.chmod(0o755)
    return str(path)


def test_release_that_others_remove_before_it_is_tried_is_to_be_pushed_again(
    tmp_path: Path, bundle: Path
) -> None:
    root = tmp_path / "root"
    first = push(bundle, device(root)).release
    python = write_python(tmp_path / "python", root, first, 'rm -r "$one"')
    with pytest.raises(BusyError, match="is not here any more") as caught:
        push(version_of(bundle, "2.0.0"), device(root, python=python))
    assert caught.value.transient
    assert current(root) == first


def test_release_that_others_make_current_while_it_is_tried_is_their_switch(
    tmp_path: Path, bundle: Path
) -> None:
    root = tmp_path / "root"
    first = push(bundle, device(root)).release
    python = write_python(tmp_path / "python", root, first, 'ln -sfn "releases/$one" ../current')
    second = push(version_of(bundle, "2.0.0"), device(root, python=python, health=["false"]))
    assert second.release == second.switched_from == current(root)
    assert [action for action, _ in actions()].count("switch") == 1


@pytest.mark.slow(reason="takes seconds")
def test_release_whose_goldens_do_not_hold_never_becomes_current(
    tmp_path: Path, bundle: Path
) -> None:
    root = tmp_path / "root"
    first = push(bundle, device(root))
    broken = version_of(bundle, "2.0.0")
    outputs = sorted((broken / "golden").glob("*-y.bin"))
    for path in outputs:
        path.write_bytes(bytes(path.stat().st_size))
    digests = {
        path.relative_to(broken).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in outputs
    }

    def rehash(manifest: dict[str, Any]) -> None:
        for entry in manifest["files"]:
            entry["sha256"] = digests.get(entry["path"], entry["sha256"])

    change_manifest(broken, rehash)
    with pytest.raises(RemoteCommandError, match="loading the bundle failed"):
        push(broken, device(root))
    assert current(root) == first.release
    untried = push(broken, device(root), self_test=False)
    assert (untried.variant, current(root)) == (None, untried.release)


@pytest.mark.slow(reason="waits for deadlines")
@pytest.mark.parametrize("hook", ["after_switch", "health"])
@pytest.mark.parametrize("script", ["exit 3", "sleep 60"])
def test_release_that_fails_in_use_is_taken_back(
    tmp_path: Path, bundle: Path, hook: str, script: str
) -> None:
    root = tmp_path / "root"
    first = push(bundle, device(root), self_test=False)
    log = tmp_path / "log"
    only_first = f"readlink {root}/tiny/current >> {log}; grep -qF 1.0.0 {root}/tiny/current/*.json"
    failing = device(root, hook_timeout_s=3.0, **{hook: sh(f"{only_first} || {script}")})
    wanted = rf"{first.release} is current again"
    with pytest.raises(RemoteCommandError, match=wanted) as caught:
        push(version_of(bundle, "2.0.0"), failing, self_test=False)
    assert current(root) == first.release
    assert ("took longer than" if script == "sleep 60" else "exit code 3") in str(caught.value)
    second, again = log.read_text().split()
    assert second != again == f"releases/{first.release}"
    assert actions()[-3:] == [("switch", "done"), ("rollback", "done"), ("push", "failed")]
    history = (root / "tiny" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in history][-2:] == ["switch", "rollback"]


def test_going_back_has_a_release_where_one_alone_is_kept(tmp_path: Path, bundle: Path) -> None:
    root = tmp_path / "root"
    alone = device(root, keep_releases=1)
    first = push(bundle, alone, self_test=False)
    failing = device(root, keep_releases=1, health=sh("exit 7"))
    with pytest.raises(RemoteCommandError, match=rf"exit code 7.*{first.release} is current again"):
        push(version_of(bundle, "2.0.0"), failing, self_test=False)
    assert current(root) == first.release
    third = push(version_of(bundle, "3.0.0"), alone, self_test=False)
    assert [path.name for path in (root / "tiny" / "releases").iterdir()] == [third.release]


def test_first_release_that_fails_in_use_stays_and_says_so(tmp_path: Path, bundle: Path) -> None:
    root = tmp_path / "root"
    with pytest.raises(RemoteCommandError, match="stays current, because there was none before"):
        push(bundle, device(root, health=sh("exit 1")), self_test=False)
    assert current(root)


def test_hooks_are_not_run_for_a_release_that_is_current(tmp_path: Path, bundle: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    logging = device(root, after_switch=sh(f"echo ran >> {log}"))
    push(bundle, logging, self_test=False)
    push(bundle, logging, self_test=False)
    assert log.read_text() == "ran\n"


def test_rolling_back_runs_the_hooks_and_is_recorded(tmp_path: Path, bundle: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    logging = device(root, after_switch=sh(f"readlink {root}/tiny/current >> {log}"))
    first = push(bundle, logging, self_test=False).release
    second = push(version_of(bundle, "2.0.0"), logging, self_test=False).release
    done = rollback("tiny", logging)
    assert (done.release, done.switched_from) == (first, second)
    assert log.read_text().split() == [f"releases/{one}" for one in (first, second, first)]
    assert actions()[-1] == ("rollback", "done")
    assert audit.read_audit_log().records[-1].release == first


BUILDS = """
_really_create = _create_session
def _create_session(model, options, providers):
    import ctypes
    for key, value in [("a", 1_000_000), ("b", 2_000_000)]:
        folder = Path(options.get_session_config_entry(
            "session.collect_node_memory_stats_to_file")).parent
        (folder / key).write_bytes(bytes(value))
        ctypes.PyDLL(None).usleep(1_300_000)  # holds Python's lock, as onnxruntime 1.23 does
    return _really_create(model, options, providers)
"""


@pytest.mark.slow(reason="takes seconds")
def test_engines_are_built_before_the_switch_and_progress_says_so(
    tmp_path: Path, bundle: Path
) -> None:
    root, told = tmp_path / "root", Told()
    change_manifest(bundle, keeps_engines)
    append(bundle, "edgepack_providers.py", BUILDS)
    there = sh(f"find {root}/tiny/cache -type f | grep -q .")
    pushed = push(bundle, device(root, after_switch=there), progress=told)
    assert pushed.variant == "cpu-int8-static"
    assert pushed.warm_up_s is not None
    assert pushed.warm_up_s > 2.6
    assert told.statuses[0].startswith("building engines of cpu-int8-static: 0 s")
    assert any(status.endswith(", 3.0 MB") for status in told.statuses)
    [record] = [one for one in audit.read_audit_log().records if one.action == "self-test"]
    assert record.detail == f"cpu-int8-static in {pushed.warm_up_s} s"


@pytest.mark.slow(reason="takes seconds")
def test_application_uses_the_engines_that_the_self_test_built(
    tmp_path: Path, bundle: Path
) -> None:
    root = tmp_path / "root"
    change_manifest(bundle, keeps_engines)
    push(bundle, device(root))
    built = cached(root)
    [path] = built
    path.unlink()
    program = "import sys; sys.path.insert(0, '.'); import edgepack_loader; edgepack_loader.load()"
    subprocess.run([sys.executable, "-B", "-c", program], cwd=root / "tiny/current", check=True)
    assert cached(root) == built
    assert verify_device(device(root)).list_problems() == []


@pytest.mark.slow(reason="waits for deadlines")
def test_self_test_that_hangs_is_stopped_there_and_changes_nothing(
    tmp_path: Path, bundle: Path
) -> None:
    root = tmp_path / "root"
    first = push(bundle, device(root), self_test=False)
    hanging = version_of(bundle, "2.0.0")
    append(
        hanging,
        "edgepack_providers.py",
        "\ndef _create_session(*_):\n    subprocess.run(['sleep', '7654321'])\n",
    )
    wanted = r"than 4 s and was stopped, at: (starting|trying cpu-int8-static: \d s); the current"
    with pytest.raises(TooSlowError, match=wanted) as caught:
        push(hanging, device(root), warm_up_s=4.0)
    assert "--warm-up SECONDS" in caught.value.hint
    assert current(root) == first.release
    assert running(str(root)) == running("7654321") == []
    assert actions()[-2:] == [("self-test", "failed"), ("push", "failed")]


def test_words_of_a_self_test_that_fails_are_not_hidden_by_its_progress(
    tmp_path: Path, bundle: Path
) -> None:
    code = "\ndef _create_session(*_):\n    raise RuntimeError('no such engine')\n"
    append(bundle, "edgepack_providers.py", code)
    with pytest.raises(RemoteCommandError, match="no such engine") as caught:
        push(bundle, device(tmp_path / "root"))
    assert "edgepack-progress" not in str(caught.value)


def test_engines_go_with_the_last_release_that_has_their_model(
    tmp_path: Path, bundle: Path
) -> None:
    root, two = tmp_path / "root", {"keep_releases": 2}
    models = []
    for size in (8, 9, 10):
        made = write_tiny_bundle(tmp_path / str(size), size=size)
        models.append(hashlib.sha256((made / "models/cpu-fp32.onnx").read_bytes()).hexdigest())
        push(made, device(root, **two), self_test=False)
        (root / "tiny/cache" / models[-1] / "some-runtime").mkdir(parents=True)
    again = version_of(tmp_path / "10", "2.0.0")
    assert sorted(path.name for path in (root / "tiny/cache").iterdir()) == sorted(models[1:])
    push(again, device(root, **two), self_test=False)
    assert [path.name for path in (root / "tiny/cache").iterdir()] == models[2:]
