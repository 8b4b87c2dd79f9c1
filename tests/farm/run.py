"""``make farm-test``: a month in an hour, of a farm that is disturbed all the time.

::

    sudo .venv/bin/python -m tests.farm.run [--rounds N] [--minutes M] [--seed S] [--boards N]

Forty boards of up to four kinds stand in namespaces, some behind a bastion. Two operators, each
with a home and a state folder, type edgepack's commands, and their crontabs the documented line,
while boards die, hang, reboot, fill up, change their keys, lose their links and their time, and
commands are killed. A round is over when all has been healed and everything pending has gone on to
its end; then nothing may be corrupt, stuck or left, and every exit code is one that the table has.

Exit codes: 0 all held, 1 something did not, 3 this machine cannot run it, 130 it was stopped.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import nullcontext
from random import Random

from tests.farm import ground
from tests.farm.emulation import emulated, unpack_root
from tests.farm.farm import build_farm, stop_farm
from tests.farm.judge import PATIENCE_S
from tests.farm.machines import say
from tests.farm.month import Month
from tests.farm.planting import PLANTS
from tests.support.reports.proof_report import Check, report

CANNOT_RUN_EXIT = 3
STOPPED_EXIT = 130
ROUNDS = 420
"""In which there are more than 1,000 rollouts, benches and rollbacks."""


def main() -> int:
    arguments = _parse()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    if ground.INSIDE in os.environ:
        return run_month(arguments)
    if reason := ground.explain_lack():
        report("farm", [], 0.0, not_run=reason)
        print(f"farm: cannot run here: {reason}")
        return CANNOT_RUN_EXIT
    try:
        with nullcontext() if arguments.no_emulation else emulated():
            return ground.run_inside("tests.farm.run", sys.argv[1:])
    except KeyboardInterrupt:
        print("farm: stopped; everything was taken down")
        return STOPPED_EXIT


def run_month(arguments: argparse.Namespace) -> int:
    """Run it in the namespaces, and print what came of it."""
    began = time.monotonic()
    until = began + 60 * arguments.minutes if arguments.minutes else float("inf")
    rounds = arguments.rounds or (10**6 if arguments.minutes else ROUNDS)
    folder = ground.prepare_ground()
    farm = build_farm(folder, arguments.boards, unpack_root(folder / "arm"))
    say(f"farm: {len(farm.boards)} boards are on, {time.monotonic() - began:.0f} s")
    month = Month(farm, arguments.seed, arguments.patience)
    try:
        month.begin()
        number = 0
        while number < rounds and time.monotonic() < until:
            number += 1
            month.run_round(number, Random(f"{arguments.seed}:{number}"))
            if number == 1:
                for name in arguments.plant:
                    PLANTS[name](farm)
                if arguments.plant:
                    month.judge([*farm.boards])
        month.end()
    finally:
        stop_farm(farm)
    seconds = time.monotonic() - began
    print(month.tally.format_table(seconds, arguments.seed), flush=True)
    violations = month.violations
    checks = [Check(f"round {number}") for number in range(1, month.tally.rounds + 1)]
    checks += [Check(f"{each.check}: {each.where}", each.what) for each in violations]
    report("farm", checks, seconds)
    return 1 if violations else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Disturb a farm, and look at what is left.")
    parser.add_argument("--rounds", type=int, help=f"how many (default: {ROUNDS})")
    parser.add_argument("--minutes", type=float, help="begin no round after these")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (default: 1)")
    parser.add_argument("--boards", type=int, default=40, help="how many (default: 40)")
    parser.add_argument("--no-emulation", action="store_true", help="boards of this machine's kind")
    parser.add_argument(
        "--plant",
        action="append",
        default=[],
        choices=list(PLANTS),
        help="break this after the first round: the check of that name has to find it",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_S,
        help="how long lost programs and leases may stay",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
