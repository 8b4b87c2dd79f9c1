from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path

import pytest
from edgepack.base.processes import Workers, run_program, run_supervised, running
from edgepack.errors import BugError, ModelError, ToolError

from tests.support.doubles import worker_tasks
from tests.support.servers.loopback import lives, wait_until

SLEEPER = (
    "import os, sys, time, pathlib\n"
    "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
    "time.sleep(60)\n"
)


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_tasks.__file__).parents[3]))
    with Workers(1) as pool:
        yield pool


@pytest.mark.parametrize("run", [run_program, run_supervised])
def test_program_when_it_takes_too_long_is_killed(tmp_path, run):
    mark = tmp_path / "pid"
    with pytest.raises(ToolError, match="took longer than 1 s"):
        run([sys.executable, "-c", SLEEPER, str(mark)], timeout_s=1)
    assert wait_until(lambda: not lives(int(mark.read_text())))


@pytest.mark.parametrize("run", [run_program, run_supervised])
def test_program_when_it_fails_gives_code_and_last_lines(run):
    script = "import sys; sys.stderr.write('why\\n'); print('out'); sys.exit(3)"
    result = run([sys.executable, "-c", script], timeout_s=30)
    assert (result.exit_code, result.text.strip()) == (3, "out")
    assert result.last_lines == "\n  | why"


def test_program_beside_when_its_group_may_not_be_signalled_any_more_is_left(monkeypatch):
    kill = os.killpg

    def refuse_once_ended(group: int, number: int) -> None:
        """Do as macOS does, where only ended processes that nobody has waited for are left."""
        kill(group, number)
        monkeypatch.setattr(os, "killpg", refuse)

    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse_once_ended)
    with running([sys.executable, "-c", "import time; time.sleep(60)"]) as program:
        pass
    assert program.child.returncode == -9


def test_program_when_missing_says_which():
    with pytest.raises(ToolError, match="cannot run '/no/such/program'"):
        run_program(["/no/such/program"], timeout_s=5)


def test_worker_when_it_crashes_says_how_and_the_next_call_works(workers):
    with pytest.raises(ToolError, match="signal 6\n") as caught:
        workers.call(worker_tasks.crash)
    assert "last words" in str(caught.value)
    assert workers.call(worker_tasks.environment, "ORT_DISABLE_TELEMETRY") == "1"


@pytest.mark.parametrize("ends", ["crashes", "is killed"])
def test_worker_when_it_ends_early_leaves_no_temporary_files(tmp_path, monkeypatch, ends):
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_tasks.__file__).parents[3]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    seen = []

    def stop(*_):
        seen.extend(path.name for path in tmp_path.rglob("*"))
        raise KeyboardInterrupt

    def start():
        with Workers(1) as pool:
            pool.call(worker_tasks.leave_files, ends, on_progress=stop)

    with pytest.raises(KeyboardInterrupt if ends == "is killed" else ToolError):
        start()
    assert ends == "crashes" or any(name.startswith("left-") for name in seen)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc's malloc")
def test_worker_when_it_frees_large_blocks_gives_them_back_to_the_system(workers):
    assert workers.call(worker_tasks.resident_after_large_blocks) < 64 << 20


def test_worker_when_it_refuses_raises_the_same_error_here(workers):
    with pytest.raises(ModelError) as caught:
        workers.call(worker_tasks.refuse)
    assert (caught.value.problem, caught.value.where) == ("no", "here")


def test_worker_when_its_function_reports_progress_tells_it_before_the_answer(workers):
    told = []
    assert workers.call(worker_tasks.count, 500, on_progress=lambda *far: told.append(far)) == 500
    assert told[-1] == (500, 500)
    assert told == sorted(told)
    assert len(told) < 500, "a few times a second at most"
    assert workers.call(worker_tasks.count, 3) == 3, "nobody has to listen"
    assert worker_tasks.count(2) == 2, "nor need there be a worker"


def test_worker_when_nobody_takes_its_progress_does_not_answer_the_next_call(workers):
    def refuse(done: int, total: int) -> None:
        raise ValueError(f"{done} of {total}")

    with pytest.raises(ValueError, match="3"):
        workers.call(worker_tasks.count, 3, on_progress=refuse)
    assert workers.call(worker_tasks.count, 4) == 4


def test_worker_when_it_has_a_bug_or_cannot_import_shows_the_traceback(workers, monkeypatch):
    with pytest.raises(BugError, match="ZeroDivisionError"):
        workers.call(divmod, 1, 0)
    monkeypatch.setattr(worker_tasks.refuse, "__module__", "no_such_module")
    monkeypatch.setitem(sys.modules, "no_such_module", worker_tasks)
    with pytest.raises(BugError, match="No module named 'no_such_module'"):
        workers.call(worker_tasks.refuse)


def test_call_when_the_context_was_left_starts_no_process():
    with Workers(1) as workers:
        pass
    with pytest.raises(ToolError, match="was stopped"):
        workers.call(os.getpid)
