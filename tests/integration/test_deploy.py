"""A release comes into use if it works on the device, and is taken back if it does not."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from edgepack import audit
from edgepack.deploying import deploy, roll_back
from edgepack.devices import Device, LocalEntry
from edgepack.errors import RemoteCommandError
from tiny_bundle import change_manifest, write_tiny_bundle


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


def actions() -> list[tuple[str, str]]:
    return [(one.action, one.result) for one in audit.read().records]


def test_release_that_works_becomes_current(tmp_path: Path, bundle: Path) -> None:
    root = tmp_path / "root"
    first = deploy(bundle, device(root))
    assert (first.variant, current(root)) == ("cpu-int8-static", first.pushed.release)
    again = deploy(bundle, device(root))
    assert (again.variant, again.pushed.already_there) == (None, True)


def test_release_whose_goldens_do_not_hold_never_becomes_current(
    tmp_path: Path, bundle: Path
) -> None:
    root = tmp_path / "root"
    first = deploy(bundle, device(root))
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
        deploy(broken, device(root))
    assert current(root) == first.pushed.release
    untried = deploy(broken, device(root), self_test=False)
    assert (untried.variant, current(root)) == (None, untried.pushed.release)


@pytest.mark.parametrize("hook", ["after_switch", "health"])
@pytest.mark.parametrize("script", ["exit 3", "sleep 60"])
def test_release_that_fails_in_use_is_taken_back(
    tmp_path: Path, bundle: Path, hook: str, script: str
) -> None:
    root = tmp_path / "root"
    first = deploy(bundle, device(root), self_test=False)
    log = tmp_path / "log"
    only_first = f"readlink {root}/tiny/current >> {log}; grep -q 1.0.0 {root}/tiny/current/*.json"
    failing = device(root, hook_timeout_s=3.0, **{hook: sh(f"{only_first} || {script}")})
    wanted = rf"{first.pushed.release} is current again"
    with pytest.raises(RemoteCommandError, match=wanted) as caught:
        deploy(version_of(bundle, "2.0.0"), failing, self_test=False)
    assert current(root) == first.pushed.release
    assert ("took longer than" if script == "sleep 60" else "exit code 3") in str(caught.value)
    second, again = log.read_text().split()
    assert second != again == f"releases/{first.pushed.release}"
    assert actions()[-3:] == [("switch", "done"), ("rollback", "done"), ("push", "failed")]
    history = (root / "tiny" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in history][-2:] == ["switch", "rollback"]


def test_first_release_that_fails_in_use_stays_and_says_so(tmp_path: Path, bundle: Path) -> None:
    root = tmp_path / "root"
    with pytest.raises(RemoteCommandError, match="stays current, for there was none before"):
        deploy(bundle, device(root, health=sh("exit 1")), self_test=False)
    assert current(root)


def test_hooks_are_not_run_for_a_release_that_is_current(tmp_path: Path, bundle: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    logging = device(root, after_switch=sh(f"echo ran >> {log}"))
    deploy(bundle, logging, self_test=False)
    deploy(bundle, logging, self_test=False)
    assert log.read_text() == "ran\n"


def test_rolling_back_runs_the_hooks_and_is_recorded(tmp_path: Path, bundle: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    logging = device(root, after_switch=sh(f"readlink {root}/tiny/current >> {log}"))
    first = deploy(bundle, logging, self_test=False).pushed.release
    second = deploy(version_of(bundle, "2.0.0"), logging, self_test=False).pushed.release
    done = roll_back("tiny", logging)
    assert (done.release, done.switched_from) == (first, second)
    assert log.read_text().split() == [f"releases/{one}" for one in (first, second, first)]
    assert actions()[-1] == ("rollback", "done")
    assert audit.read().records[-1].release == first
