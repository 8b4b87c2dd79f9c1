"""How a device's Python takes a program from stdin."""

from __future__ import annotations

import subprocess
import sys

from edgepack.devices.programs import BOOTSTRAP

PROGRAM = b"import sys; print(sys.argv[1:], sys.stdin.buffer.read())"


def run(sent: bytes, *before: str) -> subprocess.CompletedProcess[bytes]:
    sizes = ",".join([*before, f"program:{len(PROGRAM)}"])
    argv = [sys.executable, "-IS", "-c", BOOTSTRAP, sizes, "a"]
    return subprocess.run(argv, input=sent, capture_output=True, timeout=60, check=False)


def test_program_when_more_comes_behind_it_is_left_all_of_that():
    assert run(PROGRAM + b"rest").stdout == b"['a'] b'rest'\n"


def test_program_when_it_has_modules_finds_them_in_their_order():
    program = b"import two; print(two.one.VALUE)".ljust(len(PROGRAM))
    sent = b"VALUE = 3\n" + b"import one\n" + program
    assert run(sent, "one:10", "two:11").stdout == b"3\n"


def test_program_when_it_is_cut_off_does_not_run():
    done = run(PROGRAM[:20])
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"cut off" in done.stderr
