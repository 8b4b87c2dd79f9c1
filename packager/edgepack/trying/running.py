"""Running a bundle's variants on this machine, each input in a process that may crash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.base.processes import Workers
from edgepack.base.progress import Progress, Work
from edgepack.bundle.manifest import ManifestVariant
from edgepack.errors import ToolError

if TYPE_CHECKING:
    from edgepack.ondevice.runtime.edgepack_loader import Bundle, Model

Arrays = dict[str, np.ndarray[Any, Any]]
CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class VariantRun:
    """What one variant did on this machine."""

    variant: str
    recipe: str
    outputs: tuple[Arrays | str, ...] = ()
    """By sample; a text says why there are none. Empty if the variant was not run."""
    on_cpu: str = ""
    """Why its model ran on this machine's CPU instead of as the variant says."""
    same_as: str = ""
    """The variant that has the same model file, which was run on the CPU already."""
    problem: str = ""
    """Why it was not run."""
    crash: str = ""
    """How its process died, with the last lines it wrote."""

    @property
    def words(self) -> str:
        """How it was run, or why it was not; nothing where it ran as on a device."""
        if self.crash:
            return f"crashed here: {self.crash.partition(chr(10))[0]}"
        if self.problem:
            return f"cannot run here: {self.problem}"
        if self.same_as:
            return f"not on this machine, and its model file is {self.same_as}'s: {self.on_cpu}"
        return f"its model, on this machine's CPU: {self.on_cpu}" if self.on_cpu else ""


def run_variants(
    folder: Path,
    variants: Sequence[ManifestVariant],
    feeds: Sequence[Mapping[str, Any]],
    progress: Progress,
) -> list[VariantRun]:
    """Run each variant on the samples, and return the results in their order.

    A variant that this machine cannot run as it is, because it lacks its execution provider, is
    run on the CPU if its model file allows that, and says so.

    Args:
        folder: A verified bundle.
        variants: Of the bundle.
        feeds: For each sample its arrays, masks included. Inputs of a state that one leaves out are
            what each variant itself put out for the sample before.
        progress: Is told when a variant is done.
    """
    found: dict[str, VariantRun] = {}
    done: dict[tuple[str, ...], str] = {}
    with progress.start_task(Work("try", total=len(variants))) as is_done:
        # Those of the CPU first: others may hold the same file.
        for variant in sorted(variants, key=lambda each: each.backend != "cpu"):
            files = (variant.model_sha256, *(bucket.model_sha256 for bucket in variant.buckets))
            ran = _run_apart(folder, variant, feeds, done.get(files, ""))
            found[variant.id] = ran
            if ran.outputs and (variant.backend == "cpu" or ran.on_cpu):
                done.setdefault(files, variant.id)
            is_done(variant.id)
    return [found[variant.id] for variant in variants]


def _run_apart(
    folder: Path, variant: ManifestVariant, feeds: Sequence[Mapping[str, Any]], twin: str
) -> VariantRun:
    with Workers(1) as workers:
        try:
            return workers.call(run_variant, folder, variant.id, list(feeds), twin)
        except ToolError as error:
            return VariantRun(variant.id, variant.recipe, crash=error.problem)


def run_variant(
    folder: Path, variant: str, feeds: Sequence[Mapping[str, Any]], twin: str = ""
) -> VariantRun:
    """Run one variant; loads onnxruntime and may crash, so it is called in a worker."""
    from edgepack.ondevice.runtime import edgepack_loader as loader

    bundle = loader.Bundle(folder)
    entry = bundle.list_variants(variant)[0]
    reason = ""
    try:
        # Without the sources, which say how a device would get the provider.
        loader.check_requirements(entry)
        model = loader.load(folder, variant)
    except (loader.Refused, loader.LoadError) as error:
        reason = str(error).partition(f"\n  {variant}: ")[2] or str(error)
        reason = reason.partition(" (it has ")[0]
        if twin:
            return VariantRun(variant, entry["recipe"], on_cpu=reason, same_as=twin)
        try:
            model = _open_cpu_model(bundle, entry)
        except loader.Refused as failure:
            problem = f"{reason}; its model on the CPU: {_shorten_error(failure)}"
            return VariantRun(variant, entry["recipe"], problem=problem)
        if entry["providers"][0]["name"] != CPU:
            reason += _explain_doubts(model)
    return VariantRun(
        variant, entry["recipe"], tuple(_compute_outputs(model, feeds)), on_cpu=reason
    )


def _open_cpu_model(bundle: Bundle, entry: dict[str, Any]) -> Model:
    """Return a variant's model on this machine's CPU, whatever the variant asks for."""
    from edgepack.ondevice.runtime import edgepack_loader as loader

    plain = {
        **entry,
        "providers": [{"name": CPU, "options": {}}],
        "placement": "all",
        "requires": {**entry["requires"], "cpu": []},
        "session": {**entry["session"], "config": {}},
    }
    sessions = [loader.open_session(bundle, single) for single in loader.split_models(plain)]
    return loader.Model(bundle, plain, sessions)


def _explain_doubts(model: Model) -> str:
    """Return what the golden outputs say against a model on this CPU; nothing if they are right."""
    from edgepack.ondevice.runtime import edgepack_loader as loader

    limit_db: float = model.entry["min_sqnr_db"]
    try:
        found_db = model.measure_golden_db(0)
    except loader.ORT_ERRORS as error:
        return f"; a golden input fails there: {_shorten_error(error)}"
    if found_db >= limit_db:
        return ""
    return (
        f"; it computes something else there than the device should: {found_db:.0f} dB near the"
        f" golden output, {limit_db:g} are needed"
    )


def _compute_outputs(model: Model, feeds: Sequence[Mapping[str, Any]]) -> Iterator[Arrays | str]:
    from edgepack.ondevice.runtime import edgepack_loader as loader

    state: dict[str, str] = model.bundle.manifest.get("state", {})
    own: Arrays = {}
    for feed in feeds:
        try:
            found = dict(model.run({**own, **feed}))
        except loader.ORT_ERRORS as error:
            yield _shorten_error(error)
            own = {}
        else:
            yield found
            own = {name: found[output] for output, name in state.items()}


def _shorten_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..."
