"""Which variants of a bundle can be within limits, before a device is asked."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.bundle.manifest import Manifest, ManifestVariant, find_decisive
from edgepack.bundle.unused import Unused
from edgepack.errors import LimitError
from edgepack.project.limits import Limits
from edgepack.records.limits import explain_missed_limit, explain_size


def split_by_limits(
    manifest: Manifest, wanted: Sequence[str], limits: Limits
) -> tuple[list[ManifestVariant], list[Unused]]:
    """Return the variants that may be within limits, and those that the build host knows are not.

    Args:
        manifest: The bundle's.
        wanted: Only these variants; all where it is empty.
        limits: The project's for the device.

    Raises:
        LimitError: All of them miss one.
    """
    reasons = {each.id: _explain_missed(manifest, each, limits) for each in manifest.variants}
    asked = [each for each in manifest.variants if not wanted or each.id in wanted]
    missed = [
        Unused(variant=each.id, stage="missed", reason=reasons[each.id])
        for each in asked
        if reasons[each.id]
    ]
    if len(missed) == len(asked):
        within = [name for name, reason in reasons.items() if not reason]
        others = f"take --variant {within[0]}, which may be within them; or " if within else ""
        raise LimitError(
            "not within the project's limits: "
            + "; ".join(f"{each.variant}: {each.reason}" for each in missed),
            hint=f"{others}change 'limits' in edgepack.yaml, or build a bundle that is within them",
            where=manifest.id,
        )
    return [each for each in asked if not reasons[each.id]], missed


def _explain_missed(manifest: Manifest, variant: ManifestVariant, limits: Limits) -> str:
    found = find_decisive(variant.accuracy, variant.simulated)
    size = manifest.count_model_bytes(variant)
    return explain_missed_limit(found, limits) or explain_size(size, limits)
