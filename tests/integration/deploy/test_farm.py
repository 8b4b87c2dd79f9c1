"""The farm's judge finds what is planted, and exit codes are held to what happened."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.farm import ground
from tests.farm.judge import Circumstances, find_command_problems
from tests.farm.planting import PLANTS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow(reason="lets a farm stand")
def test_judge_finds_each_thing_that_is_planted() -> None:
    if reason := ground.explain_lack():
        pytest.skip(reason)
    argv = [sys.executable, "-m", "tests.farm.run", "--no-emulation", "--boards", "6"]
    argv += ["--rounds", "1", "--patience", "3"]
    for name in PLANTS:
        argv += ["--plant", name]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    found = set(re.findall(r"VIOLATION \[([^]]+)\]", done.stdout))
    assert found >= set(PLANTS), done.stdout


def command(what: str, code: int, stdout: str = "", stderr: str = "", **more: Any) -> Any:
    """A command that has ended, on one board."""
    devices = more.pop("devices", [])
    board = SimpleNamespace(name="board-01", kind="openssh-python")
    return SimpleNamespace(
        what=what,
        exit_code=code,
        killed=False,
        boards=[board],
        stdout=stdout,
        stderr=stderr,
        read_devices=lambda: devices,
        describe=lambda: "a command",
        **more,
    )


QUIET = Circumstances(frozenset(), frozenset(), crowded=False)
DISTURBED = Circumstances(frozenset({"board-01"}), frozenset(), crowded=False)
MEASURED = Circumstances(frozenset(), frozenset({"board-01"}), crowded=False)
LEASED = [("board-01", "pending", "it is leased to somebody")]


@pytest.mark.parametrize(
    ("ended", "around", "check"),
    [
        (command("push", 0), QUIET, ""),
        (command("push", 8, devices=LEASED), MEASURED, ""),
        (command("push", 8, devices=LEASED), QUIET, "undisturbed"),
        (command("push", 9), DISTURBED, ""),
        (command("push", 9), QUIET, "undisturbed"),
        (command("push", 7), DISTURBED, "exit code"),
        (command("push", 130), DISTURBED, "exit code"),
        (command("push", -11), DISTURBED, "exit code"),
        (command("bench", 11), QUIET, ""),
        (command("push", 11), DISTURBED, "exit code"),
        (command("push", 70, stderr="Traceback (most recent call last)"), DISTURBED, "crash"),
    ],
)
def test_end_of_a_command_is_held_to_what_happened(
    ended: Any, around: Circumstances, check: str
) -> None:
    assert [each.check for each in find_command_problems(ended, around)] == [check] * bool(check)


@pytest.mark.parametrize(("before", "checks"), [(None, []), ("b" * 16, ["undisturbed"])])
def test_rollback_is_refused_only_where_the_history_has_no_release_before(
    tmp_path: Path, before: str | None, checks: list[str]
) -> None:
    record = {"action": "switch", "release": "a" * 16, "from": before}
    (tmp_path / "history.jsonl").write_text(json.dumps(record) + "\n")
    problem = f"going back was refused: no release was current before {'a' * 16}, which stays"
    ended = command("rollback", 9, devices=[("board-01", "failed", problem)])
    ended.boards[0].project = tmp_path
    assert [each.check for each in find_command_problems(ended, QUIET)] == checks
