"""``edgepack verify``: hashes, and golden outputs on this machine."""

from __future__ import annotations

import tarfile
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from edgepack.bundle import verify
from edgepack.errors import BundleError
from edgepack.processes import Workers


@dataclass(frozen=True)
class GoldenCheck:
    """What this machine says about the golden outputs of one variant."""

    variant: str
    passed: bool | None
    """None where this machine lacks what the variant needs, so that nothing is proven here."""
    outcome: str


@dataclass(frozen=True)
class Verification:
    """What was proven about a bundle."""

    bundle: Path
    files: int
    goldens: tuple[GoldenCheck, ...]


def verify_here(path: Path) -> Verification:
    """Check a bundle's or archive's hashes, then run every variant's goldens on this machine.

    Raises:
        BundleError: A file is altered, or a variant gives other outputs than its golden ones.
    """
    with ExitStack() as stack:
        folder = _unpacked(path, stack) if path.is_file() else path
        bundle = verify(folder)
        workers = stack.enter_context(Workers(1))
        checks = tuple(
            workers.call(check_goldens, folder, variant.id) for variant in bundle.manifest.variants
        )
    for check in checks:
        if check.passed is False:
            raise BundleError(
                f"variant {check.variant!r}: {check.outcome}",
                hint="the bundle's files are whole, so the runtime here computes something else:"
                " compare its version with requirements.txt",
            )
    return Verification(path, len(bundle.manifest.files), checks)


def check_goldens(folder: Path, variant: str) -> GoldenCheck:
    """Run all goldens of a variant; loads onnxruntime, so it is called in a worker."""
    from edgepack.harness import edgepack_loader as loader

    opened = loader.Bundle(folder)
    entry = opened.variants(variant)[0]
    try:
        loader.check_requirements(entry)
    except loader.Refused as refusal:
        return GoldenCheck(variant, passed=None, outcome=f"not run here: {refusal}")
    try:
        model = loader.load(folder, variant)
        worst_db = min(model.golden_db(index) for index in range(opened.goldens))
    except loader.LoadError as error:
        return GoldenCheck(variant, passed=False, outcome=str(error))
    except loader.ORT_ERRORS as error:
        return GoldenCheck(variant, passed=False, outcome=f"inference failed: {error}")
    limit_db = entry["min_sqnr_db"]
    outcome = f"{opened.goldens} golden samples within {worst_db:.0f} dB, {limit_db:g} are needed"
    return GoldenCheck(variant, passed=worst_db >= limit_db, outcome=outcome)


def _unpacked(archive: Path, stack: ExitStack) -> Path:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepack-")))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(folder, filter="data")
    except (OSError, EOFError, tarfile.TarError) as error:
        raise BundleError(
            f"cannot unpack {str(archive)!r}: {error}",
            hint="name a bundle's folder, or the .tar.gz that 'edgepack build' wrote",
        ) from error
    inside = list(folder.iterdir())
    if len(inside) != 1 or not inside[0].is_dir():
        raise BundleError(
            f"{str(archive)!r} does not hold one bundle", hint="build the bundle again"
        )
    return inside[0]
