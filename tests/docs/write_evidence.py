"""Turn reports of ``edgepack bench``, or a simulator's figures, into evidence for grades.

::

    edgepack bench BUNDLE --device NAME --variant ID     once for each variant; then
    python -m tests.docs.write_evidence --reproduce 'edgepack bench ...' REPORT.json ...
    make lab LAB='--record lab.json'; python -m tests.docs.write_evidence --lab lab.json
    python -m tests.docs.write_evidence --reproduce 'edgepack build ...' --bundle BUNDLE
    python -m tests.placement.xnnpack --record xnnpack.json
    python -m tests.docs.write_evidence --reproduce 'make placement' --software xnnpack.json
    python -m tests.docs.write_targets

All reports have to be of one bundle on one device. What they say decides the grade: nothing is
written that they do not show. ``--software-only`` is for a provider's real software on another
maker's machine, whose time shows nothing of the target.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import Accuracy, Simulated
from edgepack.bundle.reading import load_bundle
from edgepack.demo.prove import make_evidence
from edgepack.errors import UsageError
from edgepack.project.grades import Evidence, SeenMetric, SeenVariant
from edgepack.results.store.documents import read_report

FOLDER = Path(__file__).resolve().parents[2] / "targets" / "evidence"


def bundle_evidence(folder: Path, reproduce: str) -> Evidence:
    """Return what a bundle's variants did in the vendor's simulator during the build.

    Raises:
        UsageError: None ran there.
    """
    manifest = load_bundle(folder).manifest
    found = [(v.id, v.simulated) for v in manifest.variants if isinstance(v.simulated, Simulated)]
    if not found:
        raise UsageError("no variant was simulated", hint="pip install 'edgepack[qnn]', and build")
    return Evidence(
        schema_version=1,
        target=manifest.target,
        how="simulator",
        date=datetime.now(UTC).date(),
        os="linux",
        arch="x86-64",
        device=found[0][1].simulator,
        runtime={
            name: version
            for name, version in manifest.built_on.tools.items()
            if name in ("python", "onnxruntime")
        },
        model=manifest.id,
        variants=[
            SeenVariant(
                id=name,
                golden_sqnr_db=seen.golden_sqnr_db,
                nodes=seen.nodes,
                verdict="not measured",
                metric=_seen_metric(seen),
            )
            for name, seen in found
        ],
        reproduce=reproduce,
    )


def _seen_metric(seen: Simulated) -> SeenMetric | None:
    accuracy = seen.accuracy
    if not isinstance(accuracy, Accuracy) or isinstance(accuracy.fp32, NotMeasured):
        return None
    return SeenMetric(
        name=accuracy.metric,
        value=accuracy.value,
        fp32=accuracy.fp32,
        samples=accuracy.samples,
    )


def software_evidence(loaded: dict[str, Any], reproduce: str) -> Evidence:
    """Return what a bundle's variants did with a provider's own software on another processor."""
    return Evidence(
        schema_version=1,
        target=loaded["target"],
        how="simulator",
        date=datetime.fromisoformat(loaded["created"]).date(),
        os="linux",
        arch="x86-64",
        device=loaded["device"],
        runtime=loaded["runtime"],
        model=f"digits-1.0.0-{loaded['target']}",
        variants=[SeenVariant(**each, verdict="not measured") for each in loaded["variants"]],
        reproduce=reproduce,
    )


def lab_evidence(record: dict[str, Any]) -> list[Evidence]:
    """Return what a record of ``make lab`` shows of each board.

    Raises:
        UsageError: Something did not hold.
    """
    if not record["held"]:
        raise UsageError("the lab did not hold", hint="see its output, and run it again")
    return [
        _board_evidence(board, record["bundles"][name]["id"], record)
        for name, board in record["boards"].items()
        if board["emulated"]
    ] + [
        Evidence.model_validate_json(json.dumps(board["evidence"]))
        for board in record["boards"].values()
        if "evidence" in board
    ]


def _board_evidence(board: dict[str, Any], model: str, record: dict[str, Any]) -> Evidence:
    return Evidence(
        schema_version=1,
        target=board["target"],
        how="emulation",
        date=datetime.fromisoformat(record["created"]).date(),
        os="linux",
        arch=board["arch"],
        device=f"an emulated board ({record['emulator']})",
        runtime={name: board[name] for name in ("python", "onnxruntime")},
        model=model,
        variants=[
            SeenVariant(
                id=variant["id"],
                golden_sqnr_db=min(variant["golden_sqnr_db"]),
                nodes=variant["nodes_by_provider"],
                verdict="not measured",
            )
            for variant in board["variants"]
        ],
        reproduce="make lab",
    )


def main() -> None:
    """Write evidence files: one, or one for each board of the lab."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reproduce", default="", help="the command that shows it again")
    parser.add_argument("--software-only", action="store_true", help="the machine is another kind")
    parser.add_argument("--lab", type=Path, help="a record of make lab, instead of reports")
    parser.add_argument("--software", type=Path, help="a record of tests.placement.xnnpack")
    parser.add_argument("--bundle", type=Path, help="one that was simulated, instead of reports")
    parser.add_argument("reports", nargs="*", type=Path)
    arguments = parser.parse_args()
    if arguments.lab:
        for found in lab_evidence(json.loads(arguments.lab.read_text(encoding="utf-8"))):
            _write(found)
        return
    if arguments.software:
        record = json.loads(arguments.software.read_text(encoding="utf-8"))
        found = software_evidence(record["loaded"], arguments.reproduce)
    elif arguments.bundle:
        found = bundle_evidence(arguments.bundle, arguments.reproduce)
    else:
        found = make_evidence(
            [read_report(path) for path in arguments.reports],
            arguments.reproduce,
            software_only=arguments.software_only,
        )
    _write(found)


def _write(found: Evidence) -> None:
    path = FOLDER / f"{found.target}-{found.how}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    print(path)  # noqa: T201  (a script says what it wrote)


if __name__ == "__main__":
    main()
