"""The systemd unit: systemd reads it without a word, and finds little that it leaves open."""

from __future__ import annotations

import re
from pathlib import Path

from edgepack.base.processes import ProgramResult, run_program

from tests.mobile.proofs import Proof, require
from tests.service.served import make_bundle

PYTHON = "/opt/edgepack/serve/bin/python"
"""What the unit starts, where its operator made an environment."""
MOST_EXPOSED = 2.0
"""On systemd's scale from 0 to 10."""


def write_unit(work: Path, text: str) -> Path:
    work.mkdir(exist_ok=True)
    path = work / "edgepack-digits.service"
    path.write_text(text.replace(PYTHON, "/usr/bin/env"))
    return path


def read_unit() -> str:
    return (make_bundle() / "service" / "edgepack-digits.service").read_text()


def analyze(what: str, *options: str) -> ProgramResult:
    return run_program(["systemd-analyze", what, *options], timeout_s=60)


def look_at_words(work: Path) -> str:
    """It has no word that systemd does not know; one that it does not know is found."""
    done = analyze("verify", str(write_unit(work / "whole", read_unit())))
    said = done.stderr.decode().strip()
    require(not done.exit_code and not said, f"systemd-analyze verify: {said}")
    planted = read_unit().replace("PrivateTmp=", "PrivateTemp=")
    found = analyze("verify", str(write_unit(work / "planted", planted)))
    require(b"PrivateTemp" in found.stderr, "systemd-analyze verify does not see a wrong word")
    return "systemd-analyze verify says nothing, and tells a planted word"


def measure_exposure(path: Path) -> float:
    done = analyze("security", "--offline=true", "--no-pager", str(path))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.text)
    require(found is not None, f"systemd-analyze security: {done.last_lines}")
    return float(found[1])


def look_at_exposure(work: Path) -> str:
    """It leaves as little open as it is to."""
    exposure = measure_exposure(write_unit(work / "whole", read_unit()))
    require(exposure <= MOST_EXPOSED, f"its exposure is {exposure}, and {MOST_EXPOSED} at most")
    open_unit = re.sub(r"^(DynamicUser|PrivateUsers|Capability\w+|SystemCall\w+)=.*$", "",
                       read_unit(), flags=re.MULTILINE)  # fmt: skip
    planted = measure_exposure(write_unit(work / "planted", open_unit))
    require(planted > MOST_EXPOSED, f"a unit that leaves much open has {planted}")
    return f"exposure {exposure} of 10; {planted} without users and filters"


PROOFS = (
    Proof("systemd knows every word", look_at_words),
    Proof("little is left open", look_at_exposure),
)
