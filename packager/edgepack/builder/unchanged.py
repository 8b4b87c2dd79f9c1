"""Tells whether the bundle that a build would write stands there already."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from edgepack.base.files import hash_file
from edgepack.base.resources import find_templates_dir
from edgepack.base.schema import NotMeasured
from edgepack.builder.cache import StepCache, hash_code, hash_tree
from edgepack.builder.custom_ops import FOLDER, find_libraries
from edgepack.builder.job import JudgedBundle
from edgepack.builder.manifest import find_build_host
from edgepack.builder.plan import hash_bundle
from edgepack.bundle.reading import Bundle, verify
from edgepack.errors import BundleError, ToolError
from edgepack.project.loading import LoadedProject

_WRITTEN = "bundle.json"


def hash_origins(judged: JudgedBundle) -> str:
    """Return a digest of all that decides the bytes of a bundle.

    That is edgepack's own code and templates, the tools that the manifest names, the project with
    its files, the plan, the outputs of its steps, and the verdict. What is not in it must not be
    read when a bundle is written. Keys of the project and the profile count in their order, as
    they are written in it.

    Raises:
        ProfileError: A file of the project is not there any more.
        ToolError: A file of the project cannot be read.
    """
    execution, planned, plan = judged.execution, judged.planned, judged.job.plan
    variants = planned.variants
    needed = plan.find_needed([step for each in variants for step in (*each.steps, *each.beside)])
    origins = {
        "code": hash_code(),
        "templates": _hash_templates(),
        "host": find_build_host().model_dump(mode="json"),
        "project": judged.project.model_dump(mode="json"),
        "files": _hash_files(judged.job.loaded),
        "model": [judged.job.facts.name, judged.job.facts.sha256],
        "profile": judged.profile.model_dump(mode="json"),
        "plan": [plan.only(needed).digest, hash_bundle(planned)],
        "outputs": [
            (s, execution.artifacts[s].digest) for s in sorted(needed & set(execution.artifacts))
        ],
        "failed": [(s, str(execution.failed[s])) for s in sorted(needed & set(execution.failed))],
        "variants": [
            [each.variant.id, each.offered, _dump(each.simulated), _dump(each.compiled)]
            for each in variants
        ],
        "shipped": [
            [each.variant.id, accuracy.model_dump(mode="json")]
            for each, accuracy in judged.verdict.shipped
        ],
        "unused": [each.model_dump(mode="json") for each in judged.verdict.unused],
    }
    return hashlib.sha256(json.dumps(origins).encode()).hexdigest()


def _dump(step: str | NotMeasured | None) -> object:
    """Return a step's id, or why there is none."""
    return step.reason if isinstance(step, NotMeasured) else step


def _hash_files(loaded: LoadedProject) -> list[tuple[str, str]]:
    """Return the project's own files and libraries, by their places in the bundle."""
    paths = {loaded.find_place(name): loaded.find_file(name) for name in loaded.project.files}
    paths |= {f"{FOLDER}/{key}": path for key, path in find_libraries(loaded).items()}
    try:
        return [(place, hash_file(path)) for place, path in paths.items()]
    except OSError as error:
        raise ToolError(
            f"cannot read {error.filename!r}: {error.strerror}",
            hint="make the file readable for your user: 'files' or 'custom_ops' in edgepack.yaml"
            " has it",
        ) from error


@functools.cache
def _hash_templates() -> str:
    return hash_tree(find_templates_dir(), "*")


def find_standing(origins: str, cache: StepCache, final: Path) -> Bundle | None:
    """Return the bundle in a folder if these origins were written there and no file has changed.

    Where the record or the bundle cannot be read, the answer is None: it is written again.
    """
    if (record := cache.find(f"bundle-{origins}")) is None:
        return None
    try:
        written = json.loads((record.path / _WRITTEN).read_text(encoding="utf-8"))["digest"]
        bundle = verify(final)
    except (BundleError, OSError, ValueError, KeyError, TypeError):
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
