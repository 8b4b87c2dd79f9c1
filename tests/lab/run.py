"""``make lab``: boards over SSH, most of them emulated, and edgepack's whole road on them.

::

    sudo .venv/bin/python -m tests.lab.run [--record FILE] [--fresh]
    .venv/bin/python -m tests.lab.run --packages

Three boards are started (``kinds.py``): Debian 12 and 13 on emulated aarch64, and Debian 13 on this
machine's processor. Their root file systems are built once and kept in ~/.cache/edgepack-lab or
where EDGEPACK_LAB_CACHE points. They have no internet. What runs on them is real; the time of those
that are emulated is not, so no number of it means anything.
Everything that the lab makes is taken down again, however it ends.

Exit codes: 0 all held, 1 something did not, 3 this machine cannot run it, 130 it was stopped.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import host
from tests.support.reports.proof_report import Check, report

if TYPE_CHECKING:
    from tests.lab.findings import Findings

CANNOT_RUN_EXIT = 3
STOPPED_EXIT = 130


def main() -> int:
    arguments = _parse()
    if arguments.packages:
        sys.stdout.write(" ".join(host.PROGRAMS) + "\n")
        return 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    began = time.monotonic()
    try:
        host.require_host()
        findings = run_lab(
            arguments.record, fresh=arguments.fresh, every_variant=arguments.variants
        )
    except host.CannotRunError as error:
        report("lab", [], time.monotonic() - began, not_run=str(error))
        sys.stdout.write(f"lab: cannot run here: {error}\n")
        return CANNOT_RUN_EXIT
    except host.LabError as error:
        report("lab", [Check("the lab", str(error))], time.monotonic() - began)
        sys.stdout.write(f"lab: FAILED: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stdout.write("lab: stopped; everything was taken down\n")
        return STOPPED_EXIT
    seconds = time.monotonic() - began
    report("lab", findings.checks, seconds)
    failed = findings.failed
    sys.stdout.write(f"lab: {'FAILED' if failed else 'all held'} in {seconds:.0f} s\n")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run edgepack on boards in namespaces.")
    parser.add_argument("--record", type=Path, help="write what was seen, as JSON, to this file")
    parser.add_argument(
        "--variants", action="store_true", help="measure every variant of the emulated boards, too"
    )
    parser.add_argument("--fresh", action="store_true", help="build the root file system again")
    parser.add_argument(
        "--packages", action="store_true", help="print the Debian packages it needs"
    )
    return parser.parse_args()


def _stop(number: int, frame: object) -> None:
    """Stop the lab, once: nothing interrupts what takes it down."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def cache_folder() -> Path:
    """Return where the root file system and downloaded wheels are kept."""
    named = os.environ.get("EDGEPACK_LAB_CACHE")
    return Path(named).absolute() if named else Path.home() / ".cache" / "edgepack-lab"


def run_lab(record: Path | None, *, fresh: bool, every_variant: bool = False) -> Findings:
    """Start the boards, walk the road, take everything down; return what was seen.

    Raises:
        CannotRunError: This machine cannot run it.
        LabError: The lab failed.
    """
    from edgepack.base.clock import format_now
    from edgepack.errors import EdgepackError

    from tests.lab.board import make_key, start_board, take_out
    from tests.lab.commands import say
    from tests.lab.findings import Findings
    from tests.lab.kinds import KINDS
    from tests.lab.road import Lab, walk
    from tests.lab.rootfs import find_rootfs

    cache = cache_folder()
    with ExitStack() as stack:
        stack.enter_context(host.only_one())
        work = stack.enter_context(host.work_folder())
        stack.enter_context(host.emulation())
        with ThreadPoolExecutor(len(KINDS)) as pool:
            making = [
                pool.submit(find_rootfs, cache, work, say, each, fresh=fresh) for each in KINDS
            ]
            tarballs = [each.result() for each in making]
        use_own_folders(work / "user", cache)
        key = work / "key"
        make_key(key)
        boards = []
        for number, (kind, tarball) in enumerate(zip(KINDS, tarballs, strict=True), 1):
            boards.append(stack.enter_context(start_board(number, kind, tarball, key, work)))
            say(f"{boards[-1].name} answers at {boards[-1].address} port {boards[-1].port}")
        for board in boards:
            if board.kind.release == "trixie":
                take_out(board, "usr/lib/python3.*/ensurepip")
        findings = Findings([board.name for board in boards])
        findings.facts["created"] = format_now()
        findings.facts["emulator"] = f"qemu-user {host.emulator_version()}"
        finished = False
        try:
            lab = Lab(boards, key, work / "dist", findings)
            walk(lab, every_variant=every_variant)
            finished = True
        except (EdgepackError, host.LabError) as error:
            findings.expect("the road was walked to its end", held=False, found=error)
        if record is not None:
            findings.write(record, finished=finished)
        say(f"{findings.count - len(findings.failed)} of {findings.count} expectations held")
        for what in findings.failed:
            say(f"  FAIL  {what}")
    return findings


def use_own_folders(user: Path, cache: Path) -> None:
    """Let edgepack and pip, here and in children, read and write nothing of the user's."""
    folders = {
        "HOME": user,
        "XDG_CONFIG_HOME": user / "config",
        "XDG_DATA_HOME": user / "data",
        "XDG_CACHE_HOME": user / "cache",
        "TMPDIR": user / "tmp",
        "PIP_CACHE_DIR": cache / "pip",
    }
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    os.environ.update({name: str(folder) for name, folder in folders.items()})
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"


if __name__ == "__main__":
    sys.exit(main())
