"""Which variants of a bundle can be within limits, before a device is asked."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.bundle.manifest import Manifest, ManifestVariant, find_decisive
from edgepack.bundle.unused import Unused
from edgepack.errors import LimitError
from edgepack.project.limits import Limits
from edgepack.records.limits import explain_missed_limit


def split_by_limits(
    manifest: Manifest, wanted: Sequence[str], limits: Limits
) -> tuple[list[ManifestVariant], list[Unused]]:
    """Return the variants that may be within limits, and those that the build host knows are not.

    Args:
        manifest: The bundle's.
        wanted: Only these variants; all where it is empty.
        limits: The project's for the device.

    Raises:
        LimitError: All of them miss one; the nearest is named first.
    """
    asked, missed = [], []
    for variant in manifest.variants:
        if wanted and variant.id not in wanted:
            continue
        if reason := _explain_missed(manifest, variant, limits):
            missed.append(Unused(variant=variant.id, stage="missed", reason=reason))
        else:
            asked.append(variant)
    if not asked:
        raise LimitError(
            f"no variant of {manifest.id} is within the project's limits: "
            + "; ".join(f"{each.variant}: {each.reason}" for each in missed),
            hint="change 'limits' in edgepack.yaml, or build a bundle that is within them",
        )
    return asked, missed


def _explain_missed(manifest: Manifest, variant: ManifestVariant, limits: Limits) -> str:
    if reason := explain_missed_limit(find_decisive(variant.accuracy, variant.simulated), limits):
        return reason
    size_mb = manifest.count_model_bytes(variant) / 1e6
    if limits.size_mb is not None and size_mb > limits.size_mb:
        return f"its model has {size_mb:.3g} MB, the limit is {limits.size_mb:g} MB"
    return ""
