"""What happens to a farm while its operators work: each fault begins, lasts for a while, is healed.

All that is random comes from the round's own numbers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from tests.farm.boards import Board, fill_disk, free_disk
from tests.farm.clocks import step_clock
from tests.farm.farm import Farm

YEARS_S = 10 * 365 * 86400
LONGEST_S = 6.0
"""A fault lasts; now and then until all commands have ended."""
Act = Callable[[], None]


@dataclass
class Fault:
    """Something that happens once."""

    kind: str
    boards: list[Board]
    """Those that may notice."""
    at_s: float
    for_s: float
    """How long it lasts."""
    begin: Act
    heal: Act
    begun: bool = False
    healed: bool = False

    def act(self, since_s: float) -> None:
        """Begin or heal if it is time."""
        if not self.begun and since_s >= self.at_s:
            self.begun = True
            self.begin()
        if self.begun and not self.healed and since_s >= self.at_s + self.for_s:
            self.end()

    def end(self) -> None:
        """Heal it, if it has begun and was not."""
        if self.begun and not self.healed:
            self.healed = True
            self.heal()


def _nothing() -> None:
    pass


def _kill_board(board: Board, random: Random) -> tuple[Act, Act]:
    return board.machine.stop, board.machine.start


def _reboot_board(board: Board, random: Random) -> tuple[Act, Act]:
    def reboot() -> None:
        board.machine.stop()
        board.machine.start()

    return reboot, _nothing


def _pause_board(board: Board, random: Random) -> tuple[Act, Act]:
    machine = board.machine
    return (
        lambda: machine.signal_all(signal.SIGSTOP),
        lambda: machine.signal_all(signal.SIGCONT),
    )


def _kill_program(board: Board, random: Random) -> tuple[Act, Act]:
    def kill() -> None:
        if pids := board.machine.programs():
            with suppress(ProcessLookupError):
                os.kill(random.choice(pids), signal.SIGKILL)

    return kill, _nothing


def _fill_disk(board: Board, random: Random) -> tuple[Act, Act]:
    return lambda: fill_disk(board), lambda: free_disk(board)


def _change_host_key(board: Board, random: Random) -> tuple[Act, Act]:
    def use(number: int) -> None:
        board.use_host_key(number)
        board.machine.stop()
        board.machine.start()

    return lambda: use(1), lambda: use(0)


def _cut_link(board: Board, random: Random) -> tuple[Act, Act]:
    return board.machine.cut_link, board.machine.mend_link


def _slow_link(board: Board, random: Random) -> tuple[Act, Act]:
    rate = random.choice(["64kbit", "256kbit", "1mbit"])
    return lambda: board.machine.slow_link(rate), board.machine.free_link


def _step_clock(board: Board, random: Random) -> tuple[Act, Act]:
    step = random.choice([-1, 1]) * random.randrange(3600, YEARS_S)

    def set_clock(seconds: int) -> None:
        assert board.clock is not None
        step_clock(board.clock, seconds)

    return lambda: set_clock(step), lambda: set_clock(0)


BOARD_FAULTS: dict[str, Callable[[Board, Random], tuple[Act, Act]]] = {
    "board killed": _kill_board,
    "board rebooted": _reboot_board,
    "board paused": _pause_board,
    "program killed": _kill_program,
    "disk filled": _fill_disk,
    "host key changed": _change_host_key,
    "link cut": _cut_link,
    "link slowed": _slow_link,
    "board's clock stepped": _step_clock,
}
BASTION_RESTARTED = "bastion restarted"
COMMAND_KILLED = "command killed"
HOST_CLOCK_STEPPED = "host's clock stepped"
FAULTS = (*BOARD_FAULTS, BASTION_RESTARTED, COMMAND_KILLED, HOST_CLOCK_STEPPED)
HARMLESS = ("board's clock stepped",)
"""What nothing may fail for."""


def choose_faults(
    farm: Farm, busy: Sequence[Board], random: Random, latest_s: float
) -> list[Fault]:
    """Return what happens in a round: one to four faults, a board at most one of its own.

    Args:
        farm: Where.
        busy: The boards that somebody works on; most faults hit one of them.
        random: Decides.
        latest_s: When the last one may begin, after the commands.
    """
    free = list(farm.boards)
    found = []
    for _ in range(random.randint(1, 4)):
        kind = random.choice([*BOARD_FAULTS, BASTION_RESTARTED])
        at_s = random.uniform(0.2, latest_s)
        for_s = random.uniform(0.3, LONGEST_S) if random.random() < 0.9 else 3600.0
        if kind == BASTION_RESTARTED:
            if not any(each.kind == kind for each in found) and farm.find_behind():
                found.append(_restart_bastion(farm, at_s))
            continue
        likely = [each for each in free if each in busy] if random.random() < 0.8 else free
        if kind == "board's clock stepped":
            likely = [each for each in likely if each.clock is not None]
        if not likely:
            continue
        board = random.choice(likely)
        free.remove(board)
        found.append(Fault(kind, [board], at_s, for_s, *BOARD_FAULTS[kind](board, random)))
    return found


def _restart_bastion(farm: Farm, at_s: float) -> Fault:
    def restart() -> None:
        farm.bastion.stop()
        farm.bastion.start()

    return Fault(BASTION_RESTARTED, farm.find_behind(), at_s, 0.0, restart, _nothing)
