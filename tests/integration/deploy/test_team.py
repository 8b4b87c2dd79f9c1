"""A team's rollouts and audit log in PostgreSQL: two operators, on two hosts, on one database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy import adding
from edgepack.deploy.adding import share_device
from edgepack.deploy.audit import read_audit_log, record, verify_audit_log
from edgepack.deploy.audit_lines import Event, find_audit_log
from edgepack.deploy.fleet.bundles import load_bundles_by_target
from edgepack.deploy.fleet.rollout import start_rollback, start_rollout
from edgepack.deploy.fleet.selection import select_devices
from edgepack.deploy.fleet.store import PushOptions
from edgepack.deploy.operations import audited
from edgepack.deploy.rollouts import open_rollout_store
from edgepack.deploy.transfer import client
from edgepack.devices.inventory import (
    Device,
    LocalEntry,
    add_device,
    find_inventory,
    load_devices,
    load_inventory,
)
from edgepack.errors import BundleError, BusyError, DatabaseError, ProfileError, ToolError
from edgepack.project.profile import find_host_target

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.postgres_server import (
    postgres_databases,
    postgres_server,
    stop_server,
)

pytestmark = pytest.mark.slow(reason="starts a PostgreSQL server")

WRITERS, EACH = 8, 5
BEGIN = """
import os, socket, sys, time
socket.gethostname = lambda: os.environ["AS_HOST"]
from edgepack.deploy.audit import record
from edgepack.deploy.audit_lines import Event
from edgepack.deploy.rollouts import open_rollout_store
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[], str]]:
    with postgres_databases() as another:
        yield another


@pytest.fixture
def url(server: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a team's empty database, which the environment names."""
    found = server()
    monkeypatch.setenv("EDGEPACK_RESULTS", found)
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a device that is this machine, and a bundle for it."""
    monkeypatch.chdir(tmp_path)
    entry = LocalEntry(transport="local", target=find_host_target(), root=str(tmp_path / "root"))
    add_device(tmp_path / "devices.yaml", "board", entry)
    bundle = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(bundle, lambda manifest: manifest.update(target=find_host_target()))
    return bundle


def start(host: str, script: str, tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """Start a script as an operator on a host, with data of its own."""
    own = {"AS_HOST": host, "XDG_DATA_HOME": str(tmp_path / host)}
    argv = [sys.executable, "-c", BEGIN + script, *words]
    return subprocess.Popen(
        argv, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(child: subprocess.Popen[str]) -> str:
    said, problems = child.communicate(timeout=120)
    assert child.returncode == 0, problems
    return said


def edgepack(host: str, tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    return start(host, "from edgepack.cli.main import main; main()", tmp_path, *words)


def test_writers_on_two_hosts_lose_nothing_and_make_one_chain(url: str, tmp_path: Path) -> None:
    del url
    script = f"for n in range({EACH}): record(Event(action='push', device=sys.argv[1] + str(n)))"
    children = [
        start(host, script, tmp_path, f"{host}-{writer}-")
        for host in ("one", "two")
        for writer in range(WRITERS)
    ]
    for child in children:
        end(child)
    log = verify_audit_log()
    names = [f"{h}-{w}-{n}" for h in ("one", "two") for w in range(WRITERS) for n in range(EACH)]
    assert sorted(one.device for one in log.records) == sorted(names)
    assert all(one.device.startswith(one.host) for one in log.records)
    assert log.is_shared
    assert log.place.startswith("postgresql+psycopg://edgepack@/")
    assert not find_audit_log().exists()


def test_writer_that_is_killed_leaves_a_chain_that_goes_on(url: str, tmp_path: Path) -> None:
    script = "while True: record(Event(action='push', device='board'))"
    for _ in range(3):
        before = len(read_audit_log().records)
        child = start("one", script, tmp_path)
        while len(read_audit_log().records) < before + 3:
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.communicate()
    record(Event(action="push", device="last"))
    assert verify_audit_log().records[-1].device == "last"


def change(url: str, statement: str) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(statement)


def test_log_is_only_appended_to_and_who_does_otherwise_breaks_the_chain(url: str) -> None:
    for number in range(4):
        record(Event(action="push", device=f"board{number}"))
    head = verify_audit_log().digests[-1]
    altered = "UPDATE edgepack_audit SET line = replace(line, 'board1', 'board9')"
    for statement in (altered, "DELETE FROM edgepack_audit", "TRUNCATE edgepack_audit"):
        with pytest.raises(psycopg.Error, match="only appended to"):
            change(url, statement)
    assert verify_audit_log(head=head).digests[-1] == head
    change(url, "ALTER TABLE edgepack_audit DISABLE TRIGGER ALL")
    change(url, altered)
    with pytest.raises(BundleError, match="line 3 was not written after"):
        verify_audit_log()
    change(url, "DELETE FROM edgepack_audit WHERE number = 2")
    with pytest.raises(BundleError, match="line 2 was not written after"):
        verify_audit_log()


def test_record_when_the_database_dies_waits_in_the_file_and_is_taken_in_once(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with audited("push", "board"):
        monkeypatch.setenv("EDGEPACK_RESULTS", url.replace("host=", "host=/gone"))
    assert f"the record waits in {find_audit_log()}" in caplog.text
    assert len(read_audit_log(path=find_audit_log()).records) == 1
    with pytest.raises(ToolError, match="the team's database cannot be used"):
        read_audit_log()
    with pytest.raises(ToolError, match="the team's database"), audited("push", "never"):
        pytest.fail("what cannot be recorded began")
    monkeypatch.setenv("EDGEPACK_RESULTS", url)
    record(Event(action="push", device="later"))
    log = verify_audit_log()
    assert [one.device for one in log.records] == ["board", "later"]
    assert log.records[0].waited == read_audit_log(path=find_audit_log()).digests[0]
    record(Event(action="push", device="last"), find_audit_log())  # as if it had died again
    assert [one.device for one in verify_audit_log().records] == ["board", "later", "last"]
    assert Counter(one.device for one in verify_audit_log().records).most_common(1)[0][1] == 1


def test_server_that_does_not_answer_is_an_error_in_bounded_time_without_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        address = f"postgresql://me:hunter2@127.0.0.1:{port}/db?connect_timeout=2"
        monkeypatch.setenv("EDGEPACK_RESULTS", address)
        began = time.monotonic()
        with pytest.raises(DatabaseError, match="team's database") as caught:
            record_nothing()
    assert caught.value.transient  # so that a device of a rollout is pending
    assert time.monotonic() - began < 10
    assert "hunter2" not in str(caught.value) + repr(caught.value.__cause__)


def record_nothing() -> None:
    with audited("push", "board"):
        pytest.fail("it began")


HOLD = """
store = open_rollout_store()
with store.lock(int(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_rollout_begun_by_one_is_refused_to_the_other_while_held_and_resumed_after_a_kill(
    url: str, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del url
    first = edgepack("one", tmp_path, "push", str(here), "--device", "all", "--no-self-test")
    assert "1 done" in end(first)
    store = open_rollout_store()
    (begun,) = store.list_all().rollouts
    assert begun.by.endswith("@one")
    waiting = start_rollback("tiny", [load_devices()["board"]], store)
    child = start("one", HOLD, tmp_path, str(waiting.id))
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    assert run(["rollout", "resume", str(waiting.id)]) == 8
    refused = capsys.readouterr().err
    assert f"rollout {waiting.id} is being worked on by" in refused
    assert f"@one, process {child.pid}" in refused
    child.kill()
    child.communicate()
    resumed = edgepack("two", tmp_path, "rollout", "resume", str(waiting.id), "--json")
    said, _ = resumed.communicate(timeout=120)
    document = json.loads(said)
    assert document["devices"]["board"]["state"] == "failed"  # there is nothing before it
    assert [(one.host, one.action, one.result) for one in read_audit_log().records] == [
        ("one", "switch", "done"), ("one", "push", "done"), ("two", "rollback", "failed"),
    ]  # fmt: skip


def test_rollout_whose_bundle_lies_elsewhere_on_the_other_machine_is_resumed_with_it(
    url: str, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del url
    store, board = open_rollout_store(), load_devices()["board"]
    bundles = load_bundles_by_target([here])
    options = PushOptions(self_test=False)
    rollout = start_rollout(bundles, [board], store, options=options)
    moved, other = here.rename(tmp_path / "moved"), write_tiny_bundle(tmp_path / "other", size=9)
    change_manifest(other, lambda manifest: manifest.update(target=find_host_target()))
    words = ["rollout", "resume", str(rollout.id)]
    assert run(words) == 7
    assert f"edgepack rollout resume {rollout.id} --bundle DIR" in capsys.readouterr().err
    assert run([*words, "--bundle", str(other)]) == 7
    assert "has changed since" in capsys.readouterr().err
    assert "1 done" in end(edgepack("two", tmp_path, *words, "--bundle", str(moved)))
    assert run(["rollout", "resume", "--bundle", str(moved)]) == 2
    record = store.load(rollout.id)
    assert (record.devices["board"].state, record.bundles[board.target].path) == (
        "done", str(moved),
    )  # fmt: skip


def test_push_during_which_the_server_dies_is_done_and_recorded_in_the_file(
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with postgres_server() as url:
        monkeypatch.setenv("EDGEPACK_RESULTS", url)
        real = client.send_release

        def send_and_lose(*arguments: Any, **more: Any) -> client.PushedRelease:
            sent = real(*arguments, **more)
            stop_server(url)
            return sent

        monkeypatch.setattr(client, "send_release", send_and_lose)
        assert run(["push", str(here), "--device", "board", "--no-self-test"]) == 5
    said = capsys.readouterr().err
    assert "board is done; but rollout 1 could not store that: the team's database" in said
    release = (tmp_path / "root/tiny/current").readlink().name
    waiting = read_audit_log(path=find_audit_log()).records
    assert [(one.action, one.release) for one in waiting] == [
        ("switch", release), ("push", release),
    ]  # fmt: skip
    assert caplog.text.count("the record waits in") == 2


def test_rollouts_of_two_hosts_have_numbers_of_their_own(url: str, tmp_path: Path) -> None:
    del url
    script = """
from edgepack.deploy.fleet.schedule import RolloutSettings
from edgepack.deploy.fleet.store import RollbackOptions
store = open_rollout_store()
for _ in range(4):
    made = store.create("tiny", {"board": "host"}, RolloutSettings(), RollbackOptions(), {})
    print(made.id)
"""
    children = [start(host, script, tmp_path) for host in ("one", "two") for _ in range(WRITERS)]
    numbers = [int(line) for child in children for line in end(child).split()]
    assert len(set(numbers)) == 4 * 2 * WRITERS
    found = open_rollout_store().list_all()
    assert [one.id for one in found.rollouts] == sorted(numbers)
    assert not found.broken
    states = Counter(one.devices["board"].state for one in found.rollouts)
    assert states == {"superseded": len(numbers) - 1, "pending": 1}


def test_rollout_whose_lock_was_lost_stores_nothing_more(url: str) -> None:
    store = open_rollout_store()
    rollout = start_rollback("tiny", [load_devices()["local"]], store)
    with store.lock(rollout.id):
        with pytest.raises(BusyError), open_rollout_store().lock(rollout.id):
            pytest.fail("two hold it")
        change(url, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        other = rollout.model_copy(update={"project": "other"})
        with pytest.raises(ToolError, match="the team's database cannot be used"):
            store.save(other)
        with pytest.raises(ToolError, match="the lock of rollout 1 was lost"):
            store.save(other)
    assert store.load(rollout.id).project == "tiny"
    store.stop(rollout.id, "enough")
    assert store.load(rollout.id).stopped == "enough"
    with store.lock(rollout.id):
        store.save(rollout)


def test_inventory_of_a_team_is_seen_by_all_and_ones_own_file_goes_before_it(
    url: str, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del url, here
    entry = load_devices()["board"].entry
    assert run(["device", "share", "board"]) == 0
    assert run(["device", "share", "board"]) == 2
    assert "the team already has a device 'board'" in capsys.readouterr().err
    (tmp_path / "devices.yaml").unlink()
    assert load_devices()["board"].entry == entry
    listed = json.loads(end(edgepack("two", tmp_path, "device", "list", "--json")))
    assert listed["board"]["root"] == str(tmp_path / "root")
    own = LocalEntry(transport="local", target="raspberry-pi")
    add_device(tmp_path / "devices.yaml", "board", own)
    share_device(Device("other", own.model_copy(update={"tags": ["lab"]})))
    assert (load_devices()["board"].entry, [d.name for d in select_devices(["tag:lab"])]) == (
        own, ["other"],
    )  # fmt: skip
    assert run(["device", "remove", "other"]) == 0
    assert run(["device", "remove", "other"]) == 2
    assert "the team has no device 'other'" in capsys.readouterr().err
    assert sorted(load_devices()) == ["board", "local"]
    assert run(["device", "remove", "board"]) == 0
    assert load_devices()["board"].entry == own
    assert [(one.action, one.device, one.result) for one in read_audit_log().records] == [
        ("add", "board", "done"), ("add", "board", "failed"), ("add", "other", "done"),
        ("remove", "other", "done"), ("remove", "other", "failed"), ("remove", "board", "done"),
    ]  # fmt: skip


def test_device_when_added_in_a_team_is_the_teams(url: str, tmp_path: Path) -> None:
    with LoopbackServer(tmp_path / "server") as board:
        added = adding.add_device(
            "added",
            f"{board.user}@{board.host}",
            port=board.port,
            key=str(board.client_key_path),
            fingerprint=board.host_key_fingerprint,
            confirm=lambda _: False,
            ssh_config=os.devnull,
        )
    assert added.inventory == "the team's database"
    assert not find_inventory().exists()
    assert load_devices()["added"].entry == added.device.entry
    change(url, "UPDATE edgepack_devices SET entry = '{}'")
    with pytest.raises(ProfileError, match="the team's entry of the device cannot be read"):
        load_devices()


def test_boards_of_a_list_when_imported_are_the_teams(
    here: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's own file stays as it is, and the next import finds them there."""
    own = (tmp_path / "devices.yaml").read_text()
    with LoopbackServer(tmp_path / "server") as server:
        user, key, known = server.user, server.client_key_path, server.host_key_fingerprint
        lines = [f"b{n},{server.host},{server.port},{user},{key},{known}\n" for n in range(2)]
        path = tmp_path / "boards.csv"
        path.write_text("name,host,port,user,key,fingerprint\n" + "".join(lines))
        assert run(["device", "import", "--csv", str(path)]) == 0
        assert (tmp_path / "devices.yaml").read_text() == own
        assert sorted(load_inventory().devices) == ["b0", "b1", "board"]
        capsys.readouterr()
        assert run(["device", "import", "--csv", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["devices"]
    assert [one["result"]["was_there"] for one in found.values()] == [True, True]


def test_device_when_there_is_no_team_is_not_shared(here: Path) -> None:
    del here
    for command in ("share", "remove"):
        assert run(["device", command, "board"]) == 2
