"""Which bundles' samples can be joined to batches. Pure: decides by the manifest."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.bundle.manifest import Manifest, ManifestVariant, Tensor
from edgepack.devices.harness import JOINED
from edgepack.errors import UsageError
from edgepack.ondevice.runtime import edgepack_batches as batches
from edgepack.ondevice.runtime import edgepack_shapes as shapes


def can_check(manifest: Manifest) -> bool:
    """Return whether what measures joins samples, and checks their outputs.

    Linux devices are measured by the bundle's own harness, which may be older than this, and than
    the session options that its loader sets then.
    """
    return manifest.family != "linux" or any(file.path == JOINED for file in manifest.files)


def require_joinable(manifest: Manifest, variant: str | None, max_batch: int) -> None:
    """Check that samples may be joined to batches of so many, before a device is asked.

    Args:
        manifest: The bundle's.
        variant: The one that is asked for; None for any.
        max_batch: 1 if none are joined.

    Raises:
        UsageError: They cannot be.
    """
    entries = [entry for entry in manifest.variants if variant in (None, entry.id)]
    whys = {entry.id: explain_unjoined(manifest, entry, max_batch) for entry in entries}
    if not all(whys.values()):
        return
    same = len(set(whys.values())) == 1
    reasons = [f"{name}: {why}" for name, why in whys.items()]
    raise UsageError(
        f"the samples of {manifest.id} cannot be joined to batches of {max_batch}: "
        + (next(iter(whys.values())) if same else "; ".join(reasons)),
        hint="leave --max-batch out; or build with a batch of any size, or with sizes up to that"
        f" (dims: {{batch: [1, {max_batch}]}} in edgepack.yaml)",
        where="--max-batch",
    )


def explain_unjoined(manifest: Manifest, entry: ManifestVariant, max_batch: int) -> str:
    """Return why a variant's samples cannot be joined to batches of so many; empty if they can."""
    if max_batch == 1:
        return ""
    first = manifest.inputs[0]
    if not can_check(manifest):
        return "the bundle is of an edgepack that joined none: build it again"
    if manifest.state:
        return "the model has a state, and each stream has its own"
    if first.name in manifest.samples:
        return f"the input {first.name!r} is one picture or text"
    if not first.shape or isinstance(first.shape[0], int):
        return f"the input {first.name!r} has the fixed shape {list(first.shape)}"
    inputs, outputs = (list(map(_make_spec, each)) for each in (manifest.inputs, manifest.outputs))
    sizes = [bucket.dims.get(first.shape[0], max_batch) for bucket in entry.buckets]
    return batches.explain_unsplit(inputs, outputs) or _explain_sizes(
        sizes, max_batch, exact=entry.exact
    )


def _make_spec(tensor: Tensor) -> shapes.TensorSpec:
    return shapes.TensorSpec(tensor.name, tensor.dtype, tuple(tensor.shape))


def _explain_sizes(sizes: Sequence[int], max_batch: int, *, exact: bool) -> str:
    if not sizes:
        return ""
    known = ", ".join(map(str, sorted(set(sizes))))
    if exact and not {*range(1, max_batch + 1)} <= {*sizes}:
        return f"it takes batches of just {known}, and fewer samples may wait than {max_batch}"
    return "" if max(sizes) >= max_batch else f"it has models for batches of {known}"
