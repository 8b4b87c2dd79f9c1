"""A farm that stands: boards, the bastion before some of them, operators, and their bundles."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgepack.bundle.reading import load_bundle

from tests.farm.boards import (
    BASTION,
    KINDS,
    TARGETS,
    Board,
    Kind,
    Maker,
    explain_missing_kind,
    start_all,
    write_ssh_config,
)
from tests.farm.clocks import Clocks
from tests.farm.machines import Machine, say
from tests.farm.operators import Operator
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

VERSIONS = 4
OPERATORS = ("anna", "boris")


@dataclass
class Farm:
    """What faults, operators and judges work on."""

    folder: Path
    boards: list[Board]
    bastion: Machine
    operators: list[Operator]
    bundles: list[Path]
    """Folders with a bundle for each target."""
    releases: dict[str, str] = field(default_factory=dict)
    """The digest of each bundle, by the release's name."""

    def find_behind(self) -> list[Board]:
        """Return the boards behind the bastion."""
        return [board for board in self.boards if board.behind_bastion]


def write_bundles(folder: Path) -> list[Path]:
    """Write versions of a project, each a folder with a bundle for each target."""
    found = []
    for number in range(1, VERSIONS + 1):
        version = folder / f"{number}.0.0"
        version.mkdir(parents=True)
        first = version / f"tiny-{number}.0.0-linux-x86-64"
        write_tiny_bundle(first, size=8 * number)
        change_manifest(first, lambda it, number=number: it.update(version=f"{number}.0.0"))
        second = version / f"tiny-{number}.0.0-linux-aarch64"
        shutil.copytree(first, second)
        change_manifest(second, lambda it: it.update(target=TARGETS["aarch64"]))
        found.append(version)
    return found


def list_releases(bundles: Sequence[Path]) -> dict[str, str]:
    """Return the digests of bundles by the names that boards give them."""
    digests = [load_bundle(one).digest for version in bundles for one in version.iterdir()]
    return {digest[:16]: digest for digest in digests}


def choose_kinds(count: int, arm_root: Path | None) -> list[Kind]:
    """Return the kind of each board, of those that this machine can have, in turn."""
    possible = [kind for kind in KINDS if not explain_missing_kind(kind, arm_root)]
    return [possible[number % len(possible)] for number in range(count)]


def build_farm(folder: Path, count: int, arm_root: Path | None) -> Farm:
    """Make boards, bastion and operators, and switch everything on."""
    for kind in KINDS:
        if reason := explain_missing_kind(kind, arm_root):
            say(f"farm: no {kind} boards: {reason}")
    bundles = write_bundles(folder / "bundles")
    clocks = Clocks(folder)
    if not clocks.possible:
        say("farm: no clock is stepped: it needs a C compiler")
    operators = [Operator(name, folder / name, bundles, clocks) for name in OPERATORS]
    keys = folder / "authorized_keys"
    keys.write_text("".join(f"{each.make_home()}\n" for each in operators))
    maker = Maker(folder, keys, clocks, arm_root)
    bastion = maker.make_bastion()
    boards = [maker.make_board(kind) for kind in choose_kinds(count, arm_root)]
    bastion.start()
    start_all(boards)
    bastion_key = (folder / BASTION / "host_key.pub").read_text().strip()
    for operator in operators:
        operator.write_inventory(boards)
        write_ssh_config(operator.config, operator.key, boards, bastion, bastion_key)
    return Farm(folder, boards, bastion, operators, bundles, list_releases(bundles))


def stop_farm(farm: Farm) -> None:
    """Switch everything off."""
    for operator in farm.operators:
        operator.end_programs()
    for board in farm.boards:
        board.machine.stop()
    farm.bastion.stop()
