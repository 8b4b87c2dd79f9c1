"""What ``edgepack tune`` finds against onnxruntime's defaults, on this machine.

The whole road: build, tune with ``--write``, build again with what it wrote. Then the second bundle
is measured against the first, which has the defaults, in pairs of process runs in A B B A order
that the search never saw; the ratio is that of median latencies. Where tuning answers with the
defaults there is nothing to compare, and the row says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from edgepack.base.statistics import median
from edgepack.measure.tune.space import format_settings
from edgepack.records.tuning import TuneReport

from tests.bench.measuring import (
    EDGEPACK,
    Row,
    build_command,
    interleaved,
    own_folders,
    ratio_text,
    run,
    scratch,
)
from tests.bench.projects import MOBILENET, SQUEEZENET, public_data, write_project

PAIRS = 20
BUDGET = "6m"
SECONDS = 1.0
"""Timed in each process run."""
FEW_SAMPLES = "{calibration: {images: images, limit: 10}, evaluation: {images: images, limit: 10}}"


def measure() -> Iterator[Row]:
    """Yield a row for each public model."""
    data = public_data()
    for model in (SQUEEZENET, MOBILENET) if data else ():
        with scratch() as folder:
            (folder / "project").mkdir()
            project = write_project(folder / "project", model, data, FEW_SAMPLES)
            yield _row(model.name, project, folder)


def _row(name: str, project: Path, folder: Path) -> Row:
    environment = own_folders(folder)
    run(build_command(project, folder / "first"), environment)
    first = _bundle(folder / "first")
    argv = [EDGEPACK, "tune", str(first), "--device", "local", "--project", str(project)]
    found = run([*argv, "--write", "--budget", BUDGET, "--json"], environment)
    report = TuneReport.model_validate_json(found)
    answer = report.candidate(report.answer)
    what = (
        f"tuned / defaults, {name}: {answer.settings.variant}, {format_settings(answer.settings)}"
    )
    ran = f"{sum(bool(one.runs) for one in report.candidates)} candidates"
    if answer.defaults:
        return Row(what, ran, "1 (they are the defaults)", "at most 1", report.why)
    run(build_command(project, folder / "second"), environment)
    second = _bundle(folder / "second")
    base = report.candidate(report.confirmation.base).settings.variant
    pairs = interleaved(
        lambda: harness_ms(second, answer.settings.variant),
        lambda: harness_ms(first, base),
        PAIRS,
    )
    ours, theirs = (median(side) for side in zip(*pairs, strict=True))
    beside = f"medians {ours:.3f} ms, {base} {theirs:.3f} ms; {ran}"
    return Row(what, f"{PAIRS} pairs", ratio_text(pairs), "at most 1", beside)


def _bundle(folder: Path) -> Path:
    (bundle,) = (path for path in folder.iterdir() if path.is_dir())
    return bundle


def harness_ms(bundle: Path, variant: str) -> float:
    """Return the median latency of one process run of a bundle as it is."""
    argv = [sys.executable, "-B", str(bundle / "harness" / "edgepack_harness.py"), "measure"]
    argv += ["--bundle", str(bundle), "--variant", variant, "--warm-up-s=0.5"]
    argv += ["--warm-up-cap-s=0", f"--duration-s={SECONDS:g}", "--iterations=20"]
    return median(json.loads(run(argv))["latencies_ns"]) / 1e6
