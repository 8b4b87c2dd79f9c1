"""The device-side supervisor, run as a device runs it: as a program, by its own Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from edgepack.base.resources import find_ondevice_dir

from tests.support.servers.loopback import lives, wait_until

SOURCE = (find_ondevice_dir() / "agent/edgepack_supervisor.py").read_text(encoding="utf-8")
SLEEP = 'echo $$ > "$1"; echo ready; exec sleep 600'


def start(mode: str, *argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-IS", "-c", SOURCE, mode, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def start_sleep(mode: str, tmp_path: Path) -> tuple[subprocess.Popen[bytes], int]:
    supervisor = start(mode, "sh", "-c", SLEEP, "sh", str(tmp_path / "pid"))
    assert supervisor.stdout
    assert supervisor.stdout.readline() == b"ready\n"
    return supervisor, int((tmp_path / "pid").read_text())


def end(supervisor: subprocess.Popen[bytes]) -> int:
    supervisor.communicate(timeout=20)
    return supervisor.returncode


def test_command_ends_with_the_supervisors_stdin(tmp_path: Path) -> None:
    supervisor, pid = start_sleep("--run", tmp_path)
    assert end(supervisor) == 128 + signal.SIGTERM
    assert not lives(pid)


def test_bytes_on_stdin_do_not_end_the_command(tmp_path: Path) -> None:
    supervisor, pid = start_sleep("--run", tmp_path)
    assert supervisor.stdin
    supervisor.stdin.write(b"still here\n")
    supervisor.stdin.flush()
    assert lives(pid)
    end(supervisor)


def test_streaming_command_ends_when_nobody_reads_any_more(tmp_path: Path) -> None:
    supervisor, pid = start_sleep("--stream", tmp_path)
    assert supervisor.stdin
    assert supervisor.stdout
    supervisor.stdin.close()
    assert supervisor.poll() is None
    supervisor.stdout.close()
    assert supervisor.wait(20) == 128 + signal.SIGTERM
    assert not lives(pid)
    assert supervisor.stderr
    supervisor.stderr.close()


def test_command_ends_with_a_signal_to_the_supervisor(tmp_path: Path) -> None:
    supervisor, pid = start_sleep("--run", tmp_path)
    supervisor.terminate()
    assert supervisor.wait(20) == 128 + signal.SIGTERM
    assert wait_until(lambda: not lives(pid))
    end(supervisor)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_exit_code_is_the_shells(script: str, code: int) -> None:
    supervisor = start("--stream", "sh", "-c", script)
    assert end(supervisor) == code


def test_program_that_is_not_there_or_no_program_has_the_shells_codes(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    assert end(start("--run", "/no/such/program")) == 127
    assert end(start("--run", str(tmp_path / "text"))) == 126


@pytest.mark.parametrize("name", ["edgepack_supervisor.py", "edgepack_agent.py"])
def test_programs_for_devices_parse_as_python_3_8(name: str) -> None:
    import ast

    source = (find_ondevice_dir() / "agent" / name).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
    assert len(os.fsencode(source)) < 1 << 17  # Linux takes no longer argument
