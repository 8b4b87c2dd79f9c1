"""``push`` to several devices and ``rollout``, over real SSH on 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from edgepack.bundle.reading import load_bundle
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy import rollouts
from edgepack.deploy.fleet.store import RolloutStore
from edgepack.devices.inventory import Device
from edgepack.errors import UnreachableError

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.loopback import require_openssh, ssh_entry

NAMES = ("board-a", "board-b")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "dist" / "tiny-1.0.0-linux-x86-64")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, LoopbackServer]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(LoopbackServer(tmp_path / name)) for name in NAMES}


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


@pytest.fixture
def fleet(
    servers: dict[str, LoopbackServer],
    closed_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, dict[str, Any]]:
    """Two boards that answer and one that is off, all of them tagged ``lab``."""
    entries = {
        name: ssh_entry(server) | {"python": sys.executable, "tags": ["lab"]}
        for name, server in servers.items()
    }
    entries["off"] = entries["board-a"] | {"port": closed_port}
    monkeypatch.chdir(tmp_path)
    write_inventory(entries)
    return entries


def write_inventory(entries: dict[str, dict[str, Any]]) -> None:
    Path("devices.yaml").write_text(json.dumps({"schema_version": 1, "devices": entries}))


def current(server: LoopbackServer) -> str:
    return (server.home / ".local/share/edgepack/tiny/current").readlink().name


def push(*words: str) -> int:
    return run(["push", "dist", "--tries", "1", *words])


@pytest.mark.slow(reason="pushes to several devices several times")
def test_push_when_one_device_is_off_has_it_pending_until_a_resume_finds_it(
    fleet, servers, bundle, capsys
):
    release = load_bundle(bundle).digest[:16]
    assert push("--device", "tag:lab") == 8
    streams = capsys.readouterr()
    lines = streams.out.splitlines()
    assert lines[0] == "rollout 1 of tiny 1.0.0: 2 done, 1 pending"
    assert lines[1].startswith("off pending: ")
    assert "refuses connections" in lines[1]
    assert lines[2] == "to go on: edgepack rollout resume 1"
    assert "off: pending: " in streams.err
    assert "board-a: done: " in streams.err
    assert {current(server) for server in servers.values()} == {release}

    assert run(["rollout", "resume"]) == 8
    write_inventory(fleet | {"off": fleet["board-a"]})
    assert run(["rollout", "resume", "1"]) == 0
    assert "3 done" in capsys.readouterr().out
    assert run(["rollout", "resume", "1"]) == 0
    assert run(["rollout", "resume"]) == 0
    assert capsys.readouterr().out.endswith("nothing is pending\n")


class Cutting(LoopbackServer):
    """Cuts the jump host's connections when a push has begun on a board."""

    jump: LoopbackServer
    cuts = 1

    def start(self, command: str) -> subprocess.Popen[bytes]:
        if "edgepack_releases" in command and self.cuts:
            self.cuts -= 1
            self.jump.drop_connections()
        return super().start(command)


@pytest.fixture
def behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cutting]:
    """A board that is reached through a jump host, in the inventory as ``far``."""
    require_openssh()
    monkeypatch.chdir(tmp_path)
    with LoopbackServer(tmp_path / "jump") as jump, Cutting(tmp_path / "board") as board:
        board.jump = jump
        (tmp_path / "known").write_text(f"{jump.known_hosts_line}\n{board.known_hosts_line}\n")
        (tmp_path / "config").write_text(
            f"Host gate\n HostName {jump.host}\n Port {jump.port}\n User {jump.user}\n"
            f" IdentityFile {jump.client_key_path}\n"
            f"Host {board.host}\n ProxyJump gate\n"
            f"Host *\n UserKnownHostsFile {tmp_path}/known\n"
        )
        entry = ssh_entry(board) | {"python": sys.executable, "host_key": None}
        write_inventory({"far": entry | {"ssh_config": str(tmp_path / "config")}})
        yield board


@pytest.mark.parametrize("tries", [1, 2])
def test_push_when_the_jump_host_is_lost_meanwhile_is_tried_again_or_pending(
    behind: Cutting, bundle: Path, capsys: pytest.CaptureFixture[str], tries: int
) -> None:
    words = ["push", "dist", "--no-self-test", "--device", "all", "--tries", str(tries)]
    assert run(words) == (8 if tries == 1 else 0)
    streams = capsys.readouterr()
    assert "the connection was lost" in streams.err
    assert "Traceback" not in streams.err
    if tries == 1:
        assert "far pending: the connection was lost" in streams.out
        assert run(["rollout", "resume"]) == 0
    assert current(behind) == load_bundle(bundle).digest[:16]


@pytest.mark.parametrize("kind", [EOFError, KeyboardInterrupt])
def test_push_when_a_device_meets_a_bug_reports_it_and_does_the_others(
    fleet: dict[str, Any],
    bundle: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    real = rollouts.push_as_asked

    def push_or_stumble(bundle: Path, device: Device, *rest: Any, **names: Any) -> Any:
        if device.name == "off":
            raise kind
        return real(bundle, device, *rest, **names)

    monkeypatch.setattr(rollouts, "push_as_asked", push_or_stumble)
    assert push("--device", "all", "--no-self-test") == 70
    streams = capsys.readouterr()
    assert "2 done, 1 failed" in streams.out
    assert f"{kind.__name__}" in streams.err
    assert "please report it" in streams.err


@pytest.mark.slow(reason="takes seconds")
def test_push_when_json_is_asked_has_every_devices_outcome(fleet, bundle, capsys):
    write_inventory(fleet | {"jetson": fleet["board-b"] | {"target": "jetson"}})
    assert push("--device", "all", "--json") == 9
    document = json.loads(capsys.readouterr().out)
    assert {name: record["state"] for name, record in document["devices"].items()} == {
        "board-a": "done",
        "board-b": "done",
        "jetson": "failed",
        "off": "pending",
    }
    assert document["devices"]["board-a"]["bytes_sent"] > 0
    assert document["bundles"]["linux-x86-64"]["digest"] == load_bundle(bundle).digest
    assert run(["rollout", "status", "--json"]) == 9
    assert json.loads(capsys.readouterr().out) == document


def test_push_when_a_device_does_not_let_us_in_is_tried_once_and_failed(
    fleet, servers, bundle, capsys
):
    wrong = fleet["board-a"] | {"key": str(servers["board-b"].client_key_path)}
    write_inventory(fleet | {"board-a": wrong})
    assert run(["push", "dist", "--device", "board-a", "--device", "board-b"]) == 9
    record = RolloutStore().load(1).devices["board-a"]
    assert (record.state, record.tries) == ("failed", 1)
    assert "refuses the login" in record.problem
    assert RolloutStore().load(1).devices["board-b"].state == "done"


def test_push_when_the_canary_fails_stops_and_stays_stopped(fleet, servers, bundle, capsys):
    wrong = "SHA256:" + "A" * 43
    write_inventory(fleet | {"board-a": fleet["board-a"] | {"host_key": wrong}})
    assert push("--device", "tag:lab", "--canary", "1") == 9
    assert "stopped: 1 of the 1 devices of wave 1 failed" in capsys.readouterr().out
    assert run(["rollout", "resume"]) == 0
    assert run(["rollout", "resume", "1"]) == 9
    assert not (servers["board-b"].home / ".local").exists()


def test_push_to_one_device_prints_its_release_and_its_own_error(fleet, bundle, capsys):
    assert run(["push", str(bundle), "--device", "board-a"]) == 0
    streams = capsys.readouterr()
    release = load_bundle(bundle).digest[:16]
    assert streams.out.startswith("board-a: /")
    assert f"{release} is current (" in streams.out
    assert run(["push", str(bundle), "--device", "board-a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["already_there"] is True
    assert run(["push", str(bundle), "--device", "off"]) == 8
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "error: off: " in streams.err
    assert "it is pending" in streams.err


@pytest.mark.slow(reason="pushes to several devices several times")
def test_abort_when_devices_are_pending_lets_nothing_more_start(fleet, bundle, capsys):
    assert push("--device", "off", "--device", "board-a") == 8
    assert run(["rollout", "abort"]) == 0
    capsys.readouterr()
    write_inventory(fleet | {"off": fleet["board-b"]})
    assert run(["rollout", "resume"]) == 0
    assert capsys.readouterr().out == "nothing is pending\n"
    assert run(["rollout", "status", "1"]) == 8
    assert "1 done, 1 pending; stopped: edgepack rollout abort" in capsys.readouterr().out
    assert run(["rollout", "abort"]) == 2


@pytest.mark.slow(reason="pushes to several devices several times")
def test_resume_when_one_rollout_cannot_go_on_still_does_the_others(fleet, bundle, capsys):
    assert push("--device", "off", "--device", "board-a") == 8
    other = write_tiny_bundle(Path("other"))
    change_manifest(other, lambda manifest: manifest.update(name="other"))
    write_inventory(fleet | {"off-b": fleet["off"]})
    assert run(["push", "other", "--device", "off-b", "--device", "off", "--tries", "1"]) == 8
    change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))
    write_inventory(dict.fromkeys(("off", "off-b", "board-a"), fleet["board-b"]))
    capsys.readouterr()
    assert run(["rollout", "resume"]) == 7
    streams = capsys.readouterr()
    assert "has changed since rollout 1 began" in streams.err
    assert streams.out == "rollout 2 of other 1.0.0: 2 done\n"
    assert run(["rollout", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.slow(reason="pushes to several devices several times")
def test_push_when_stderr_is_a_terminal_shows_a_table_there_and_the_summary_on_stdout(
    fleet: dict[str, dict[str, Any]], bundle: Path
) -> None:
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "edgepack", "push", "dist", "--device", "all", "--tries", "1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while block := os.read(ours, 1 << 16):
                shown += block
        os.close(ours)
        assert process.stdout is not None
        printed = process.stdout.read().decode()
        assert process.wait(60) == 8
    assert printed.startswith("rollout 1 of tiny 1.0.0: 2 done, 1 pending\n")
    last = [line for line in shown.decode().splitlines() if line.startswith("│")][-3:]
    states = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in last}
    assert states == {"board-a": "done", "board-b": "done", "off": "pending"}


@pytest.mark.slow(reason="pushes to several devices several times")
def test_resume_when_the_push_left_the_self_test_out_leaves_it_out_too(
    fleet: dict[str, dict[str, Any]], bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, float]] = []

    def deploy(_: Path, device: Device, *, self_test: bool, wait_s: float, **__: object):
        asked.append((self_test, wait_s))
        raise UnreachableError("it is off", hint="h", where=device.name)

    monkeypatch.setattr(rollouts, "push", deploy)
    assert push("--device", "off", "--no-self-test", "--wait", "3") == 8
    assert run(["rollout", "resume"]) == 8
    assert len(asked) >= 2
    assert set(asked) == {(False, 3.0)}


def test_push_when_the_warm_up_is_longer_than_the_deadline_is_refused_before_anything(
    fleet: dict[str, dict[str, Any]], bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push("--device", "tag:lab", "--warm-up", "100", "--deadline", "50") == 2
    assert "--warm-up is 100" in capsys.readouterr().err
    assert RolloutStore().list_all().rollouts == []


@pytest.mark.slow(reason="pushes to several devices several times")
@pytest.mark.parametrize(
    ("words", "seconds"),
    [((), 900.0), (("--deadline", "50"), 50.0), (("--warm-up", "77"), 77.0)],
)
def test_resume_when_the_warm_up_was_limited_limits_it_too(
    fleet: dict[str, dict[str, Any]],
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    seconds: float,
) -> None:
    asked: list[float] = []

    def deploy(_: Path, device: Device, *, warm_up_s: float, **__: object):
        asked.append(warm_up_s)
        raise UnreachableError("it is off", hint="h", where=device.name)

    monkeypatch.setattr(rollouts, "push", deploy)
    assert push("--device", "off", *words) == 8
    assert run(["rollout", "resume"]) == 8
    assert len(asked) >= 2
    assert set(asked) == {seconds}


def test_push_when_json_is_asked_says_what_the_loader_chose_and_how_long_that_took(
    fleet: dict[str, dict[str, Any]], bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push("--device", "board-a", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["variant"] == "cpu-int8-static"
    assert document["warm_up_s"] > 0
    record = RolloutStore().load(1).devices["board-a"]
    assert (record.variant, record.warm_up_s) == ("cpu-int8-static", document["warm_up_s"])
