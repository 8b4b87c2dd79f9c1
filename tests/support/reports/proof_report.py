"""One report for all proofs: each writes what it checked as JUnit XML, and one table shows them.

A proof writes ``NAME.xml`` into the folder that ``EDGEPACK_PROOF_REPORTS`` names, if it names one;
pytest writes its own with ``--junitxml``. This prints the table, then each check that failed::

    python -m tests.support.reports.proof_report FOLDER

Exit codes: 0 everything held, 1 something did not, or the folder has no report.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

VARIABLE = "EDGEPACK_PROOF_REPORTS"
FORMAT = "{:14} {:>7} {:>7} {:>8} {:>9}"


@dataclass(frozen=True)
class Check:
    """One thing that a proof looked at."""

    what: str
    problem: str = ""
    """What was found instead; nothing where it holds."""


def report(proof: str, checks: Sequence[Check], seconds: float, *, not_run: str = "") -> None:
    """Write a proof's report, if there is a folder for it; ``not_run`` says why it did not run."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    failed = sum(bool(check.problem) for check in checks)
    counts = {"tests": len(checks), "failures": failed, "errors": 0, "skipped": int(bool(not_run))}
    facts = {"name": proof, "time": f"{seconds:.1f}", **counts}
    suite = ET.Element("testsuite", {name: str(value) for name, value in facts.items()})
    for check in checks:
        case = ET.SubElement(suite, "testcase", classname=proof, name=check.what)
        if check.problem:
            ET.SubElement(case, "failure", message=check.problem)
    if not_run:
        case = ET.SubElement(suite, "testcase", classname=proof, name=proof)
        ET.SubElement(case, "skipped", message=not_run)
    Path(folder).mkdir(parents=True, exist_ok=True)
    ET.ElementTree(suite).write(Path(folder) / f"{proof}.xml", "utf-8", xml_declaration=True)


def main(folder: Path) -> int:
    """Print the table of a folder's reports; return the exit code."""
    found = {path.stem: ET.parse(path).getroot() for path in sorted(folder.glob("*.xml"))}
    suites = [(name, suite) for name, root in found.items() for suite in root.iter("testsuite")]
    print(FORMAT.format("proof", "checks", "failed", "not run", "took"))
    for name, suite in suites:
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        numbers = (suite.get("tests", "0"), failed, suite.get("skipped", "0"))
        print(FORMAT.format(name, *numbers, f"{float(suite.get('time', 0)):.0f} s"))
    cases = [(name, case) for name, suite in suites for case in suite.iter("testcase")]
    lost = [
        f"{name}: {case.get('name')}: {wrong.get('message')}"
        for name, case in cases
        for wrong in (*case.iter("failure"), *case.iter("error"))
    ]
    for line in lost:
        print(line)
    return 1 if lost or not suites else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
