"""Faults that a judge has to find: each plants what must never be, after a round."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.farm.boards import Board
from tests.farm.farm import Farm
from tests.farm.judge import read_current
from tests.farm.operators import MARK


def _choose(farm: Farm, number: int) -> Board:
    boards = [board for board in farm.boards if read_current(board)]
    return boards[number % len(boards)]


def _corrupt_file(farm: Farm) -> None:
    board = _choose(farm, 0)
    path = next((board.project / "current").resolve().glob("models/*.onnx"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # another release may share the file
    path.write_bytes(data)


def _point_elsewhere(farm: Farm) -> None:
    link = _choose(farm, 1).project / "current"
    link.unlink()
    link.symlink_to("releases/0123456789abcdef")


def _drop_line(farm: Farm) -> None:
    path = _choose(farm, 2).project / "history.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))


def _leave_lease(farm: Farm) -> None:
    board = next(each for each in farm.boards if each.has_python)
    board.leases.mkdir(parents=True, exist_ok=True)
    now = time.monotonic()
    lease = {
        "id": "planted",
        "owner": "nobody",
        "purpose": "planted",
        "exclusive": True,
        "reserved": False,
        "boot_id": (board.machine.folder / "boot_id").read_text().strip(),
        "taken_at": "",
        "taken_s": now,
        "expires_s": now + 3600,
    }
    (board.leases / "planted.json").write_text(json.dumps(lease))


def _leave_litter(farm: Farm) -> None:
    (_choose(farm, 3).project / "stray").write_text("")


def _leave_temporary_file(farm: Farm) -> None:
    (farm.operators[0].temporary / "planted").write_text("")


def _leave_state_file(farm: Farm) -> None:
    (farm.operators[0].state / "rollouts" / ".1.json-planted.partial").write_text("")


def _leave_process(farm: Farm) -> None:
    operator = farm.operators[0]
    subprocess.Popen(["sleep", "3600"], env={MARK: operator.name, "PATH": "/usr/bin:/bin"})


def _leave_program(farm: Farm) -> None:
    first = farm.boards[0].machine
    argv = ["nsenter", f"--target={first.first_pid}", "--pid", "sleep", "3600"]
    subprocess.Popen(argv)


def _break_rollout(farm: Farm) -> None:
    path = max(_list_rollouts(farm))
    path.write_text(path.read_text()[:-20])


def _list_rollouts(farm: Farm) -> list[Path]:
    return list((farm.operators[0].state / "rollouts").glob("*.json"))


def _alter_audit_log(farm: Farm) -> None:
    path = farm.operators[-1].audit_log
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))


PLANTS: dict[str, Callable[[Farm], None]] = {
    "release": _corrupt_file,
    "current": _point_elsewhere,
    "history": _drop_line,
    "lease": _leave_lease,
    "litter": _leave_litter,
    "temporary file": _leave_temporary_file,
    "state file": _leave_state_file,
    "host's process": _leave_process,
    "board's program": _leave_program,
    "rollout": _break_rollout,
    "audit": _alter_audit_log,
}
"""What is planted, by the check that has to find it."""
