"""``edgepack runtime list|show|add|remove|export``."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import yaml
from edgepack.cli.main import run
from edgepack.devices.provisioning.store import RuntimeStore
from edgepack.project.profile import find_target_file, load_profile

from tests.integration.devices.test_provision import PROVIDERS, write_wheel

PIN = load_profile("jetson").runtime.packages["onnxruntime"].removeprefix("==")
TAG = "cp310-cp310-linux_aarch64"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return make_wheel(tmp_path)


def make_wheel(folder: Path, version: str = PIN, tag: str = TAG, module: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    made = write_wheel(
        folder / "made", "onnxruntime_gpu", version, PROVIDERS, module or "onnxruntime"
    )
    return made.rename(folder / f"onnxruntime_gpu-{version}-{tag}.whl")


def add(wheel: Path, *words: str) -> int:
    return run(["runtime", "add", str(wheel), "--target", "jetson", *words])


def test_runtime_is_added_listed_shown_exported_and_removed(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["runtime", "list"]) == 0
    assert "no runtimes yet" in capsys.readouterr().out
    assert add(wheel, "--about", "jetpack=6.2", "--json") == 0
    kept = json.loads(capsys.readouterr().out)
    assert kept["about"] == {"jetpack": "6.2"}
    short = kept["sha256"][:4]
    assert run(["runtime", "show", short]) == 0
    assert "jetpack: 6.2" in capsys.readouterr().out
    assert run(["runtime", "export", short, "--to", str(tmp_path / "out")]) == 0
    assert run(["runtime", "remove", short]) == 0
    assert RuntimeStore().list_all().runtimes == []
    capsys.readouterr()
    assert add(tmp_path / "out" / wheel.name, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again | {"added": ""} == kept | {"added": ""}
    assert add(wheel) == 0
    assert len(RuntimeStore().list_all().runtimes) == 1


def test_newest_that_a_device_loads_is_chosen(wheel: Path, tmp_path: Path) -> None:
    store, profile = RuntimeStore(), load_profile("jetson")
    old = store.add(wheel, profile)
    platforms = ["manylinux_2_35_aarch64", "linux_aarch64"]
    assert store.choose("jetson", "3.10.12", platforms) == old
    for target, python, tags in (
        ("jetson-jp7", "3.10.12", platforms),
        ("jetson", "3.11.2", platforms),
        ("jetson", "3.10.12", ["linux_x86_64"]),
    ):
        assert store.choose(target, python, tags) is None
    newer = store.add(make_wheel(tmp_path, f"{PIN}+own"), profile)
    record = next(store.folder.glob(f"{newer.id}-*")) / "runtime.json"
    record.write_text(newer.model_copy(update={"added": "2999-01-01"}).model_dump_json())
    assert store.choose("jetson", "3.10.12", platforms).id == newer.id


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": "1.0.0"}, f"has onnxruntime 1.0.0; target 'jetson' is for =={PIN}"),
        ({"tag": "cp310-cp310-linux_x86_64"}, "is for another processor"),
        ({"module": "other"}, "does not bring onnxruntime"),
    ],
)
def test_wheel_that_is_not_for_the_target_is_refused(
    wheel: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    problem: str,
) -> None:
    assert add(make_wheel(tmp_path, **changes)) == 2
    assert problem in capsys.readouterr().err
    assert not RuntimeStore().folder.exists()


def test_wheel_or_record_that_is_damaged_is_named(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(wheel) == 0
    [kept] = RuntimeStore().list_all().runtimes
    folder = RuntimeStore().folder / f"{kept.id}-jetson"
    (folder / wheel.name).write_bytes(b"")
    for words in (["show"], ["export", "--to", str(tmp_path / "out")]):
        assert run(["runtime", words[0], kept.id, *words[1:]]) == 7
        assert "has changed since it was kept" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    (folder / "runtime.json").write_text("{")
    assert run(["runtime", "list"]) == 0
    assert "broken: the record of the runtime" in capsys.readouterr().out
    wheel.write_bytes(wheel.read_bytes()[:-10])
    assert add(wheel) == 2
    assert "is no whole wheel" in capsys.readouterr().err
    assert run(["runtime", "show", "zz"]) == 2
    assert "no runtimes begin with 'zz'" in capsys.readouterr().err
    assert run(["runtime", "add", str(wheel), "--target", "jetson", "--about", "x"]) == 2


def test_same_wheel_for_two_targets_is_told_apart(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(wheel) == 0
    profile = yaml.safe_load(find_target_file("jetson").read_text(encoding="utf-8"))
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "orin.yaml").write_text(yaml.safe_dump(profile | {"id": "orin"}))
    with contextlib.chdir(tmp_path):
        assert run(["runtime", "add", str(wheel), "--target", "orin"]) == 0
    first = RuntimeStore().list_all().runtimes[0]
    assert run(["runtime", "show", first.id]) == 2
    assert "2 runtimes begin with" in capsys.readouterr().err
    assert run(["runtime", "remove", f"{first.id}-orin"]) == 0
    assert [kept.target for kept in RuntimeStore().list_all().runtimes] == ["jetson"]


def test_broken_entry_is_not_taken_for_the_one_that_is_added(
    wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(wheel) == 0
    [record] = RuntimeStore().folder.glob("*/runtime.json")
    for text in ("{", record.read_text().replace(wheel.name, "a.whl")):
        record.write_text(text)
        assert RuntimeStore().list_all().runtimes == []
        assert add(wheel) == 7
        assert "the record of the runtime cannot be read" in capsys.readouterr().err


def test_runtime_of_another_version_under_the_pinned_name_is_refused(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = make_wheel(tmp_path, "1.20.0", "cp312-cp312-linux_x86_64")
    assert run(["runtime", "add", str(old), "--target", "nvidia"]) == 2
    assert "has onnxruntime 1.20.0; target 'nvidia' is for ==1.31.1" in capsys.readouterr().err


def test_record_of_another_wheel_beside_it_is_refused(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(wheel) == 0
    [kept] = RuntimeStore().list_all().runtimes
    exported = RuntimeStore().export(kept, tmp_path / "out")
    other = make_wheel(tmp_path / "other", f"{PIN}+own")
    exported.write_bytes(other.read_bytes())
    assert add(exported) == 7
    assert "is of another wheel" in capsys.readouterr().err
