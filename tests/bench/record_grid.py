"""Measures every variant and setting of three networks here, for replays of ``edgepack optimize``.

::

    EDGEPACK_TEST_DATA=FOLDER python -m tests.bench.record_grid [OUT]

All candidates of a network make one process run, in a random order, then all the next one, on the
local device: so what else the machine does slows all alike. ``tests/unit/measure`` replays searches
against what this writes, ``tests/support/reports/optimize_grid.json``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from edgepack.backends.targets import choose_targets
from edgepack.base.clock import format_now
from edgepack.base.progress import Lines
from edgepack.base.resources import find_example_dir
from edgepack.builder.build import build_candidates
from edgepack.bundle.reading import Bundle, load_bundle
from edgepack.devices.inventory import load_device
from edgepack.devices.topology import ask_topology
from edgepack.measure.bench.session import open_harness
from edgepack.measure.optimize.candidates import add_candidates
from edgepack.measure.tune.halving import CandidateOutError
from edgepack.measure.tune.searching import Site, TuneQuestion, TuneSearch
from edgepack.project.limits import Limits
from edgepack.project.loading import read_project
from edgepack.project.profile import find_host_target

from tests.bench.projects import MOBILENET, SQUEEZENET, public_data, write_project
from tests.support.reports.optimize_grid import GRID, strip

ROUNDS = 3
BUDGET_S = 300.0
"""As of a search: it decides how long a run is."""
SAMPLES = "{calibration: {images: images, limit: 60}, evaluation: {images: images, limit: 100}}"


def main(out: Path) -> None:
    data = public_data()
    if data is None:
        sys.exit("EDGEPACK_TEST_DATA does not name a folder of public models")
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    networks = {}
    for name, model in (("digits", None), ("mobilenet", MOBILENET), ("squeezenet", SQUEEZENET)):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "project"
            if model is None:
                shutil.copytree(find_example_dir(), folder)
                project = folder / "edgepack.yaml"
            else:
                folder.mkdir()
                project = write_project(folder, model, data, SAMPLES)
            networks[name] = record(project, Path(scratch) / "dist")
    out.write_text(json.dumps({"created": format_now(), "networks": networks}) + "\n")
    print(f"wrote {out}")


def record(project: Path, out: Path) -> dict[str, Any]:
    """Return all process runs of one network, by candidate."""
    loaded = read_project(project)
    [profile] = choose_targets(loaded, [find_host_target()])
    built = build_candidates(loaded, add_candidates(profile), Limits(), out, progress=Lines())
    bundle = load_bundle(built.bundles[0].bundle.path)
    return measure(bundle)


def measure(bundle: Bundle) -> dict[str, Any]:
    device = load_device("local")
    question = TuneQuestion(bundle.path, budget_s=BUDGET_S)
    with open_harness(bundle, device, "grid", wait_s=0, progress=Lines()) as harness:
        selection = harness.select(None)
        topology = ask_topology(harness.transport, harness.python, harness.run_prefix)
        site = Site(question, device, bundle, harness, selection, topology, [], Lines())
        search = TuneSearch(site, bundle.manifest.variants)
        runs: list[list[dict[str, Any]]] = [[] for _ in search.tried]
        for number in range(ROUNDS):
            order = Random(number).sample(range(len(search.tried)), len(search.tried))
            for place, candidate in enumerate(order, 1):
                print(f"round {number + 1}, {place} of {len(order)}", file=sys.stderr)
                runs[candidate].append(time_candidate(search, candidate))
    return {
        "topology": topology.model_dump(mode="json"),
        "device": {
            **selection.device.model_dump(mode="json"),
            "os": "Linux",
            "boot_id": {"kind": "not-measured", "reason": "it is of no use here"},
        },
        "variants": [strip(entry) for entry in bundle.manifest.variants],
        "runs": {search.tried[k].settings.key: found for k, found in enumerate(runs)},
    }


def time_candidate(search: TuneSearch, number: int) -> dict[str, Any]:
    tried = search.tried[number]
    began = monotonic()
    try:
        found = search.make_run(tried, search.question.search)
    except CandidateOutError as error:
        return {"problem": str(error), "took_s": round(monotonic() - began, 3)}
    took_s = round(monotonic() - began, 3)
    return {"p50_ns": found.p50_ns, "p90_ns": found.p90_ns, "took_s": took_s}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else GRID)
