"""Builds of a case, by edgepack itself: the only part of the test bed that calls it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.api import EdgepackError, build

from tests.proofs.cases import Feed, Made
from tests.proofs.shipped import Bundle, read_bundle

_HOOK = """
import numpy as np


def samples(which):
    with np.load(f"{which}.npz") as file:
        count = len({key.split(":")[0] for key in file.files})
        for k in range(count):
            names = [key for key in file.files if key.startswith(f"{k}:")]
            yield {name.split(":", 1)[1]: file[name] for name in names}


def calibration():
    return samples("calibration")


def evaluation():
    return samples("evaluation")
"""


@dataclass(frozen=True)
class Built:
    """What a build of a case left."""

    bundles: list[Bundle]
    missing: list[tuple[str, str, str]]
    """Target, variant and reason of what was asked for and is not shipped."""


def write_project(folder: Path, made: Made, targets: Sequence[Any], *, judged: bool = True) -> Path:
    """Write a case's project; without evaluation samples nothing is judged."""
    sources: dict[str, Any] = {}
    sets = {"calibration": made.calibration, "evaluation": made.evaluation}
    for which, feeds in sets.items():
        if feeds and (which == "calibration" or judged):
            sources[which] = _write_samples(folder, which, feeds)
    if made.labels is not None and judged:
        arrays = dict(np.load(folder / "evaluation.npz"))
        np.savez(folder / "evaluation.npz", **arrays, labels=made.labels)
        sources["evaluation"]["labels"] = "labels"
    project = {
        "schema_version": 1,
        "name": "proof",
        "version": "1.0.0",
        "model": str(made.model.relative_to(folder)),
        "samples": sources,
        "targets": list(targets),
        **made.yaml,
    }
    if not judged:
        project.pop("limits", None)  # they are about evaluation samples
    path = folder / ("edgepack.yaml" if judged else "unjudged.yaml")
    path.write_text(json.dumps(project), encoding="utf-8")
    return path


def _write_samples(folder: Path, which: str, feeds: Sequence[Feed]) -> dict[str, Any]:
    """Write an ``.npz`` where all samples have one shape, else what a Python function reads."""
    shapes = {tuple((name, array.shape) for name, array in feed.items()) for feed in feeds}
    is_plain = len(shapes) == 1 and all(len(a.shape) and a.shape[0] == 1 for a in feeds[0].values())
    if is_plain:
        arrays = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
        np.savez(folder / f"{which}.npz", **arrays)
        return {"path": f"{which}.npz"}
    np.savez(
        folder / f"{which}.npz",
        **{f"{k}:{name}": array for k, feed in enumerate(feeds) for name, array in feed.items()},
    )
    (folder / "proof_samples.py").write_text(_HOOK, encoding="utf-8")
    return {"python": f"proof_samples:{which}"}


def build_case(folder: Path, made: Made, targets: Sequence[Any], out: Path) -> Built:
    """Build for all of a case's targets, as ``edgepack build`` does without a simulator.

    What a simulator computes cannot be judged by what a CPU does.
    """
    return _built(build(project=write_project(folder, made, targets), out=out, simulate_s=0))


def build_unjudged(
    folder: Path, made: Made, targets: Sequence[Any], target: str, variant: str, out: Path
) -> Built | None:
    """Build one variant by name without evaluation samples, so that nothing refuses it.

    None if it cannot be made at all.
    """
    project = write_project(folder, made, targets, judged=False)
    try:
        return _built(
            build(project=project, targets=[target], variants=[variant], out=out, simulate_s=0)
        )
    except EdgepackError:
        return None


def _built(result: Any) -> Built:
    bundles = [read_bundle(built.bundle.path) for built in result.bundles]
    built = {bundle.manifest["target"] for bundle in bundles}
    missing = [(*error.where.split(" "), error.problem) for error in result.errors]
    missing += [
        (target, each.variant, each.reason)
        for target, unused in result.unused.items()
        if target not in built
        for each in unused
    ]
    return Built(bundles, missing)
