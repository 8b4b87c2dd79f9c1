"""Devices that are enrolled over SSH pull what ``edgepack publish`` writes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.bundle.signing import sign
from edgepack.deploy.audit import read_audit_log
from edgepack.devices.inventory import Device, SshEntry
from edgepack.errors import DeviceError, PythonMissingError, RemoteCommandError, UsageError
from edgepack.ondevice.agent import edgepack_enroll as program
from edgepack.registry.enrolling import (
    PullSettings,
    enroll_device,
    list_pulled,
    unenroll_device,
)
from edgepack.registry.publishing import PublishOptions, publish
from edgepack.registry.reference import Reference

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.bare_programs import link_programs
from tests.support.servers.loopback import ssh_device
from tests.support.servers.openssh_server import OpenSshServer, find_sshd, put_python_first
from tests.support.servers.registry import Registry, running_registry
from tests.support.servers.signers import make_key, write_allowed
from tests.support.servers.tools import require_tool


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "release")


@pytest.fixture
def signers(tmp_path: Path, key: Path) -> Path:
    return write_allowed(tmp_path / "signers", release=key)


def open_ssh(tmp_path: Path, path: str | None = None) -> OpenSshServer:
    if find_sshd() is None:
        pytest.skip("there is no sshd")
    return OpenSshServer(tmp_path / "ssh", {"PATH": path or put_python_first()})


def publish_signed(registry: Registry, bundle: Path, key: Path) -> str:
    """Publish a bundle and move the channel there; return its release."""
    sign(bundle, key)
    options = PublishOptions(channel="stable", key=key, move=True)
    [made] = publish([bundle], Reference.parse(registry.address("tiny")), options=options)
    return made.release[:16]


def run_cron_line(line: str) -> str:
    """Run what a crontab would, at once; return the result's word."""
    words = shlex.split(line.partition(" * * * ")[2].partition(" --jitter")[0].lstrip("* "))
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.partition(":")[0] or done.stderr


@pytest.mark.slow(reason="two releases are tried by the real loader")
def test_an_enrolled_device_takes_good_releases_and_keeps_off_one_whose_goldens_differ(
    tmp_path: Path, key: Path, signers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "BOOTED", str(tmp_path / "no-systemd"))
    root = tmp_path / "board"
    good = write_tiny_bundle(tmp_path / "good")
    bad = write_tiny_bundle(tmp_path / "bad")
    golden = bad / "golden/0-y.bin"
    golden.write_bytes(bytes(golden.stat().st_size))

    def correct(manifest: dict[str, Any]) -> None:
        from hashlib import sha256

        for one in manifest["files"]:
            one["sha256"] = sha256((bad / one["path"]).read_bytes()).hexdigest()

    change_manifest(bad, correct)
    with running_registry(tmp_path / "registry") as registry, open_ssh(tmp_path) as server:
        device = ssh_device(server, root=str(root), python=sys.executable)
        release = publish_signed(registry, good, key)
        enrolled = enroll_device(device, registry.address("tiny"), signers)
        assert enrolled.timer == "none"
        assert run_cron_line(enrolled.cron) == "installed"
        assert (root / "tiny/current").readlink().name == release
        publish_signed(registry, bad, key)
        assert run_cron_line(enrolled.cron) == "self-test"
        assert run_cron_line(enrolled.cron) == "bad"
        [shown] = list_pulled(device)
    assert (root / "tiny/current").readlink().name == release
    assert (shown.release, shown.result, shown.sequence, shown.follows) == (release, "bad", 2, 0)


def test_secrets_are_written_for_nobody_else_and_shown_nowhere(
    tmp_path: Path, signers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_LOGIN", "board:canary-1")
    monkeypatch.setenv("REPORT_TOKEN", "canary-2")
    monkeypatch.setenv("SITE_PROXY", "http://user:canary-3@proxy.example.com:3128")
    root = tmp_path / "board"
    with open_ssh(tmp_path) as server:
        device = ssh_device(server, root=str(root), python=sys.executable)
        settings = PullSettings(
            credentials_env="REGISTRY_LOGIN",
            report_token_env="REPORT_TOKEN",
            proxy_env="SITE_PROXY",
            report_url="https://fleet.example.com/reports",
        )
        enroll_device(device, "oci://registry.example.com/team/tiny", signers, settings)
        shown = str(list_pulled(device))
    [held] = [
        path for path in root.rglob("*") if path.is_file() and b"canary-" in path.read_bytes()
    ]
    assert held.name == "credentials.json"
    assert stat.S_IMODE(held.stat().st_mode) == 0o600
    written = json.loads(held.read_text())
    assert (written["username"], written["password"]) == ("board", "canary-1")
    assert (written["report_token"], written["proxy"][-22:]) == (
        "canary-2",
        "proxy.example.com:3128",
    )
    assert "canary" not in shown
    assert "canary" not in str(read_audit_log().records)


@pytest.mark.slow(reason="five programs run on the device, over SSH")
def test_enrolling_again_keeps_what_was_seen_and_unenrolling_keeps_releases(
    tmp_path: Path, signers: Path
) -> None:
    root = tmp_path / "board"
    with open_ssh(tmp_path) as server:
        device = ssh_device(server, root=str(root), python=sys.executable)
        address = "oci://registry.example.com/team/tiny"
        enroll_device(device, address, signers)
        state = root / ".pull/tiny/state.json"
        state.write_text('{"remembered": 1}')
        (root / "tiny/releases").mkdir(parents=True)
        enroll_device(device, address, signers, PullSettings(channel="canary"))
        assert state.read_text() == '{"remembered": 1}'
        settings = json.loads((root / ".pull/tiny/settings.json").read_text())
        assert (settings["channel"], settings["python"]) == ("canary", sys.executable)
        unenroll_device(device, "tiny")
        assert list_pulled(device) == ()
        with pytest.raises(RemoteCommandError, match="tiny is not pulled here"):
            unenroll_device(device, "tiny")
    assert (root / "tiny/releases").is_dir()
    actions = [record.action for record in read_audit_log().records]
    assert actions[-4:] == ["enroll", "enroll", "unenroll", "unenroll"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('release valid-before="20300101" {key}', "counts for a time only"),
        ("release cert-authority {key}", "counts for a time only"),
        ('release namespaces="edgepack" {key}', "lets nobody sign in the namespace 'edgepack-ch"),
        ("# nobody", "lets nobody sign in the namespace 'edgepack'"),
        ('"alice smith" valid-before="20200101" {key}', "counts for a time only"),
        (
            '  "alice smith"\tnamespaces="x y",Valid-After="20200101" {key}',
            "counts for a time only",
        ),
        ('al namespaces="edgepack, edgepack-channel" {key}', "namespace 'edgepack-channel'"),
        ('al namespaces="edgepack*,!edgepack-c?annel" {key}', "namespace 'edgepack-channel'"),
        ('al namespaces="edgepac[k],edgepack-channel" {key}', "namespace 'edgepack'"),
        ("alice smith {key}", "a line that is no signer: 'alice smith"),
        ("al", "a line that is no signer: 'al'"),
    ],
)
def test_signers_are_refused_that_a_device_cannot_rely_on(
    line: str, says: str, tmp_path: Path, key: Path
) -> None:
    signers = tmp_path / "signers"
    signers.write_text(line.format(key=Path(f"{key}.pub").read_text()))
    device = Device("board", ssh_device_entry())
    with pytest.raises(UsageError, match=says):
        enroll_device(device, "oci://registry.example.com/team/tiny", signers)


@pytest.mark.parametrize(
    "line",
    [
        "al {key}",
        '"alice smith,al" {key}',
        'al namespaces="edgepack*" {key}',
        'al namespaces="edgepack,edgepack-channel" {key}\r\n # and nobody else',
        'al namespaces="edgepack" {key}\nbo namespaces="edgepack-channel" {key}',
    ],
)
def test_signers_are_taken_that_a_device_can_rely_on(line: str, tmp_path: Path, key: Path) -> None:
    signers = tmp_path / "signers"
    signers.write_text(line.format(key=Path(f"{key}.pub").read_text().strip()))
    device = Device("board", ssh_device_entry())
    settings = PullSettings(ca=signers)
    # Certificates are looked at after the signers.
    with pytest.raises(UsageError, match="has no certificates"):
        enroll_device(device, "oci://registry.example.com/team/tiny", signers, settings)


def ssh_device_entry() -> SshEntry:
    return SshEntry(transport="ssh", host="192.0.2.1", target="linux-x86-64")


@pytest.mark.parametrize(
    ("reference", "settings", "says"),
    [
        ("oci://registry.example.com/team/tiny:stable", PullSettings(), "--channel stable"),
        ("registry.example.com/team/tiny", PullSettings(), "is no address"),
        ("oci://registry.example.com/team/lease", PullSettings(), "is no project's name"),
        ("oci://r.example.com/tiny", PullSettings(project="../x"), "is no project's name"),
        ("oci://r.example.com/tiny", PullSettings(every_s=1.0), "too often"),
        ("oci://r.example.com/tiny", PullSettings(health_url="file:///x"), "--health-url"),
        ("oci://r.example.com/tiny", PullSettings(report_url="https://a:b@c/"), "--report-url"),
        ("oci://r.example.com/tiny", PullSettings(credentials_env="NOT_SET"), "NOT_SET"),
        ("oci://r.example.com/tiny", PullSettings(channel="../../x"), "is no address"),
        ("oci://r.example.com/tiny", PullSettings(proxy_env="WRONG_PROXY"), "WRONG_PROXY"),
        ("oci://r.example.com/tiny", PullSettings(ca=Path(__file__)), "has no certificates"),
    ],
)
def test_wrong_settings_are_refused_before_a_device_is_asked(
    reference: str,
    settings: PullSettings,
    says: str,
    signers: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WRONG_PROXY", "http:/bob:canary@proxy")
    device = Device("board", ssh_device_entry())
    with pytest.raises(UsageError) as caught:
        enroll_device(device, reference, signers, settings)
    assert says in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_board_without_python_is_told_so(tmp_path: Path, signers: Path) -> None:
    programs = link_programs(tmp_path / "bin")
    (programs / "uname").symlink_to(str(shutil.which("uname")))
    with open_ssh(tmp_path, str(programs)) as server:
        device = ssh_device(server, root=str(tmp_path / "board"))
        with pytest.raises((PythonMissingError, DeviceError), match="Python"):
            enroll_device(device, "oci://registry.example.com/team/tiny", signers)


@pytest.mark.parametrize("is_system", [True, False])
def test_systemd_takes_the_units_with_strange_paths(*, is_system: bool, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    root = tmp_path / 'ro"o%t $HOME'
    root.mkdir()
    argv = [sys.executable, "-BEsS", str(find_ondevice_dir()), str(root), "tiny"]
    settings = {"project": "tiny", "every_s": 900, "textfile": str(tmp_path)}
    units = program.make_units(argv, settings, str(root), is_system=is_system)
    for name, text in units.items():
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in units]
    done = subprocess.run(
        [analyze, "verify", "--man=no", *paths], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if "edgepack-pull" in line]
    assert said == []
    [service] = [text for name, text in units.items() if name.endswith(".service")]
    assert '/ro\\"o%%t $$HOME"' in service
    assert ("ProtectSystem=strict" in service) == is_system


def write_systemd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Play a systemd of a user, which fails where there is a file ``down``; return its calls."""
    calls = folder / "calls"
    for name in ("systemctl", "loginctl"):
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\ntest ! -e {folder}/down\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setattr(program, "BOOTED", str(folder))
    monkeypatch.setattr(program, "SYSTEM_UNITS", str(folder / "units"))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    return calls


def ask(signers: str, **settings: Any) -> dict[str, Any]:
    """Return what a device is told."""
    return {
        "settings": {"schema_version": 1, "project": "tiny", "every_s": 900, **settings},
        "signers": signers,
        "credentials": None,
        "ca": None,
        "programs": {"edgepack_pull.py": "print()\n"},
    }


@pytest.mark.parametrize("fault", ["systemd is down", "no folder for metrics"])
def test_an_enrolment_that_fails_leaves_the_device_as_it_was(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tool("ssh-keygen")
    write_systemd(tmp_path, monkeypatch)
    root = tmp_path / "root"
    program.enroll(str(root), ask("al ssh-ed25519 AAAA"))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    units = {path: path.read_bytes() for path in (tmp_path / "config").rglob("*.timer")}
    if fault == "systemd is down":
        (tmp_path / "down").touch()
    folder = tmp_path if fault == "systemd is down" else tmp_path / "gone"
    asked = ask("bo ssh-ed25519 AAAA", every_s=60, textfile=str(folder))
    with pytest.raises(program.Problem):
        program.enroll(str(root), asked)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert {path: path.read_bytes() for path in units} == units
    fresh = tmp_path / "fresh"
    with pytest.raises(program.Problem):
        program.enroll(str(fresh), asked)
    assert program.show(str(fresh)) == {"projects": []}


def test_the_timer_is_started_by_the_systemd_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signers: Path
) -> None:
    calls = write_systemd(tmp_path, monkeypatch)
    answer = program.enroll(str(tmp_path / "root"), ask(signers.read_text()))
    assert (answer["timer"], answer["left"]) == ("user", "")
    units = tmp_path / "config/systemd/user"
    assert (units / "edgepack-pull@tiny.timer").read_text().count("OnUnitInactiveSec=900s") == 1
    said = calls.read_text()
    assert "loginctl --no-ask-password enable-linger" in said
    assert "systemctl --user --no-ask-password restart edgepack-pull@tiny.timer" in said
    program.unenroll(str(tmp_path / "root"), "tiny")
    assert list(units.iterdir()) == []
    assert "disable --now edgepack-pull@tiny.timer" in calls.read_text()
