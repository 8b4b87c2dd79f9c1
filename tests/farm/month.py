"""Rounds: commands are typed and disturbed; all is healed, goes on to its end, and is judged."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.farm.boards import KINDS, MEASURED, PROJECT, Board
from tests.farm.farm import Farm
from tests.farm.faults import (
    COMMAND_KILLED,
    FAULTS,
    HARMLESS,
    HOST_CLOCK_STEPPED,
    YEARS_S,
    Fault,
    choose_faults,
)
from tests.farm.judge import (
    Ages,
    Circumstances,
    Judge,
    Violation,
    find_audit_gaps,
    find_command_problems,
    find_litter,
    find_operator_problems,
    list_live_leases,
    list_programs,
    read_current,
)
from tests.farm.machines import say
from tests.farm.operators import Command, Operator, What

LOOK_S = 0.05
TRIES = 3
"""How often pending boards go on, and how often a board is pushed to until it is tidy."""
MOST_BOARDS = 6
MEETINGS = 0.35
"""How often both operators work on the same boards."""
FIRST_S, LAST_S = 2.0, 15.0
"""Faults begin while commands run, which a busy machine takes so long for."""
ALL_JUDGED_EVERY = 10
WORDS = ["--deadline", "40", "--tries", "3"]


@dataclass
class Tally:
    """What was done and what came of it."""

    rounds: int = 0
    commands: Counter[str] = field(default_factory=Counter)
    codes: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    tidied: int = 0
    orphaned: int = 0
    """Temporary files that killed commands have left."""
    violations: Counter[str] = field(default_factory=Counter)

    def count(self, command: Command) -> None:
        """Count a command that has ended."""
        self.commands[command.what] += 1
        self.codes[command.what, command.exit_code] += 1
        if not command.killed:
            slowest = max(self.slowest.get(command.what, 0.0), command.seconds)
            self.slowest[command.what] = slowest

    def format_table(self, seconds: float, seed: int) -> str:
        """Return it as markdown."""
        boards = ", ".join(f"{self.kinds[kind]} {kind}" for kind in KINDS if self.kinds[kind])
        total = sum(self.commands[each] for each in ("push", "rollback", "bench", "resume"))
        head = f"{self.rounds} rounds with seed {seed} in {seconds:.0f} s; boards: {boards};"
        head += f" {total} rollouts, benches and rollbacks; {self.tidied} boards were pushed to"
        head += f" for what a broken push had left; killed commands left {self.orphaned} temporary"
        lines = [
            f"{head} files",
            "",
            "| command | count | exit codes: how often | slowest |",
            "|---|--:|---|--:|",
        ]
        for what, count in sorted(self.commands.items()):
            codes = sorted(
                (code, many) for (each, code), many in self.codes.items() if each == what
            )
            text = ", ".join(f"{code}: {many}" for code, many in codes)
            lines.append(f"| {what} | {count} | {text} | {self.slowest.get(what, 0.0):.1f} s |")
        lines += ["", "| fault | count |", "|---|--:|"]
        lines += [f"| {kind} | {self.faults[kind]} |" for kind in FAULTS]
        lines += ["", "| violated | count |", "|---|--:|"]
        lines += [f"| {check} | {count} |" for check, count in sorted(self.violations.items())]
        lines.append(f"| all | {self.violations.total()} |")
        return "\n".join(lines)


def list_running(commands: Sequence[Command]) -> list[Command]:
    """Return the commands that have not ended; of the others it is noted when they did."""
    return [command for command in commands if command.runs]


class Month:
    """All rounds of a farm."""

    def __init__(self, farm: Farm, seed: int, patience_s: float) -> None:
        self.farm = farm
        self.seed = seed
        self.patience_s = patience_s
        self.tally = Tally(kinds=Counter(board.kind for board in farm.boards))
        self.violations: list[Violation] = []
        self.usual_s = FIRST_S
        """How long commands take here, by the last ones."""
        self.judging = Judge(farm, Ages(patience_s))

    def begin(self) -> None:
        """Give every board two releases."""
        for number, operator in enumerate(self.farm.operators):
            words = ["push", str(self.farm.bundles[number]), "--device", "all", "--no-self-test"]
            boards = list(self.farm.boards)
            command = operator.type_command("push", [*words, "--json"], boards)
            self._finish([command], [], frozenset())
        self.judge(self.farm.boards)

    def run_round(self, number: int, random: Random) -> None:
        """Type commands, disturb them, heal everything, go on, and judge."""
        self.tally.rounds = number
        left = frozenset(each.name for each in self.farm.boards if list_live_leases(each))
        commands = self._type_commands(random)
        busy = [board for command in commands for board in command.boards]
        faults = choose_faults(self.farm, busy, random, self.usual_s)
        kill_at = random.uniform(0.3, self.usual_s) if random.random() < 0.25 else None
        self._watch(commands, faults, (random.choice(commands), kill_at))
        for fault in faults:
            if fault.begun:
                self.tally.faults[fault.kind] += 1
        self._finish(commands, faults, left)
        self._go_on()
        touched = {board.name for board in busy}
        touched |= {board.name for fault in faults for board in fault.boards}
        everything = number % ALL_JUDGED_EVERY == 0
        boards = [each for each in self.farm.boards if everything or each.name in touched]
        self._tidy(boards)
        self.judge(boards)
        if everything:
            self._add(list(find_audit_gaps(self.farm)))
        say(
            f"round {number}: {', '.join(command.what for command in commands)};"
            f" {', '.join(fault.kind for fault in faults if fault.begun) or 'no fault'}"
        )

    def _type_commands(self, random: Random) -> list[Command]:
        """Let each operator type one command, and sometimes cron wake up as well."""
        first, second = self.farm.operators
        commands = [self._type_one(first, self.farm.boards, random)]
        meet = random.random() < MEETINGS
        commands.append(
            self._type_one(second, commands[0].boards if meet else self.farm.boards, random)
        )
        if random.random() < 0.4:
            commands.append(self._resume(random.choice(self.farm.operators)))
        return commands

    def _type_one(self, operator: Operator, boards: list[Board], random: Random) -> Command:
        whats: list[What] = ["push", "rollback", "bench", "check"]
        what = random.choices(whats, [55, 25, 10, 10])[0]
        if what == "bench":
            found = [board for board in boards if board.kind in MEASURED]
            boards = found or [each for each in self.farm.boards if each.kind in MEASURED]
        if random.random() < 0.15 and what != "bench" and boards is self.farm.boards:
            tag = random.choice(boards).tags[0]
            chosen, words = [each for each in boards if tag in each.tags], [f"tag:{tag}"]
        else:
            most = 2 if what == "bench" else MOST_BOARDS
            chosen = random.sample(boards, min(len(boards), random.randint(1, most)))
            words = [board.name for board in chosen]
        step_s = 0
        if operator.clocks.possible and random.random() < 0.1:
            step_s = random.choice([-1, 1]) * random.randint(3600, YEARS_S)
            self.tally.faults[HOST_CLOCK_STEPPED] += 1
        argv = self._make_words(what, words, chosen, random)
        return operator.type_command(what, argv, chosen, step_s=step_s)

    def _make_words(
        self, what: What, words: list[str], boards: list[Board], random: Random
    ) -> list[str]:
        if what == "check":
            return ["device", "check", *words, "--json"]
        devices = [part for word in words for part in ("--device", word)]
        bundle = str(random.choice(self.farm.bundles))
        if what == "bench":
            return ["bench", bundle, *devices, "--preset", "smoke", "--json"]
        waves = ["--canary", "1", "--waves", "2"] if random.random() < 0.15 else []
        if what == "rollback":
            return ["rollback", PROJECT, *devices, *WORDS, *waves, "--json"]
        tries = all(board.kind in MEASURED for board in boards) and random.random() < 0.7
        test = [] if tries else ["--no-self-test"]
        return ["push", bundle, *devices, *WORDS, *waves, *test, "--json"]

    def _resume(self, operator: Operator) -> Command:
        """Do what the documented line of a crontab does."""
        names = {name for _, name in operator.list_pending()}
        boards = [board for board in self.farm.boards if board.name in names]
        return operator.type_command("resume", ["rollout", "resume", "--json"], boards)

    def _watch(
        self, commands: list[Command], faults: list[Fault], kill: tuple[Command, float | None]
    ) -> None:
        """Let faults happen until all commands have ended, and heal what is left of them."""
        began = time.monotonic()
        victim, kill_at = kill
        while list_running(commands):
            since_s = time.monotonic() - began
            for fault in faults:
                fault.act(since_s)
            if kill_at is not None and since_s >= kill_at and victim.runs and not victim.killed:
                victim.kill()
                self.tally.faults[COMMAND_KILLED] += 1
            self._end_overdue(commands)
            time.sleep(LOOK_S)
        for fault in faults:
            fault.end()

    def _end_overdue(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if command.overdue and not command.killed:
                what = f"it still runs after {command.limit_s:.0f} s: {command.stderr[-600:]}"
                self._add([Violation("stuck", command.describe(), what)])
                command.kill()

    def _finish(
        self, commands: list[Command], faults: Sequence[Fault], left: frozenset[str]
    ) -> None:
        """Wait for commands that nothing disturbs any more, and judge how all ended."""
        while list_running(commands):
            self._end_overdue(commands)
            time.sleep(LOOK_S)
        disturbed = frozenset(
            board.name
            for fault in faults
            if fault.begun and fault.kind not in HARMLESS
            for board in fault.boards
        )
        for command in commands:
            others = [each for each in commands if each is not command]
            measured = left | {
                board.name for each in others if each.what == "bench" for board in each.boards
            }
            crowded = any(each.operator == command.operator for each in others)
            around = Circumstances(disturbed, frozenset(measured), crowded)
            self._add(list(find_command_problems(command, around)))
            self.tally.count(command)
            if command.what == "push" and not command.killed:
                usual_s = 0.8 * self.usual_s + 0.2 * command.seconds
                self.usual_s = min(max(usual_s, FIRST_S), LAST_S)
        for command in commands:
            operator = next(each for each in self.farm.operators if each.name == command.operator)
            operator.forget(command)
            if command.killed:  # nothing can remove its temporary files but a reboot
                self.tally.orphaned += operator.clear_temporary()

    def _go_on(self) -> None:
        """Let each crontab's line go on with what is pending, to the end."""
        for _ in range(TRIES):
            waiting = [each for each in self.farm.operators if self._can_go_on(each)]
            if not waiting:
                break
            left = frozenset(each.name for each in self.farm.boards if list_live_leases(each))
            self._finish([self._resume(operator) for operator in waiting], [], left)
        for operator in self.farm.operators:
            if names := self._can_go_on(operator):
                what = f"still pending after {TRIES} times: {', '.join(names)}"
                self._add([Violation("pending", operator.name, what)])

    def _can_go_on(self, operator: Operator) -> list[str]:
        """Return the pending boards but for those that a lost command still leases."""
        leased = {each.name for each in self.farm.boards if list_live_leases(each)}
        return [name for _, name in operator.list_pending() if name not in leased]

    def _tidy(self, boards: Sequence[Board]) -> None:
        """Push to the boards on which a broken push has left something, until nothing is."""
        operator = self.farm.operators[0]
        for number in range(TRIES):
            running = {name for _, name in list_programs(self.farm.boards)}
            littered = [
                board
                for board in boards
                if board.name not in running and not list_live_leases(board) and find_litter(board)
            ]
            if not littered:
                return
            self.tally.tidied += len(littered)
            for bundle in self._choose_bundles(littered, number):
                names = [part for board in littered for part in ("--device", board.name)]
                words = ["push", bundle, *names, *WORDS, "--no-self-test", "--json"]
                command = operator.type_command("push", words, littered)
                self._finish([command], [], frozenset())
        for board in boards:
            if board.name not in {name for _, name in list_programs([board])}:
                for what in find_litter(board):
                    self._add([Violation("litter", board.name, f"{TRIES} pushes left {what}")])

    def _choose_bundles(self, boards: Sequence[Board], number: int) -> list[str]:
        """Return a version that is current on none of these, or two if each is on some."""
        from edgepack.bundle.reading import load_bundle

        current = {read_current(board) for board in boards}
        free = [
            str(version)
            for version in self.farm.bundles
            if not {load_bundle(one).digest[:16] for one in version.iterdir()} & current
        ]
        everything = [str(version) for version in self.farm.bundles]
        return [free[number % len(free)]] if free else everything[:2]

    def judge(self, boards: Sequence[Board]) -> None:
        """Judge boards, hosts, and what may stay for a while."""
        for board in boards:
            self._add(self.judging.judge_board(board))
        for operator in self.farm.operators:
            self._add(list(find_operator_problems(operator)))
        self._add(self.judging.judge_lingering())

    def end(self) -> None:
        """Wait for what may stay for a while, and judge everything."""
        until = time.monotonic() + self.patience_s + 5.0
        while time.monotonic() < until and (
            any(True for _ in list_programs(self.farm.boards))
            or any(list_live_leases(board) for board in self.farm.boards)
        ):
            time.sleep(1.0)
            self._add(self.judging.judge_lingering())
        self._go_on()
        self._tidy(self.farm.boards)
        self.judge(self.farm.boards)
        self._add(list(find_audit_gaps(self.farm)))

    def _add(self, violations: Sequence[Violation]) -> None:
        for each in self.judging.report(violations):
            say(f"VIOLATION {each}")
            self.violations.append(each)
            self.tally.violations[each.check] += 1
