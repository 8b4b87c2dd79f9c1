"""Write the examples of what edgepack writes into docs/examples.

Run it after changing what a manifest or a report holds, on x86-64 Linux:
``.venv/bin/python -m tests.docs.write_examples``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from edgepack.builder.build import build
from edgepack.bundle.manifest import MANIFEST
from edgepack.devices.inventory import load_device
from edgepack.measure.bench.run import bench
from edgepack.records.run import RunReport

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "examples"
LATENCIES = 40
KERNEL = "Linux 6.12.0"
HOME = "/home/bench"
BOOT_ID = "00000000-0000-0000-0000-000000000000"


def shown(report: RunReport) -> RunReport:
    """Return a report with short lists of latencies, and without what tells this machine."""
    runs = [
        run.model_copy(update={"latencies_ns": run.latencies_ns[:LATENCIES], "boot_id": BOOT_ID})
        for run in report.runs
    ]
    facts = report.facts.model_copy(update={"os": KERNEL, "boot_id": BOOT_ID})
    home, python = str(Path.home()), sys.executable
    argv = [word.replace(python, "/usr/bin/python3").replace(home, HOME) for word in report.argv]
    return report.model_copy(update={"runs": runs, "facts": facts, "argv": argv})


def main() -> None:
    """Build the example for two targets, measure it here, and write manifest and report."""
    with tempfile.TemporaryDirectory(prefix="edgepack-examples-") as folder:
        built = build(
            project=ROOT / "examples" / "digits" / "edgepack.yaml",
            targets=["raspberry-pi", "linux-x86-64"],
            out=Path(folder),
        )
        built.require_all()
        pi, here = (each.bundle.path for each in built.bundles)
        (FOLDER / "manifest.json").write_bytes((pi / MANIFEST).read_bytes())
        report = bench(here, load_device("local"), preset="smoke")
    (FOLDER / "report.json").write_text(shown(report).model_dump_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
