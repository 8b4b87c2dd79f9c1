"""Tells whether the bundle that a build would write stands there already."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from edgepack.base.files import hash_file
from edgepack.base.resources import find_templates_dir
from edgepack.builder.cache import StepCache, hash_code
from edgepack.builder.job import JudgedBundle
from edgepack.builder.manifest import find_build_host
from edgepack.bundle.reading import Bundle, verify
from edgepack.errors import BundleError

_WRITTEN = "bundle.json"


def hash_origins(judged: JudgedBundle) -> str:
    """Return a digest of all that decides the bytes of a bundle.

    That is edgepack's own code and templates, the tools that the manifest names, the project with
    its files, the plan, the outputs of its steps, and the verdict. What is not in it must not be
    read when a bundle is written.
    """
    loaded, execution, verdict = judged.job.loaded, judged.execution, judged.verdict
    origins = {
        "code": hash_code(),
        "templates": _hash_templates(),
        "host": find_build_host().model_dump(mode="json"),
        "project": loaded.project.model_dump(mode="json"),
        "files": {name: hash_file(loaded.find_file(name)) for name in loaded.project.files},
        "model": [judged.job.facts.name, judged.job.facts.sha256],
        "plan": judged.job.plan.digest,
        "bundle": judged.profile.id,
        "outputs": {step: artifact.digest for step, artifact in execution.artifacts.items()},
        "failed": {step: [e.problem, e.hint, e.where] for step, e in execution.failed.items()},
        "shipped": [
            [planned.variant.id, planned.offered, accuracy.model_dump(mode="json")]
            for planned, accuracy in verdict.shipped
        ],
        "unused": [each.model_dump(mode="json") for each in verdict.unused],
    }
    return hashlib.sha256(json.dumps(origins, sort_keys=True).encode()).hexdigest()


@functools.cache
def _hash_templates() -> str:
    folder, digest = find_templates_dir(), hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{hash_file(path)}\n".encode())
    return digest.hexdigest()


def find_standing(origins: str, cache: StepCache, final: Path) -> Bundle | None:
    """Return the bundle in a folder if these origins were written there and no file has changed."""
    if (record := cache.find(f"bundle-{origins}")) is None:
        return None
    written = json.loads((record.path / _WRITTEN).read_text(encoding="utf-8"))["digest"]
    try:
        bundle = verify(final)
    except BundleError:
        return None
    return bundle if bundle.digest == written else None


def remember(origins: str, cache: StepCache, bundle: Bundle) -> None:
    """Keep which bundle these origins gave.

    Raises:
        ToolError: The cache cannot be written.
    """
    text = json.dumps({"digest": bundle.digest})
    cache.keep(
        f"bundle-{origins}",
        lambda folder: (folder / _WRITTEN).write_text(text, encoding="utf-8"),
    )
