"""What is done to devices is recorded, over real SSH: who, what, on which board, how it ended."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy import adding, operations
from edgepack.deploy.audit import read_audit_log
from edgepack.deploy.audit_lines import Record, find_audit_log, parse_moment
from edgepack.deploy.fleet.store import ProvisionOptions
from edgepack.deploy.intervals import list_audit_intervals
from edgepack.deploy.push import push, rollback
from edgepack.devices import probing
from edgepack.devices.inventory import Device, LocalEntry, add_device
from edgepack.errors import BundleError, DeviceError, EdgepackError, ToolError
from edgepack.project.profile import find_host_target

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.loopback import ssh_device


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path / "server") as running:
        yield running


@pytest.fixture
def device(server: LoopbackServer, tmp_path: Path) -> Device:
    return ssh_device(server, root=str(tmp_path / "root"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


def records() -> list[Record]:
    log = read_audit_log()
    log.require_whole()
    return list(log.records)


def push_untried(bundle: Path, device: Device) -> None:
    push(bundle, device, self_test=False)


def what(found: list[Record]) -> list[tuple[str, str]]:
    return [(one.action, one.result) for one in found]


def digest_of(bundle: Path) -> str:
    return hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()


def test_push_when_done_is_recorded_with_board_and_digest(
    device: Device, bundle: Path, server: LoopbackServer
) -> None:
    push_untried(bundle, device)
    switched, pushed = records()
    assert what([switched, pushed]) == [("switch", "done"), ("push", "done")]
    digest = digest_of(bundle)
    for one in (switched, pushed):
        assert (one.device, one.host_key) == ("board", server.host_key_fingerprint)
        assert (one.project, one.release, one.digest) == ("tiny", digest[:16], digest)
        assert (one.signer, one.error) == (None, None)


def test_host_key_when_it_is_not_pinned_is_the_one_that_was_proven(
    server: LoopbackServer, bundle: Path, tmp_path: Path
) -> None:
    device = ssh_device(server, host_key=None, root=str(tmp_path / "root"))
    operations.trust_device(device, server.host_key_fingerprint, lambda _: False)
    push_untried(bundle, device)
    assert {one.host_key for one in records()} == {server.host_key_fingerprint}


def test_push_when_it_fails_is_recorded_with_the_errors_first_line(
    device: Device, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "root").write_text("in the way")
    with pytest.raises(EdgepackError) as caught:
        push_untried(bundle, device)
    (found,) = records()
    assert what([found]) == [("push", "failed")]
    assert found.error == caught.value.problem.splitlines()[0]
    assert found.digest == digest_of(bundle)
    (bundle / "manifest.json").write_text("altered")
    with pytest.raises(BundleError):
        push_untried(bundle, device)
    assert what(records())[1:] == [("push", "failed")]


@pytest.mark.slow(reason="takes seconds")
def test_digests_when_releases_are_switched_and_rolled_back_have_their_intervals(
    device: Device, bundle: Path, tmp_path: Path
) -> None:
    other = write_tiny_bundle(tmp_path / "other", size=10)
    for one in (bundle, bundle, other):
        push_untried(one, device)
    rollback("tiny", device)
    found = list_audit_intervals(records())
    assert [(one.digest, one.ended_by) for one in found] == [
        (digest_of(bundle), "switch"), (digest_of(other), "rollback"), (digest_of(bundle), None),
    ]  # fmt: skip
    assert [one.end for one in found[:2]] == [one.start for one in found[1:]]


def test_rollback_when_there_is_nothing_before_is_recorded_as_failed(
    device: Device, bundle: Path
) -> None:
    push_untried(bundle, device)
    with pytest.raises(EdgepackError):
        rollback("tiny", device)
    last = records()[-1]
    assert (last.action, last.result, last.project) == ("rollback", "failed", "tiny")


@pytest.mark.slow(reason="pushes many times")
def test_rollback_when_what_follows_it_fails_is_recorded_as_done_and_its_failure_too(
    device: Device, bundle: Path, tmp_path: Path
) -> None:
    other = write_tiny_bundle(tmp_path / "other", size=10)
    for one in (bundle, other):
        push_untried(one, device)
    entry = device.entry.model_copy(update={"health": ["false"]})
    with pytest.raises(EdgepackError):
        rollback("tiny", Device("board", entry))
    assert what(records())[-2:] == [("rollback", "done"), ("rollback", "failed")]
    assert list_audit_intervals(records())[-1].digest == digest_of(bundle)


def test_release_when_it_is_another_than_the_operations_has_not_its_digest(
    device: Device, bundle: Path
) -> None:
    with operations.audited("push", device, bundle) as operation:
        operation.record("rollback", release="0" * 16, switched_from=digest_of(bundle)[:16])
    back, pushed = records()
    assert (back.release, back.digest) == ("0" * 16, None)
    assert pushed.digest == digest_of(bundle)


def test_interruption_when_something_is_done_is_recorded(device: Device) -> None:
    with pytest.raises(KeyboardInterrupt), operations.audited("push", device):
        raise KeyboardInterrupt
    (found,) = records()
    assert (found.result, found.error) == ("failed", "KeyboardInterrupt")


def test_log_when_it_cannot_be_written_keeps_anything_from_being_done(
    device: Device, bundle: Path, tmp_path: Path
) -> None:
    find_audit_log().mkdir(parents=True)
    with pytest.raises(ToolError, match="cannot write the audit log") as caught:
        push_untried(bundle, device)
    assert "XDG_DATA_HOME" in caught.value.hint
    assert not (tmp_path / "root").exists()


def add(server: LoopbackServer, tmp_path: Path, **changes: object) -> None:
    values: dict[str, object] = {
        "port": server.port,
        "key": str(server.client_key_path),
        "fingerprint": server.host_key_fingerprint,
        "confirm": lambda _: False,
        "ssh_config": os.devnull,
        "inventory": tmp_path / "devices.yaml",
    }
    address = f"{server.user}@{server.host}"
    adding.add_device("board", address, **(values | changes))  # type: ignore[arg-type]


def test_added_device_is_recorded_with_the_trust_in_its_key(
    server: LoopbackServer, tmp_path: Path
) -> None:
    add(server, tmp_path)
    trusted, added = records()
    assert what([trusted, added]) == [("trust", "done"), ("add", "done")]
    assert {trusted.host_key, added.host_key} == {server.host_key_fingerprint}
    assert trusted.detail == f"the ssh-ed25519 key of [127.0.0.1]:{server.port}"
    assert added.detail == f"as {find_host_target()}"


def test_board_when_it_has_a_serial_number_is_told_by_it(
    server: LoopbackServer, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serial-number").write_bytes(b"100000008a3c\0")
    script = probing._SCRIPT.replace(
        "/proc/device-tree/serial-number", str(tmp_path / "serial-number")
    )
    assert script != probing._SCRIPT
    monkeypatch.setattr(probing, "_SCRIPT", script)
    add(server, tmp_path)
    assert records()[-1].serial == "100000008a3c"
    push_untried(bundle, ssh_device(server, root=str(tmp_path / "root")))
    assert [one.serial for one in list_audit_intervals(records())] == ["100000008a3c"]


def test_board_when_it_was_added_elsewhere_tells_its_serial_number_when_it_tries_a_release(
    server: LoopbackServer, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serial-number").write_bytes(b"100000008a3c\0")
    place = str(tmp_path / "serial-number")
    script = probing._SCRIPT.replace("/proc/device-tree/serial-number", place)
    monkeypatch.setattr(probing, "_SCRIPT", script)
    device = ssh_device(server, root=str(tmp_path / "root"), python=sys.executable)
    push(bundle, device)
    assert [(one.action, one.serial) for one in records()] == [
        ("self-test", "100000008a3c"), ("switch", "100000008a3c"), ("push", "100000008a3c"),
    ]  # fmt: skip


def test_trust_when_the_adding_fails_after_it_is_recorded_all_the_same(
    server: LoopbackServer, tmp_path: Path
) -> None:
    (tmp_path / "wrong_key").write_text("no key")
    with pytest.raises(DeviceError, match="refuses the login"):
        add(server, tmp_path, key=str(tmp_path / "wrong_key"))
    assert what(records()) == [("trust", "done"), ("add", "failed")]


def test_trust_when_refused_is_recorded_and_when_nothing_changes_is_not(
    server: LoopbackServer,
) -> None:
    device = ssh_device(server, host_key=None)
    with pytest.raises(DeviceError):
        operations.trust_device(device, "SHA256:" + "A" * 43, lambda _: False)
    operations.trust_device(device, server.host_key_fingerprint, lambda _: False)
    operations.trust_device(device, None, lambda _: False)
    failed, done = records()
    assert what([failed, done]) == [("trust", "failed"), ("trust", "done")]
    assert "not SHA256:AAAA" in (failed.error or "")


def test_provision_when_it_fails_is_recorded(device: Device) -> None:
    entry = device.entry.model_copy(update={"python": "/opt/python"})
    with pytest.raises(EdgepackError):
        operations.provision_device(Device("board", entry), ProvisionOptions(offline=True))
    (found,) = records()
    assert (found.action, found.result) == ("provision", "failed")
    assert "/opt/python" in (found.error or "")


def test_process_when_killed_while_it_records_leaves_a_chain_that_goes_on() -> None:
    script = (
        "from edgepack.deploy.audit import Event, record\n"
        "while True: record(Event(action='push', device='board'))"
    )
    for _ in range(5):
        before = len(read_audit_log().digests)
        writer = subprocess.Popen([sys.executable, "-c", script])
        while len(read_audit_log().digests) < before + 3:
            time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    with operations.audited("push", "last"):
        pass
    assert records()[-1].device == "last"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle that was put on a device of devices.yaml, here; the bundle."""
    monkeypatch.chdir(tmp_path)
    entry = LocalEntry(transport="local", target=find_host_target(), root=str(tmp_path / "root"))
    add_device(tmp_path / "devices.yaml", "board", entry)
    bundle = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(bundle, lambda manifest: manifest.update(target=find_host_target()))
    push_untried(bundle, Device("board", entry))
    return bundle


def test_export_when_asked_lists_intervals_and_records(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "export", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (span,) = document["intervals"]
    assert (span["device"], span["digest"], span["end"]) == ("board", digest_of(local), None)
    assert [one["action"] for one in document["records"]] == ["switch", "push"]
    assert (document["torn_lines"], document["problem"]) == ([], None)
    assert run(["audit", "export"]) == 0
    said = capsys.readouterr().out
    assert f"board: tiny {digest_of(local)} from {span['start']} until at least" in said
    assert "as far as this machine knows" in said


def test_export_when_asked_since_a_time_has_what_lasted_then(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    assert run(["audit", "export", "--since", later, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (len(document["intervals"]), document["records"]) == (1, [])
    assert parse_moment(document["intervals"][0]["start"]) < parse_moment(later)
    assert run(["audit", "export", "--since", "yesterday"]) == 2
    assert "'yesterday' is no date" in capsys.readouterr().err


def test_log_when_it_was_altered_is_refused_with_the_line_and_exits_with_7(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "verify", "--json"]) == 0
    head = json.loads(capsys.readouterr().out)["head"]
    lines = find_audit_log().read_bytes().splitlines(keepends=True)
    find_audit_log().write_bytes(lines[0])
    assert run(["audit", "verify"]) == 0
    assert run(["audit", "verify", "--head", head]) == 7
    find_audit_log().write_bytes(lines[0].replace(b'"switch"', b'"add"') + lines[1])
    capsys.readouterr()
    for command in (["verify"], ["export", "--json"]):
        assert run(["audit", *command]) == 7
        streams = capsys.readouterr()
        assert f"{find_audit_log()}:2" in streams.err
    assert len(json.loads(streams.out)["records"]) == 2


def test_head_when_records_followed_is_still_in_the_log(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "verify", "--json"]) == 0
    head = json.loads(capsys.readouterr().out)["head"]
    with operations.audited("push", "board"):
        pass
    assert run(["audit", "verify", "--head", head]) == 0
    with find_audit_log().open("ab") as file:
        file.write(b'{"cut')
    assert run(["audit", "verify"]) == 0
    assert "line 4 of the audit log was cut off" in capsys.readouterr().err
