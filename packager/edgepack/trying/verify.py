"""``edgepack verify``: hashes, signature, and golden outputs on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.base.machine import find_processor
from edgepack.base.processes import Workers
from edgepack.bundle import reading
from edgepack.bundle.archive import open_folder
from edgepack.bundle.signing import Signature, read_signature, require_signature
from edgepack.errors import BundleError
from edgepack.model.running import is_saturating

if TYPE_CHECKING:
    from edgepack.ondevice.runtime.edgepack_loader import Bundle


@dataclass(frozen=True)
class GoldenCheck:
    """What this machine says about the golden outputs of one variant."""

    variant: str
    passed: bool | None
    """None where this machine lacks what the variant needs, or its int8 kernels saturate, so that
    nothing is proven here."""
    outcome: str


@dataclass(frozen=True)
class Verification:
    """What was proven about a bundle."""

    bundle: Path | str
    """The folder or archive, or the address in a registry."""
    files: int
    signature: Signature | None
    """None where it is not signed."""
    goldens: tuple[GoldenCheck, ...]


def verify(path: Path, allowed_signers: Path | None = None) -> Verification:
    """Check a bundle's or archive's hashes, then run every variant's goldens on this machine.

    Args:
        path: A bundle's folder or archive.
        allowed_signers: Who may have signed it; then it has to be signed. Default: reports what
            ``~/.ssh/allowed_signers`` says about a signature.

    Raises:
        BundleError: A file or the signature is altered, none of the ``allowed_signers`` has signed
            it, or a variant gives other outputs than its golden ones.
        UsageError: There is no such file of allowed signers.
        ToolError: It is signed, and ssh-keygen is missing or too old.
    """
    with ExitStack() as stack:
        folder = open_folder(path, stack)
        bundle = reading.verify_any(folder)
        check_signature = require_signature if allowed_signers else read_signature
        signature = check_signature(folder, allowed_signers)
        workers = stack.enter_context(Workers(1))
        checks = tuple(_check_all(bundle, workers))
    made_for = ", ".join(f"{name} {pin}" for name, pin in bundle.manifest.runtime.items())
    for check in checks:
        if check.passed is False:
            raise BundleError(
                f"variant {check.variant!r}: {check.outcome}",
                hint="the bundle's files are whole, so the runtime here computes something else:"
                f" the bundle is made for {made_for}",
            )
    return Verification(path, len(bundle.manifest.files), signature, checks)


def _check_all(bundle: reading.AnyBundle, workers: Workers) -> Iterator[GoldenCheck]:
    """Yield what this machine says about each variant; of several models, also about the whole."""
    if isinstance(bundle, reading.Bundle):
        for variant in bundle.manifest.variants:
            yield workers.call(check_goldens, bundle.path, variant.id)
        return
    lacking = []
    for name, part in bundle.manifest.parts.items():
        for variant_id in part.variants:
            found = workers.call(check_goldens, bundle.path / part.path, variant_id)
            yield replace(found, variant=f"{name}={found.variant}")
            lacking += [f"{name}={variant_id}"] if found.passed is None else []
    for combination in bundle.manifest.checks:
        if missing := [name for name in combination.split(" ") if name in lacking]:
            outcome = f"not run here, as {missing[0]} is not"
            yield GoldenCheck(combination, passed=None, outcome=outcome)
        else:
            yield workers.call(check_pipeline_goldens, bundle.path, combination)


def check_pipeline_goldens(folder: Path, combination: str) -> GoldenCheck:
    """Run the whole's goldens with some variants; as :func:`check_goldens`."""
    from edgepack.ondevice.runtime import edgepack_pipeline as pipelines
    from edgepack.results.page.table import format_nearness

    variants = dict(name.split("=", 1) for name in combination.split(" "))
    try:
        pipeline = pipelines.load(folder, variants)
    except pipelines.LoadError as error:
        return GoldenCheck(combination, passed=False, outcome=str(error))
    count, near = len(pipeline.manifest["goldens"]), format_nearness(pipeline.golden_db)
    outcome = f"{count} golden samples of the pipeline, the worst {near}"
    return GoldenCheck(combination, passed=True, outcome=outcome)


def check_goldens(folder: Path, variant: str) -> GoldenCheck:
    """Run all goldens of a variant; loads onnxruntime, so it is called in a worker."""
    from edgepack.ondevice.runtime import edgepack_loader as loader

    opened = loader.Bundle(folder)
    entry = opened.list_variants(variant)[0]
    try:
        loader.check_requirements(entry)
    except loader.Refused as refusal:
        return GoldenCheck(variant, passed=None, outcome=f"not run here: {refusal}")
    check = _run_goldens(opened, entry)
    form = entry.get("model_format", "onnx")
    platform = None if form == "onnx" else form["platform"]
    if check.passed is False and is_saturating(entry["recipe"], platform, find_processor()):
        return GoldenCheck(
            variant, passed=None, outcome=f"not proven here: {check.outcome}; {_ARM}"
        )
    return check


def _run_goldens(bundle: Bundle, entry: dict[str, Any]) -> GoldenCheck:
    from edgepack.ondevice.runtime import edgepack_loader as loader
    from edgepack.results.page.table import format_nearness

    variant: str = entry["id"]
    try:
        model = loader.load(bundle.folder, variant)
        worst_db = min(model.measure_golden_db(index) for index in range(bundle.goldens))
    except loader.LoadError as error:
        return GoldenCheck(variant, passed=False, outcome=str(error))
    except loader.ORT_ERRORS as error:
        return GoldenCheck(variant, passed=False, outcome=f"inference failed: {error}")
    limit_db = entry["min_sqnr_db"]
    near = format_nearness(worst_db)
    outcome = f"{bundle.goldens} golden samples, the worst {near} ({limit_db:g} dB needed)"
    return GoldenCheck(variant, passed=worst_db >= limit_db, outcome=outcome)


_ARM = (
    "the integer operators in its .ort file are those for Arm, whose products saturate on x86-64"
    " without VNNI: verify it on an Arm machine, or on x86-64 with VNNI"
)
