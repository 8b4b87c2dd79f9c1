"""Every transport does the same things in the same way."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

import pytest
from edgepack.demo.server import LoopbackServer
from edgepack.devices import pipes as pipes_module
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.ssh.loop import NAME
from edgepack.devices.transport import CommandResult, Stream, Transport
from edgepack.devices.transports import TRANSPORTS, connect
from edgepack.errors import RemoteCommandError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.servers.labgrid_lab import labgrid_device, write_client
from tests.support.servers.loopback import lives, ssh_device, wait_until

Run = Callable[..., CommandResult]


def count_threads() -> int:
    """Count the threads, without those of the loop that all connections of a process share."""
    return sum(not thread.name.startswith(NAME) for thread in threading.enumerate())


@pytest.fixture(params=sorted(TRANSPORTS))
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transport]:
    before = count_threads()
    if request.param == "local":
        device = Device("here", LocalEntry(transport="local", target="linux-x86-64"))
        with connect(device) as connected:
            yield connected
    elif request.param == "ssh":
        with (
            LoopbackServer(tmp_path / "server") as server,
            connect(ssh_device(server, python=sys.executable)) as connected,
        ):
            yield connected
    elif request.param == "labgrid":
        with (
            LoopbackServer(tmp_path / "server") as server,
            connect(labgrid_device(server, write_client(tmp_path / "server", server))) as connected,
        ):
            yield connected
    else:
        pytest.fail(f"the transport {request.param} has no case here")
    assert wait_until(lambda: count_threads() <= before)


@pytest.fixture(params=["python", "shell"])
def run(request: pytest.FixtureRequest, transport: Transport) -> Run:
    if request.param == "shell" and shutil.which("setsid") is None:
        pytest.skip("there is no setsid")
    return partial(transport.run, supervisor=request.param)


def test_run_returns_both_outputs_and_the_exit_code(run: Run) -> None:
    result = run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=20)
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert result.argv == ("sh", "-c", "echo out; echo err >&2; exit 3")


def test_run_has_an_empty_stdin(run: Run) -> None:
    assert run(["cat"], timeout_s=20).stdout == b""


@pytest.mark.parametrize(
    ("script", "code"), [("kill -KILL $$", 137), ("kill -TERM $$", 143), ("exit 255", 255)]
)
def test_exit_code_is_the_shells_when_a_signal_ends_it(run: Run, script: str, code: int) -> None:
    assert run(["sh", "-c", script], timeout_s=20).exit_code == code


def test_run_says_127_when_there_is_no_such_program(run: Run) -> None:
    result = run(["no-such-program"], timeout_s=20)
    assert result.exit_code == 127
    assert b"no-such-program" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
def test_run_says_127_when_a_folder_of_path_may_not_be_entered(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    monkeypatch.setenv("PATH", f"{closed}:{os.environ['PATH']}")
    result = run(["no-such-program"], timeout_s=20)
    assert result.exit_code == 127
    assert b"no-such-program" in result.stderr
    assert run(["sh", "-c", "exit 126"], timeout_s=20).exit_code == 126


def test_stderr_lines_come_in_order_while_the_command_runs(run: Run) -> None:
    lines: list[str] = []
    script = "echo one >&2; echo two >&2; printf three >&2"
    run(["sh", "-c", script], timeout_s=20, on_stderr=lines.append)
    assert lines == ["one", "two", "three"]


def test_output_that_is_not_utf8_arrives_as_it_is(run: Run) -> None:
    result = run(["printf", r"\377\376a"], timeout_s=20)
    assert result.stdout == b"\xff\xfea"
    assert result.text == "\ufffd\ufffda"


def test_large_output_arrives_whole(run: Run) -> None:
    result = run(["head", "-c", "5000000", "/dev/zero"], timeout_s=60)
    assert result.stdout == bytes(5_000_000)


def test_run_is_stopped_when_it_prints_too_much(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes_module, "MAX_OUTPUT_BYTES", 1 << 16)
    with pytest.raises(RemoteCommandError, match="printed more than"):
        run(["cat", "/dev/zero"], timeout_s=60)


@pytest.mark.slow(reason="waits for deadlines")
def test_timeout_kills_the_whole_process_group(run: Run, tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/a; echo $$ > {tmp_path}/b; wait"
    with pytest.raises(RemoteCommandError, match="took longer than 1 s"):
        run(["sh", "-c", script], timeout_s=1)
    pids = [int((tmp_path / name).read_text()) for name in ("a", "b")]
    assert wait_until(lambda: not any(lives(pid) for pid in pids))


@pytest.mark.slow(reason="waits for deadlines")
def test_timeout_kills_what_ignores_sigterm(run: Run, tmp_path: Path) -> None:
    script = f"trap '' TERM HUP INT; echo $$ > {tmp_path}/pid; while :; do sleep 1; done"
    with pytest.raises(RemoteCommandError, match="took longer"):
        run(["sh", "-c", script], timeout_s=1)
    pid = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: not lives(pid))


@pytest.mark.slow(reason="waits for deadlines")
def test_leftover_children_are_killed_when_the_command_ends(run: Run, tmp_path: Path) -> None:
    script = f"sleep 600 >/dev/null 2>&1 & echo $! > {tmp_path}/pid"
    assert run(["sh", "-c", script], timeout_s=20).exit_code == 0
    pid = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: not lives(pid))


@pytest.mark.skipif(shutil.which("setsid") is None, reason="there is no setsid")
def test_telemetry_is_off_in_every_command(transport: Transport) -> None:
    argv = ["sh", "-c", "echo $ORT_DISABLE_TELEMETRY"]
    with transport.stream(argv, timeout_s=20) as stream:
        streamed = stream.wait().text
    sent = transport.send(argv, [], timeout_s=20).text
    ran = transport.run(argv, timeout_s=20).text
    bare = transport.run(argv, timeout_s=20, supervisor="shell").text
    assert [streamed, sent, ran, bare] == ["1\n"] * 4


def test_send_feeds_stdin_and_returns_what_came_back(transport: Transport) -> None:
    chunks = [os.urandom(100_000) for _ in range(30)]
    assert transport.send(["cat"], chunks, timeout_s=60).stdout == b"".join(chunks)


def test_send_returns_the_exit_code_when_the_program_stops_reading(transport: Transport) -> None:
    chunks = [bytes(1 << 20)] * 20
    result = transport.send(["sh", "-c", "echo full >&2; exit 28"], chunks, timeout_s=60)
    assert (result.exit_code, result.stderr) == (28, b"full\n")


@pytest.mark.slow(reason="waits for deadlines")
def test_send_is_stopped_when_it_takes_too_long(transport: Transport) -> None:
    with pytest.raises(RemoteCommandError, match=r"took longer than 0\.5 s"):
        transport.send(["sh", "-c", "cat > /dev/null; sleep 3"], [b"x"], timeout_s=0.5)


def test_stream_talks_both_ways(transport: Transport) -> None:
    with transport.stream(["cat"], timeout_s=20) as stream:
        stream.write(b"first")
        assert stream.read(5) == b"first"
        stream.write(b"second")
        stream.close_stdin()
        assert stream.read(100) == b"second"
        assert stream.wait().exit_code == 0


def write_on(stream: Stream) -> None:
    """Write until it fails: a server throws away what comes before it has seen a program end."""
    for _ in range(64):
        stream.write(bytes(16 << 20))


def test_stream_write_fails_with_the_programs_words_when_it_ended(transport: Transport) -> None:
    argv = ["sh", "-c", "echo no model >&2; exit 4"]
    with transport.stream(argv, timeout_s=20) as stream:
        stream.read(1)
        with pytest.raises(RemoteCommandError, match=r"exit code 4(.|\n)*no model"):
            write_on(stream)


def test_stream_keeps_what_was_printed_when_a_write_fails(transport: Transport) -> None:
    with transport.stream(["sh", "-c", "echo answer; exit 0"], timeout_s=20) as stream:
        with pytest.raises(RemoteCommandError, match="before it read everything"):
            write_on(stream)
        assert stream.read(3) == b"ans"
        assert stream.read(100) == b"wer\n"
        assert stream.wait().exit_code == 0


def test_stream_read_is_stopped_when_nothing_comes(transport: Transport) -> None:
    with (
        transport.stream(["sleep", "1"], timeout_s=0.2) as stream,
        pytest.raises(RemoteCommandError, match=r"took longer than 0\.2 s"),
    ):
        stream.read(1)


@pytest.mark.slow(reason="waits for deadlines")
def test_a_hanging_streamed_program_is_killed_when_its_context_is_left(
    transport: Transport, tmp_path: Path
) -> None:
    script = f"echo $$ > {tmp_path}/pid; echo ready; exec sleep 600"
    with transport.stream(["sh", "-c", script], timeout_s=20) as stream:
        assert stream.read(6) == b"ready\n"
        pid = int((tmp_path / "pid").read_text())
        assert lives(pid)
    assert wait_until(lambda: not lives(pid))


def test_put_and_get_copy_a_file(transport: Transport, tmp_path: Path) -> None:
    there = PurePosixPath(tmp_path) / "name with 'quotes' and $HOME"
    for content in (os.urandom(300_000), b""):
        (tmp_path / "local").write_bytes(content)
        transport.put(tmp_path / "local", there, timeout_s=60)
        transport.get(there, tmp_path / "back", timeout_s=60)
        assert (tmp_path / "back").read_bytes() == content
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [
        "back",
        "local",
        there.name,
    ]


def test_get_leaves_nothing_when_the_file_is_missing(transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(RemoteCommandError, match="No such file"):
        transport.get(PurePosixPath("/no/such/file"), tmp_path / "here" / "f", timeout_s=20)
    assert list((tmp_path / "here").iterdir()) == []


def test_put_leaves_nothing_when_the_folder_is_missing(
    transport: Transport, tmp_path: Path
) -> None:
    (tmp_path / "local").write_bytes(b"x")
    with pytest.raises(RemoteCommandError, match="copying 'local'"):
        transport.put(tmp_path / "local", PurePosixPath("/no/such/folder/f"), timeout_s=20)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
AWKWARD = ["", " ", "a'b", '"', "$HOME", "`id`", "\\", "*", "a\nb", "-n", "--", "ünï", "!x", "~"]


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(words=st.lists(WORDS, max_size=8))
def test_any_argv_arrives_unchanged(transport: Transport, words: list[str]) -> None:
    words = [*AWKWARD, *words]
    result = transport.send(["printf", r"%s\0", *words], [], timeout_s=20)
    assert result.stdout == b"".join(word.encode() + b"\0" for word in words)
