"""Operators: people with a machine, a home and a state folder each, who type commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgepack.demo.server import format_public_key, make_key
from edgepack.deploy.fleet.store import RolloutListing, RolloutStore

from tests.farm.boards import Board
from tests.farm.clocks import Clocks, step_clock
from tests.support.servers.loopback import wait_until

MARK = "EDGEPACK_FARM"
"""A variable of every process that an operator's commands start."""
DEADLINE_S = 40.0
"""For one board of a rollout."""
BENCH_S = 150.0
"""A bench has no deadline of its own; a lease behind a dead link ends before."""
SLACK_S = 45.0
"""What may come on top: start, saving, the end of connections, two busy cores."""

What = Literal["push", "rollback", "bench", "check", "resume", "abort"]


@dataclass
class Command:
    """A command line that was typed."""

    what: What
    operator: str
    argv: list[str]
    boards: list[Board]
    limit_s: float
    process: subprocess.Popen[bytes]
    began: float
    folder: Path
    pending: set[tuple[int, str]]
    """The rollouts and boards that were pending when it was typed."""
    killed: bool = False
    ended: float = 0.0
    seconds: float = 0.0

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        if self.process.poll() is not None and not self.ended:
            self.ended = time.monotonic()
            self.seconds = self.ended - self.began
        return self.process.returncode is None

    @property
    def overdue(self) -> bool:
        """Whether it runs longer than it may."""
        return self.runs and time.monotonic() > self.began + self.limit_s

    def kill(self) -> None:
        """End it as want of memory does; what it has started is told nothing."""
        if self.runs:
            self.killed = True
            self.process.kill()

    @property
    def exit_code(self) -> int:
        """What it ended with; minus the signal's number if one ended it."""
        return self.process.wait()

    @property
    def stdout(self) -> str:
        """What it printed."""
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it said."""
        return (self.folder / "stderr").read_text(errors="replace")

    def read_devices(self) -> list[tuple[str, str, str]]:
        """Return name, state and problem of the boards in its document, rollout by rollout.

        Of the rollouts that are gone on with, only what was pending.
        """
        try:
            document = json.loads(self.stdout)
        except ValueError:
            return []
        found = []
        for one in document if isinstance(document, list) else [document]:
            devices: dict[str, Any] = one.get("devices", {}) if isinstance(one, dict) else {}
            found += [
                (name, each["state"], each["problem"])
                for name, each in devices.items()
                if self.what != "resume" or (one["id"], name) in self.pending
            ]
        return found

    def describe(self) -> str:
        """Return it in a line."""
        return f"{self.operator}: edgepack {' '.join(self.argv)}"


@dataclass
class Operator:
    """Somebody with a home of their own; :meth:`settle` before the first command."""

    name: str
    folder: Path
    bundles: Sequence[Path]
    """Folders with a bundle for each target."""
    clocks: Clocks
    typed: int = 0

    @property
    def key(self) -> Path:
        """Their SSH key."""
        return self.folder / "key"

    @property
    def config(self) -> Path:
        """Their SSH configuration."""
        return self.folder / "ssh_config"

    @property
    def temporary(self) -> Path:
        """Where their commands put what is temporary."""
        return self.folder / "tmp"

    @property
    def state(self) -> Path:
        """Where edgepack keeps what it has to remember."""
        return self.folder / "data" / "edgepack"

    @property
    def audit_log(self) -> Path:
        """The log of what was done from here."""
        return self.state / "audit.jsonl"

    def make_home(self) -> str:
        """Make the folders and a key, and return its public half."""
        for name in ("home", "tmp", "data", "config/edgepack", "cache", "commands"):
            (self.folder / name).mkdir(parents=True)
        return format_public_key(make_key(self.key))

    def write_inventory(self, boards: Sequence[Board]) -> None:
        """Write ``devices.yaml``; JSON is YAML."""
        devices = {board.name: board.make_entry(self.config) for board in boards}
        text = json.dumps({"schema_version": 1, "devices": devices}, indent=1)
        (self.folder / "config/edgepack/devices.yaml").write_text(text)

    def list_rollouts(self) -> RolloutListing:
        """Return the rollouts that are kept."""
        return RolloutStore(self.state / "rollouts").list_all()

    def list_pending(self) -> set[tuple[int, str]]:
        """Return the rollouts and boards that a ``rollout resume`` would go on with."""
        rollouts = self.list_rollouts().rollouts
        return {(one.id, name) for one in rollouts if not one.stopped for name in one.pending}

    def type_command(
        self, what: What, words: Sequence[str], boards: list[Board], *, step_s: int = 0
    ) -> Command:
        """Start a command, on a machine whose clock is wrong by so much."""
        self.typed += 1
        folder = self.folder / "commands" / f"{self.typed}"
        folder.mkdir()
        argv = [*words]
        # A host name of their own, in the process that becomes the command.
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", self.name]
        pending = self.list_pending() if what == "resume" else set()
        rollouts = max(1, len({number for number, _ in pending}))
        limit_s = {"bench": BENCH_S, "resume": rollouts * DEADLINE_S}.get(what, DEADLINE_S)
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            process = subprocess.Popen(
                [*named, sys.executable, "-m", "edgepack", *argv],
                cwd=self.folder / "home",
                env=self._environment(step_s=step_s),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        began = time.monotonic()
        return Command(
            what,
            self.name,
            argv,
            boards,
            limit_s + SLACK_S,
            process,
            began,
            folder,
            pending,
        )

    def _environment(self, *, step_s: int) -> dict[str, str]:
        clock = self.clocks.make_clock(self.folder / "clock") if step_s else {}
        if step_s:
            step_clock(self.folder / "clock", step_s)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.folder / "home"),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "TMPDIR": str(self.temporary),
            "ORT_DISABLE_TELEMETRY": "1",
            MARK: self.name,
            **clock,
        }

    def list_programs(self) -> list[int]:
        """Return the processes that their commands have started and that still run."""
        wanted = f"{MARK}={self.name}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def end_programs(self) -> None:
        """Kill what their commands have left."""
        for pid in self.list_programs():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def clear_temporary(self) -> int:
        """Remove what lies where temporary files do, once nothing of theirs runs; count it."""
        wait_until(lambda: not self.list_programs(), SLACK_S)
        found = list(self.temporary.iterdir())
        for path in found:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return len(found)

    def forget(self, command: Command) -> None:
        """Remove what a command said, once it was judged."""
        shutil.rmtree(command.folder, ignore_errors=True)
