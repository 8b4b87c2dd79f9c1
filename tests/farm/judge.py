"""What has to hold after a round, once all faults are healed and all commands have ended."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgepack.bundle.reading import verify
from edgepack.deploy.audit import read_audit_log, verify_audit_log
from edgepack.errors import EdgepackError

from tests.chaos.faults import drift, leftovers
from tests.farm.boards import KEEPS, MEASURED, Board
from tests.farm.farm import Farm
from tests.farm.machines import read_start_time
from tests.farm.operators import Command, Operator

LEASE_S = 180.0
"""How long a lease lives behind a dead connection: docs/devices.md."""
PATIENCE_S = LEASE_S + 20.0
"""How long a program may stay on a board whose client was lost: it holds its lease for as long."""

EXIT_CODES = {
    "push": {0, 8, 9},
    "rollback": {0, 8, 9},
    "resume": {0, 8, 9},
    "bench": {0, 8, 9, 11},
    "check": {0, 8, 9},
    "abort": {0, 2},
}
"""What a command may end with, by the table in docs/commands.md, for what happens to a farm."""
CRASHES = re.compile(r"Traceback|bug in edgepack|BugError|exception was never retrieved")
_NO_BEFORE = re.compile(r"no release was current before ([0-9a-f]{16})")
_GONE = re.compile(r"is not here any more")
_BUSY = re.compile(r"it is leased")
_WORKED_ON = re.compile(r"is being worked on")
_NOT_READY = re.compile(r"python|is not ready for target", re.IGNORECASE)


@dataclass(frozen=True)
class Violation:
    """Something that does not hold."""

    check: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"[{self.check}] {self.where}: {self.what}"


@dataclass
class Ages:
    """How long things have been there that may stay for a while only."""

    limit_s: float
    first: dict[str, float] = field(default_factory=dict)

    def find_old(self, check: str, found: dict[str, str]) -> list[Violation]:
        """Return what is older than it may be; ``found`` has where each thing is, by its name."""
        now = time.monotonic()
        for name in [each for each in self.first if each.startswith(f"{check} ")]:
            if name.removeprefix(f"{check} ") not in found:
                del self.first[name]
        old = []
        for name, where in found.items():
            since_s = now - self.first.setdefault(f"{check} {name}", now)
            if since_s > self.limit_s:
                what = f"{name} is there for more than {self.limit_s:.0f} s"
                old.append(Violation(check, where, what))
        return old


@dataclass
class Judge:
    """Remembers what it has seen, for histories only grow and leases end."""

    farm: Farm
    ages: Ages
    histories: dict[str, bytes] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    """What was reported; once is enough."""

    def report(self, violations: Sequence[Violation]) -> list[Violation]:
        """Return those that are new."""
        new = [each for each in violations if str(each) not in self.said]
        self.said |= {str(each) for each in new}
        return new

    def judge_board(self, board: Board) -> list[Violation]:
        """Judge what lies on a board."""
        found = [*find_release_problems(board, self.farm.releases), *self._judge_history(board)]
        found += find_long_leases(board)
        return found

    def _judge_history(self, board: Board) -> Iterator[Violation]:
        path = board.project / "history.jsonl"
        before, now = self.histories.get(board.name, b""), b""
        with suppress(FileNotFoundError):
            now = path.read_bytes()
        if not now.startswith(before):
            yield Violation("history", board.name, "lines that were there are gone or others")
        self.histories[board.name] = now

    def judge_lingering(self) -> list[Violation]:
        """Judge what may stay for a while: leases, and programs on boards."""
        boards = self.farm.boards
        leases = {each["id"]: board.name for board in boards for each in list_live_leases(board)}
        return [
            *self.ages.find_old("lease", leases),
            *self.ages.find_old("board's program", dict(list_programs(boards))),
        ]


def find_release_problems(board: Board, releases: dict[str, str]) -> Iterator[Violation]:
    """Yield what is wrong with the releases on a board and with its history's chain."""
    if not board.project.exists():
        return
    current = board.project / "current"
    if current.is_symlink():
        try:
            digest = verify(current.resolve(strict=True)).digest
        except (EdgepackError, OSError) as error:
            yield Violation("current", board.name, f"it is not whole: {error}")
        else:
            if releases.get(current.resolve().name) != digest:
                yield Violation("current", board.name, f"{current.readlink()} was never pushed")
    state = drift().find_project_state(str(board.project))
    for release in state["releases"]:
        if release["differences"]:
            what = f"{release['name']} is not whole: {release['differences'][:3]}"
            yield Violation("release", board.name, what)
    if state["history"]["broken_at"] is not None:
        what = f"the chain breaks at line {state['history']['broken_at']}"
        yield Violation("history", board.name, what)


def find_litter(board: Board) -> list[str]:
    """Return what the next push to a board has to tidy up."""
    if not board.project.exists():
        return []
    found = [str(path.relative_to(board.project)) for path in leftovers(board.project)]
    state = drift().find_project_state(str(board.project))
    if len(state["releases"]) > KEEPS:
        found.append(f"{len(state['releases'])} releases")
    current, last = state["current"], state["history"]["current"]
    if current != (last and f"releases/{last}"):
        found.append(f"{current} is current, {last} by the history")
    return found


def read_current(board: Board) -> str:
    """Return the name of the current release; empty if there is none."""
    path = board.project / "current"
    return path.readlink().name if path.is_symlink() else ""


def list_live_leases(board: Board) -> list[dict[str, Any]]:
    """Return the leases on a board that count: of its boot, and not expired."""
    boot = (board.machine.folder / "boot_id").read_text().strip()
    found = []
    for path in sorted(board.leases.glob("*.json")):
        with suppress(ValueError, FileNotFoundError):
            lease = json.loads(path.read_text())
            if lease["boot_id"] == boot and lease["expires_s"] > time.monotonic():
                found.append(lease)
    return found


def find_long_leases(board: Board) -> Iterator[Violation]:
    """Yield leases that are held for longer than a command holds them."""
    for lease in list_live_leases(board):
        left_s = lease["expires_s"] - time.monotonic()
        if not lease["reserved"] and left_s > LEASE_S:
            what = f"{lease['id']} has more than {LEASE_S:.0f} s left"
            yield Violation("lease", board.name, what)


def list_programs(boards: Sequence[Board]) -> Iterator[tuple[str, str]]:
    """Yield each program on boards beside their servers, and where it runs."""
    for board in boards:
        for pid in board.machine.programs():
            try:
                raw = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if raw:  # a zombie has none, and its parent takes notice when it does something next
                line = raw.replace(b"\0", b" ").decode("utf-8", "replace")[:80].strip()
                yield f"{pid}@{read_start_time(pid)} {line!r}", board.name


def find_operator_problems(operator: Operator) -> Iterator[Violation]:
    """Yield what is wrong with an operator's machine."""
    for pid in operator.list_programs():
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            yield Violation("host's process", operator.name, f"{pid} {line.decode()[:120]}")
    for path in sorted(operator.temporary.rglob("*")):
        what = f"{path.relative_to(operator.temporary)}, {path.stat().st_size} bytes"
        yield Violation("temporary file", operator.name, what)
    for pattern in ("*.tmp", "*.partial"):
        for folder in (operator.folder / "data", operator.folder / "cache"):
            for path in sorted(folder.rglob(pattern)):
                yield Violation("state file", operator.name, str(path.relative_to(operator.folder)))
    for error in operator.list_rollouts().broken:
        yield Violation("rollout", operator.name, f"it cannot be read: {error}")
    if operator.audit_log.exists():
        try:
            verify_audit_log(operator.audit_log)
        except EdgepackError as error:
            yield Violation("audit", operator.name, str(error))


def find_audit_gaps(farm: Farm) -> Iterator[Violation]:
    """Yield switches that a host's log has and the board's history has not."""
    logged: dict[str, Counter[tuple[str, str]]] = {each.name: Counter() for each in farm.boards}
    for operator in farm.operators:
        if not operator.audit_log.exists():
            continue
        for one in read_audit_log(path=operator.audit_log).records:
            switched = one.action in ("switch", "rollback") and one.switched_from != one.release
            if switched and one.result == "done" and one.device in logged:
                logged[one.device][one.action, one.release or ""] += 1
    for board in farm.boards:
        seen = Counter(read_switches(board))
        for (action, release), count in logged[board.name].items():
            if count > seen[action, release]:
                what = f"{action} to {release}: {count} in logs, {seen[action, release]} there"
                yield Violation("audit", board.name, what)


def read_switches(board: Board) -> list[tuple[str, str]]:
    """Return the switches in a board's history, and those back."""
    actions = ("switch", "rollback")
    return [(each["action"], each["release"]) for each in read_records(board, *actions)]


def read_records(board: Board, *actions: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a board's history that are of these actions, a switch by default."""
    path = board.project / "history.jsonl"
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError):
            record = json.loads(line)
            if record["action"] in (actions or ("switch",)):
                yield record


def find_followers(board: Board) -> set[str]:
    """Return the releases that, by a board's history, were switched to from another."""
    return {each["release"] for each in read_records(board) if each.get("from")}


@dataclass(frozen=True)
class Circumstances:
    """What a command had to cope with, by its round."""

    disturbed: frozenset[str]
    """Boards that something happened to."""
    measured: frozenset[str]
    """Boards that were benched meanwhile, or on which a lost command's lease was left."""
    crowded: bool
    """Whether its operator had another command running."""


def find_command_problems(command: Command, around: Circumstances) -> Iterator[Violation]:
    """Yield what is wrong with how a command ended."""
    code, where = command.exit_code, command.describe()
    if command.killed:
        return
    said = command.stderr.strip()
    if CRASHES.search(said) or CRASHES.search(command.stdout):
        yield Violation("crash", where, said[-1500:])
    elif code not in EXIT_CODES[command.what]:
        yield Violation("exit code", where, f"{code}: {said[-600:]}")
    elif unexplained := find_unexplained(command, around):
        yield Violation("undisturbed", where, f"exit code {code}: {unexplained}")


def find_unexplained(command: Command, around: Circumstances) -> str:
    """Return why a command failed on a board to which nothing happened; empty if it did not."""
    devices = command.read_devices()
    boards = {board.name: board for board in command.boards}
    if not devices:
        undisturbed = not around.disturbed & set(boards)
        good = command.exit_code in ((0, 11) if command.what == "bench" else (0,))
        excused = all(is_excused(command, each, command.stderr, around) for each in boards.values())
        if good or not undisturbed or excused:
            return ""
        return command.stderr.strip()[-600:] or "it said nothing"
    lost = any(state not in ("done", "inconclusive") for _, state, _ in devices)
    for name, state, problem in devices:
        if state in ("done", "inconclusive", "superseded") or name in around.disturbed:
            continue
        if not problem and lost:  # not started, as others of its wave had failed
            continue
        if name not in boards or not is_excused(command, boards[name], problem, around):
            return f"{name} is {state}: {problem}"
    return ""


def is_excused(command: Command, board: Board, problem: str, around: Circumstances) -> bool:
    """Say whether a problem is what has to be expected without any fault."""
    if _BUSY.search(problem):
        return board.name in around.measured or command.what == "bench"
    if _WORKED_ON.search(problem):
        return around.crowded
    if command.what in ("rollback", "resume") and _GONE.search(problem):
        return True
    if command.what in ("rollback", "resume") and (refused := _NO_BEFORE.search(problem)):
        return refused[1] not in find_followers(board)
    measures = command.what in ("bench", "check")
    return measures and board.kind not in MEASURED and bool(_NOT_READY.search(problem))
