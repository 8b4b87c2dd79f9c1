"""A board with dropbear and busybox, and nothing else: no Python, no coreutils, no bash."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from edgepack.cli.main import run
from edgepack.deploy.push import push, rollback
from edgepack.deploy.verify import verify_device
from edgepack.devices.harness import Harness
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, PythonMissingError, RemoteCommandError, UnreachableError
from edgepack.records.presets import PRESETS

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.boards import Board, tree, with_file
from tests.support.servers.dropbear_server import DropbearServer, require_dropbear
from tests.support.servers.fault_proxy import Fault, FaultProxy
from tests.support.servers.loopback import lives, ssh_device, wait_until

MIB = 1 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DropbearServer]:
    require_dropbear()
    with DropbearServer(tmp_path / "server", bare=True) as running:
        yield running


@pytest.fixture
def board(server: DropbearServer) -> Board:
    return Board(ssh_device(server, root="/data"), server.board)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return version_of(write_tiny_bundle(tmp_path / "bundle"), "1.0.0")


@pytest.fixture
def small_disk(server: DropbearServer) -> Iterator[Path]:
    """A disk of 4 MiB and 300 inodes at the board's ``/data``."""
    disk = server.board / "data"
    disk.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=300", "tmpfs", disk], check=True
    )
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def version_of(bundle: Path, version: str) -> Path:
    change_manifest(bundle, lambda manifest: manifest.update(version=version))
    return bundle


def hooked(board: Board, **hooks: Any) -> Board:
    return board.changed(**{name: ["sh", "-c", script] for name, script in hooks.items()})


def put_program(board: Board, name: str, script: str) -> None:
    path = board.at(f"/bin/{name}")
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def runs(word: str) -> bool:
    """Say whether a process of this machine, boards and all, has a word in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes().replace(b"\0", b" "):
                return True
    return False


def test_board_has_no_python_and_its_shell_is_busybox(board: Board) -> None:
    with connect(board.device) as transport:
        shell = transport.send(["readlink", "/proc/self/exe"], [], timeout_s=20)
        assert shell.stdout == b"/bin/busybox\n"
        with pytest.raises(PythonMissingError):
            transport.run(["true"], timeout_s=20)


def test_odd_paths_arrive_on_a_bare_board(board: Board, bundle: Path) -> None:
    names = ("-n", " a ", "files", "modes", "o\u2028o", "ä" * 60 + "/" + "b" * 200)
    for name in names:
        with_file(bundle, name.encode(), "755", name=name)
    first = board.push(bundle)
    assert tree(board.at(first.path)) == tree(bundle)
    for name in names:
        with_file(bundle, name.encode(), "644", name=name)
    second = board.push(bundle)
    assert tree(board.at(second.path)) == tree(bundle)
    assert tree(board.at(first.path)) != tree(bundle)
    assert second.bytes_sent < first.bytes_sent / 2


@pytest.mark.slow(reason="takes seconds")
def test_broken_link_leaves_no_trace_on_a_bare_board(
    board: Board, bundle: Path, tmp_path: Path
) -> None:
    first = board.push(bundle)
    large = write_tiny_bundle(tmp_path / "large", size=500)
    fault = Fault("cut", "to-server", 3 * MIB)
    with FaultProxy(board.port, fault=fault) as proxy, pytest.raises(DeviceError):
        board.changed(port=proxy.port).push(large)
    assert wait_until(lambda: not board.left_over())
    assert (board.current(), board.releases()) == (first.release, [first.release])
    assert tree(board.at(board.push(large).path)) == tree(large)


def test_only_what_a_board_lacks_has_to_fit(board: Board, small_disk: Path, bundle: Path) -> None:
    board.push(with_file(bundle, random.Random(1).randbytes(2 * MIB)))
    second = board.push(version_of(bundle, "2.0.0"))
    assert tree(small_disk / "tiny" / "current") == tree(board.at(second.path)) == tree(bundle)


def test_bundle_that_cannot_fit_is_refused_before_it_is_sent(
    board: Board, small_disk: Path, bundle: Path, tmp_path: Path
) -> None:
    first = board.push(bundle)
    large = write_tiny_bundle(tmp_path / "large", size=500)
    with FaultProxy(board.port) as proxy:
        with pytest.raises(DeviceError, match=r"no space left.* KiB are needed") as caught:
            board.changed(port=proxy.port).push(large)
        assert proxy.forwarded["to-server"] < MIB
    assert "free some" in caught.value.hint
    assert (board.current(), board.releases()) == (first.release, [first.release])
    assert tree(small_disk / "tiny" / "current") == tree(bundle)


def test_what_a_dead_push_left_on_a_full_disk_makes_room_for_the_next(
    board: Board, small_disk: Path, bundle: Path
) -> None:
    """The other push's folder stays as long as its process lives."""
    first = board.push(bundle)
    left = small_disk / "tiny" / "releases" / ".partial-0123456789abcdef-"
    large = version_of(with_file(bundle, random.Random(1).randbytes(2 * MIB)), "2.0.0")
    with subprocess.Popen(["sh", "-c", "sleep 100; : edgepack-lock"]) as other:
        held = Path(f"{left}{other.pid}")
        (held / "new").mkdir(parents=True)
        (held / "new" / "model").write_bytes(bytes(2 * MIB))
        with pytest.raises(DeviceError, match=r"no space left.* KiB are needed"):
            board.push(large)
        assert held.exists()
        other.kill()
    second = board.push(large)
    assert not held.exists()
    assert board.releases() == sorted([first.release, second.release])


@pytest.mark.parametrize("filling", ["blocks", "inodes"])
def test_disk_that_fills_up_meanwhile_leaves_the_release_before(
    board: Board, small_disk: Path, bundle: Path, filling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = board.push(bundle)
    from edgepack.deploy.transfer import shell_agent

    chunks = shell_agent.read_chunks

    def fill_up(path: Path) -> Iterator[bytes]:
        if filling == "blocks":
            with pytest.raises(OSError, match="No space left"):
                (small_disk / "filling").write_bytes(bytes(8 * MIB))
        else:
            with pytest.raises(OSError, match="No space left"):  # noqa: PT012
                for number in range(300):
                    (small_disk / f"filling-{number}").touch()
        return chunks(path)

    monkeypatch.setattr(shell_agent, "read_chunks", fill_up)
    for number in range(10):
        with_file(bundle, b"%d" % number * 100_000, name=f"new {number}")
    with pytest.raises(DeviceError, match="no space left"):
        board.push(bundle)
    monkeypatch.undo()
    assert (board.current(), board.releases()) == (first.release, [first.release])
    assert not board.left_over()
    for path in small_disk.glob("filling*"):
        path.unlink()
    assert tree(board.at(board.push(bundle).path)) == tree(bundle)


def test_release_that_is_removed_while_a_push_takes_files_from_it_is_done_without(
    board: Board, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = board.push(with_file(bundle, b"of the first", name="files/first"))
    with_file(bundle, b"another", name="files/first")
    board.push(version_of(bundle, "2.0.0"))
    from edgepack.deploy.transfer import shell_agent

    chunks = shell_agent.read_chunks

    def remove_first(path: Path) -> Iterator[bytes]:
        shutil.rmtree(board.at(first.path), ignore_errors=True)
        return chunks(path)

    monkeypatch.setattr(shell_agent, "read_chunks", remove_first)
    with_file(bundle, b"of the first", name="files/first")
    third = board.push(version_of(bundle, "3.0.0"))
    assert tree(board.at(third.path)) == tree(bundle)
    assert not board.left_over()


def test_release_that_is_removed_before_a_push_switches_to_it_is_sent_again(
    board: Board, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = board.push(bundle)
    board.push(version_of(bundle, "2.0.0"))
    from edgepack.deploy.transfer.shell_agent import ShellAgent

    send = ShellAgent._send

    def remove_first(agent: ShellAgent, operation: str, *rest: Any) -> Any:
        if operation == "push":
            shutil.rmtree(board.at(first.path), ignore_errors=True)
            monkeypatch.undo()
        return send(agent, operation, *rest)

    monkeypatch.setattr(ShellAgent, "_send", remove_first)
    board.push(version_of(bundle, "1.0.0"))
    assert board.current() == first.release
    assert tree(board.at(first.path)) == tree(bundle)


def test_login_that_prints_bytes_is_named(
    server: DropbearServer, board: Board, bundle: Path
) -> None:
    put_program(board, "chatty", "printf '\\377\\376 welcome\\n'; eval \"$SSH_ORIGINAL_COMMAND\"")
    keys = server.home / ".ssh" / "authorized_keys"
    keys.write_text(f'command="/bin/chatty" {keys.read_text()}')
    with pytest.raises(DeviceError, match=r"the device printed .* welcome") as caught:
        board.push(bundle)
    assert "must print nothing" in caught.value.hint
    # Who meets the line depends on what comes first: it, or the end of the missing Python; when
    # that end meets the next session, dropbear closes the session.
    met = r"begins with b'\\xff\\xfe w'|printed .* welcome|opens no session for a command"
    with pytest.raises(DeviceError, match=met):
        push(bundle, board.device, self_test=False)
    assert not board.project.exists() or board.releases() == []


def test_self_test_without_python_is_refused_before_anything_is_sent(
    board: Board, bundle: Path
) -> None:
    with pytest.raises(PythonMissingError, match=r"(?s)cannot be tried without.*libstdc") as caught:
        push(bundle, board.device)
    assert "--no-self-test" in caught.value.hint
    assert "edgepack device provision board" in caught.value.hint
    assert not board.project.exists()


@pytest.mark.slow(reason="takes seconds")
def test_hooks_run_without_python(board: Board, bundle: Path) -> None:
    hooks = hooked(
        board,
        after_switch="readlink /data/tiny/current >>/log; cat >>/log",
        health="grep -q version /data/tiny/current/manifest.json",
    )
    first = push(bundle, hooks.device, self_test=False).release
    second = push(version_of(bundle, "2.0.0"), hooks.device, self_test=False).release
    assert rollback("tiny", hooks.device).release == board.current() == first
    lines = board.at("/log").read_text().splitlines()
    assert lines == [f"releases/{one}" for one in (first, second, first)]
    actions = (board.project / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in actions] == [
        *("push", "switch") * 2,
        "rollback",
    ]


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize("hook", ["after_switch", "health"])
def test_release_that_fails_in_use_is_taken_back_without_python(
    board: Board, bundle: Path, hook: str
) -> None:
    first = push(bundle, board.device, self_test=False).release
    script = "grep -qF 1.0.0 /data/tiny/current/manifest.json || { echo broken >&2; exit 3; }"
    failing = hooked(board, **{hook: script})
    with pytest.raises(RemoteCommandError, match=f"{first} is current again") as caught:
        push(version_of(bundle, "2.0.0"), failing.device, self_test=False)
    assert "exit code 3" in caught.value.problem
    assert "| broken" in caught.value.problem
    assert board.current() == first


@pytest.mark.slow(reason="starts a server of its own")
def test_hook_that_hangs_is_stopped_with_what_it_started(board: Board, bundle: Path) -> None:
    first = push(bundle, board.device, self_test=False).release
    script = "grep -qF 1.0.0 /data/tiny/current/manifest.json || { sleep 4321 & sleep 4322; }"
    hanging = hooked(board, health=script).changed(hook_timeout_s=1.0)
    with pytest.raises(RemoteCommandError, match="took longer than 1 s"):
        push(version_of(bundle, "2.0.0"), hanging.device, self_test=False)
    assert board.current() == first
    assert wait_until(lambda: not runs("sleep 432"))


@pytest.mark.slow(reason="takes seconds")
def test_service_that_a_hook_starts_outlives_it_and_a_plain_child_does_not(
    board: Board, bundle: Path
) -> None:
    started = (
        "start-stop-daemon -S -b -m -p /pid -x /bin/sleep -- 6543; sleep 6544 >/dev/null 2>&1 &"
    )
    push(bundle, hooked(board, after_switch=started).device, self_test=False)
    assert wait_until(lambda: not runs("sleep 6544"))
    service = int(board.at("/pid").read_text())
    assert lives(service)
    os.kill(service, signal.SIGKILL)


def test_hook_is_stopped_when_the_link_breaks(server: DropbearServer, board: Board) -> None:
    def break_link() -> None:
        assert wait_until(lambda: runs("sleep 5433"))
        server.drop_connections()

    argv = ["sh", "-c", "sleep 5432 & sleep 5433"]
    breaking = threading.Thread(target=break_link)
    with connect(board.device) as transport:
        breaking.start()
        with pytest.raises(UnreachableError):
            transport.run(argv, timeout_s=60, supervisor="shell")
        breaking.join()
    assert wait_until(lambda: not runs("sleep 543"))


def test_hook_that_is_no_program_is_named(board: Board, bundle: Path) -> None:
    hooks = board.changed(health=["no-such-program"])
    with pytest.raises(RemoteCommandError, match=r"exit code 127\n.*'no-such-program'"):
        push(bundle, hooks.device, self_test=False)


@pytest.mark.slow(reason="takes seconds")
def test_command_line_pushes_to_a_bare_board(
    server: DropbearServer,
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    add = ["device", "add", "board", f"root@{server.host}", "--port", str(server.port)]
    add += ["--key", str(server.client_key_path), "--fingerprint", server.host_key_fingerprint]
    assert run(add) == 0
    assert "no Python" in capsys.readouterr().out
    assert run(["device", "check", "board"]) == DeviceError.exit_code
    assert "no libstdc++.so.6, which onnxruntime loads" in capsys.readouterr().err
    push = ["push", str(bundle), "--device", "board"]
    assert run(push) == DeviceError.exit_code
    assert "push with --no-self-test" in capsys.readouterr().err
    assert not (server.home / ".local/share/edgepack/tiny").exists()
    assert run([*push, "--no-self-test"]) == 0
    assert "bytes sent" in capsys.readouterr().out
    assert tree(server.home / ".local/share/edgepack/tiny/current") == tree(bundle)
    assert run([*push, "--no-self-test"]) == 0
    assert "was there already" in capsys.readouterr().out
    assert run(["rollback", "tiny", "--device", "board"]) == RemoteCommandError.exit_code
    assert "no release was current before" in capsys.readouterr().err


@pytest.mark.slow(reason="starts a server of its own")
def test_python_agent_and_harness_work_over_dropbear(tmp_path: Path, bundle: Path) -> None:
    require_dropbear()
    with DropbearServer(tmp_path / "server", bare=False) as server:
        board = Board(ssh_device(server, root=str(tmp_path / "root")), Path("/"))
        log = tmp_path / "log"
        hooks = board.changed(health=["sh", "-c", f"readlink {board.project}/current >>{log}"])
        first = push(bundle, hooks.device)
        assert first.variant == "cpu-int8-static"
        assert log.read_text() == f"releases/{first.release}\n"
        second = board.push(with_file(bundle, b"one file more"))
        assert 0 < second.bytes_sent < first.bytes_sent / 2
        assert tree(board.at(second.path)) == tree(bundle)
        assert board.push(bundle).already_there
        assert verify_device(board.device).list_problems() == []
        with connect(board.device) as transport:
            run = Harness(transport, second.path, "python3").measure("cpu-fp32", PRESETS["smoke"])
            assert len(run.latencies_ns) >= PRESETS["smoke"].iterations
            content = random.Random(1).randbytes(5 * MIB + 1)
            (tmp_path / "sent").write_bytes(content)
            there = PurePosixPath(tmp_path / "there")
            transport.put(tmp_path / "sent", there, timeout_s=60)
            transport.get(there, tmp_path / "back", timeout_s=60)
            assert (tmp_path / "back").read_bytes() == content
            assert transport.run(["cat", str(there)], timeout_s=60).stdout == content


@pytest.mark.slow(reason="takes seconds")
def test_programs_that_end_while_others_start_end_no_others(board: Board) -> None:
    with connect(board.device) as transport:
        for number in range(200):
            said = f"{number}".encode()
            with (
                transport.stream(["no-such-program"], timeout_s=10, supervised=False),
                transport.stream(["cat"], timeout_s=10, supervised=False) as stream,
            ):
                stream.write(said)
                stream.close_stdin()
                assert stream.wait().stdout == said
