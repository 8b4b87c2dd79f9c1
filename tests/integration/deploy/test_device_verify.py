"""``edgepack device verify``: what was changed on a device is found, file by file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.transfer.client import PushAgent, send_release, switch_back
from edgepack.deploy.verify import verify_device
from edgepack.devices.inventory import Device, LocalEntry, add_device
from edgepack.devices.transports import connect
from edgepack.errors import BundleError, DeviceError, UsageError
from edgepack.project.profile import find_host_target

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.loopback import ssh_device
from tests.support.slow_cases import slow_after


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def device(root: Path) -> Device:
    entry = LocalEntry(transport="local", target="linux-x86-64", root=str(root))
    return Device("board", entry)


@pytest.fixture
def pushed(device: Device, tmp_path: Path) -> Path:
    """A device with two releases of one project, the second one current."""
    push_to(device, write_tiny_bundle(tmp_path / "first", size=10))
    return push_to(device, write_tiny_bundle(tmp_path / "second"))


def push_to(device: Device, bundle: Path) -> Path:
    with connect(device) as transport:
        return Path(send_release(PushAgent(bundle, device, transport)).path)


def alter(path: Path) -> None:
    """Change a file's content; files may be shared with other releases, so this one is new."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_device_when_nothing_was_changed_is_whole_over_ssh(tmp_path: Path) -> None:
    with LoopbackServer(tmp_path / "server") as server:
        device = ssh_device(server, root=str(tmp_path / "root"))
        place = push_to(device, write_tiny_bundle(tmp_path / "bundle"))
        state = verify_device(device)
    state.require_whole()
    (project,) = state.projects
    (release,) = project.releases
    files = [path for path in place.rglob("*") if path.is_file()]
    manifest = (place / "manifest.json").read_bytes()
    assert release.digest == hashlib.sha256(manifest).hexdigest()
    assert (project.name, release.name, release.files) == ("tiny", place.name, len(files))
    assert project.current_release == place.name
    assert project.history.broken_at is None
    assert project.history.current == place.name


MODEL = "models/cpu-fp32.onnx"


def link_elsewhere(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    other = path.parent.parent.parent.parent / "elsewhere"
    other.write_bytes(content)
    path.symlink_to(other)


@pytest.mark.parametrize(
    ("change", "kind", "path", "why"),
    slow_after(3, [
        (lambda place: alter(place / MODEL), "altered", MODEL, "its hash is another"),
        (lambda place: (place / MODEL).unlink(), "missing", MODEL, ""),
        (lambda place: (place / "more.py").write_text("x"), "added", "more.py", ""),
        (lambda place: (place / "d").symlink_to("/"), "added", "d", ""),
        (lambda place: link_elsewhere(place / MODEL), "altered", MODEL, "it is no plain file"),
        (lambda place: (place / MODEL).chmod(0o755), "altered", MODEL, "its mode is not 644"),
        (lambda place: alter(place / "manifest.json.sha256"), "altered", "manifest.json.sha256",
         "its hash is another"),
        (lambda place: alter(place / "manifest.json"), "altered", "manifest.json",
         "it is not the manifest of this release"),
        (lambda place: (place / "manifest.json").unlink(), "altered", "manifest.json",
         "it cannot be read: No such file or directory"),
        (lambda place: os.close(os.open(os.fsencode(place) + b"/\xff", os.O_CREAT)), "added",
         r"\udcff", ""),
    ]),
)  # fmt: skip
def test_file_when_it_was_changed_on_the_device_is_named(
    device: Device, pushed: Path, change: Callable[[Path], object], kind: str, path: str, why: str
) -> None:
    change(pushed)
    state = verify_device(device, "tiny")
    found = {release.name: release.differences for release in state.projects[0].releases}
    (difference,) = found.pop(pushed.name)
    assert (difference.kind, difference.path, difference.why) == (kind, path, why)
    assert list(found.values()) == [[]]
    with pytest.raises(BundleError, match=pushed.name):
        state.require_whole()


def test_folder_when_it_was_replaced_by_a_link_is_not_followed(
    device: Device, pushed: Path, tmp_path: Path
) -> None:
    (pushed / "models").rename(tmp_path / "models")
    (pushed / "models").symlink_to(tmp_path / "models")
    release = next(r for r in verify_device(device).projects[0].releases if r.name == pushed.name)
    assert {(d.path, d.kind) for d in release.differences} == {
        ("models", "added"), (MODEL, "missing"),
    }  # fmt: skip


def test_files_when_very_many_were_added_are_counted(device: Device, pushed: Path) -> None:
    for number in range(130):
        (pushed / f"{number}.txt").write_text("")
    state = verify_device(device)
    release = next(r for r in state.projects[0].releases if r.name == pushed.name)
    assert len(release.differences) + release.more == 130
    assert any(f"{release.more} more files differ" in problem for problem in state.list_problems())


def test_current_when_it_was_moved_by_hand_is_a_problem(device: Device, pushed: Path) -> None:
    other = next(path for path in pushed.parent.iterdir() if path.name != pushed.name)
    current = pushed.parent.parent / "current"
    current.unlink()
    current.symlink_to(f"releases/{other.name}")
    (problem,) = verify_device(device).list_problems()
    assert f"{other.name} is current, but by its history '{pushed.name}' should be" in problem
    current.unlink()
    current.symlink_to("/etc")
    problem = verify_device(device).list_problems()[0]
    assert "'current' leads to '/etc', which is not a release here" in problem


def test_rolled_back_device_is_whole(device: Device, pushed: Path) -> None:
    with connect(device) as transport:
        done = switch_back("tiny", device, transport)
    state = verify_device(device)
    state.require_whole()
    assert state.projects[0].current_release == done.release != pushed.name


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [lines[0].replace(b"time", b"tame"), *lines[1:]], 2),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], b"{}\n", *lines[1:]], 2),
        (lambda lines: [lines[0], b"nothing\n", *lines[1:]], 3),
        (lambda lines: [lines[0], lines[1], b"nothing\n"], 3),
        (lambda lines: [*lines, b'{"cut'], None),
    ],
    ids=["altered", "removed", "record put in", "line put in", "end overwritten", "cut off"],
)
def test_history_when_it_was_changed_breaks_where_it_was(
    device: Device, pushed: Path, change: Callable[[list[bytes]], list[bytes]], line: int | None
) -> None:
    with connect(device) as transport:
        switch_back("tiny", device, transport)
    history = pushed.parent.parent / "history.jsonl"
    lines = history.read_bytes().splitlines(keepends=True)
    assert json.loads(lines[-1])["action"] == "rollback"
    history.write_bytes(b"".join(change(lines)))
    state = verify_device(device).projects[0]
    assert state.history.broken_at == line
    assert any("history is broken" in problem for problem in state.list_problems()) == bool(line)


def test_history_when_a_crash_cut_a_line_off_goes_on_unbroken(device: Device, pushed: Path) -> None:
    history = pushed.parent.parent / "history.jsonl"
    text = history.read_bytes()
    for cut, zeros in ((1, b""), (30, b""), (200, bytes(170))):
        history.write_bytes(text[:-cut] + zeros)
        for release in (other_release(pushed), pushed.name):
            with connect(device) as transport:
                switch_back("tiny", device, transport, release=release)
            state = verify_device(device).projects[0].history
            assert (state.broken_at, state.current) == (None, release)


def other_release(pushed: Path) -> str:
    return next(p.name for p in pushed.parent.iterdir() if len(p.name) == 16 and p != pushed)


def test_project_when_the_device_does_not_have_it_is_a_usage_error(
    device: Device, pushed: Path
) -> None:
    with pytest.raises(UsageError, match="no project 'tinny'") as caught:
        verify_device(device, "tinny")
    assert "'tiny'" in caught.value.hint
    with pytest.raises(UsageError, match=r"no project '\.\./root'"):
        verify_device(device, "../root")


def test_device_when_nothing_was_pushed_has_no_projects(device: Device) -> None:
    assert verify_device(device).projects == ()


def test_device_when_it_has_no_python_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackServer(tmp_path / "server") as server:
        start = server.start
        monkeypatch.setattr(server, "start", lambda line: start(f"PATH=/nowhere; {line}"))
        with pytest.raises(DeviceError, match="there is no 'python3' on the device"):
            verify_device(ssh_device(server))


DRIFT = (find_ondevice_dir() / "agent/edgepack_drift.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("[" * 100_000, "nested deeper"),
        ("x" * (17 << 20), "bytes and may have"),
        ('{"all": [], "projects": [1]}', r"wrong at projects\.0"),
        ('{"all": []}', "wrong at projects"),
        ('{"all": ["' + "y" * 5000 + '"], "projects": []}', r"wrong at all\.0"),
        ("", "is not JSON"),
    ],
    ids=["deep", "long", "of another kind", "incomplete", "long name", "empty"],
)
def test_answer_when_it_is_none_is_refused(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, problem: str
) -> None:
    (tmp_path / "answer").write_text(answer)
    lying = f"print(open({str(tmp_path / 'answer')!r}).read())"
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/edgepack_drift.py").write_text(lying)
    monkeypatch.setattr("edgepack.devices.programs.find_ondevice_dir", lambda: tmp_path)
    with pytest.raises(DeviceError, match=problem):
        verify_device(device)


def test_program_when_the_release_goes_meanwhile_does_not_report_it(
    device: Device, pushed: Path
) -> None:
    program = DRIFT.replace(
        "    entries = read_listed(folder, digest)\n",
        "    entries = read_listed(folder, digest)\n"
        f"    import shutil; shutil.rmtree(folder) if {pushed.name!r} in folder else None\n",
    )
    assert program != DRIFT
    argv = [sys.executable, "-IS", "-c", program, device.entry.root]
    answer = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    names = [release["name"] for release in answer["projects"][0]["releases"]]
    assert names == [other_release_left(pushed)]


def other_release_left(pushed: Path) -> str:
    return next(p.name for p in pushed.parent.iterdir() if len(p.name) == 16)


@pytest.mark.slow(reason="takes seconds")
def test_command_when_a_file_was_altered_names_it_and_exits_with_7(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = LocalEntry(transport="local", target=find_host_target(), root=str(root))
    add_device(tmp_path / "devices.yaml", "board", entry)
    bundle = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(bundle, lambda manifest: manifest.update(target=find_host_target()))
    assert run(["push", str(bundle), "--device", "board"]) == 0
    capsys.readouterr()
    assert run(["device", "verify", "board"]) == 0
    said = capsys.readouterr().out
    assert "files as they were pushed  current" in said
    assert "unbroken" in said
    alter(root / "tiny" / "current" / MODEL)
    assert run(["device", "verify", "board", "--project", "tiny", "--json"]) == 7
    streams = capsys.readouterr()
    (release,) = json.loads(streams.out)["projects"][0]["releases"]
    assert [one["path"] for one in release["differences"]] == [MODEL]
    assert f"{MODEL} is altered: its hash is another" in streams.err
