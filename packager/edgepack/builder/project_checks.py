"""Checks what a project says about a model's inputs and outputs against the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgepack.builder.constants import can_hold
from edgepack.errors import ProfileError, suggest_nearest
from edgepack.model.facts import TensorSpec
from edgepack.project.loading import LoadedProject


def check_names(
    loaded: LoadedProject, what: str, described: Iterable[str], specs: Sequence[TensorSpec]
) -> None:
    """Check that the model has the inputs or outputs that the project describes.

    Args:
        loaded: The project.
        what: ``input`` or ``output``.
        described: Their names in the project.
        specs: Those of the model.

    Raises:
        ProfileError: The model lacks one.
    """
    known = [spec.name for spec in specs]
    for name in described:
        if name not in known:
            raise ProfileError(
                f"the model has no {what} {name!r}",
                hint=suggest_nearest(name, known),
                where=loaded.locate(f"{what}s", name),
            )


def check_fillings(loaded: LoadedProject, inputs: Sequence[TensorSpec]) -> None:
    """Check what the project says about padding and masks against the model's inputs.

    Raises:
        ProfileError: A mask is over no dimension of its input, or over one that no other input has;
            or an input cannot have its padding value.
    """
    masks = {n: d.mask for n, d in loaded.project.inputs.items() if d.mask is not None}
    others = [spec for spec in inputs if spec.name not in masks]
    known = {size for spec in others for size in spec.shape or () if isinstance(size, str)}
    for spec in inputs:
        symbolic = {size for size in spec.shape or ("?",) if isinstance(size, str)}
        if spec.name in masks and masks[spec.name] not in symbolic:
            raise ProfileError(
                f"the mask {spec.name!r} has no symbolic dimension {masks[spec.name]!r}",
                hint=suggest_nearest(str(masks[spec.name]), symbolic),
                where=loaded.locate("inputs", spec.name, "mask"),
            )
        if spec.name in masks and not symbolic <= known - {"?"}:
            raise ProfileError(
                f"the loader cannot make the mask {spec.name!r}: no other input has the size"
                f" of {', '.join(sorted(symbolic - known) or ['its unknown dimension'])}",
                hint="remove 'mask', and give the input as any other",
                where=loaded.locate("inputs", spec.name, "mask"),
            )
        _check_pad(loaded, spec)


def _check_pad(loaded: LoadedProject, spec: TensorSpec) -> None:
    description = loaded.project.inputs.get(spec.name)
    pad = description.pad if description else None
    if pad is not None and not can_hold(pad, spec.dtype):
        raise ProfileError(
            f"the input {spec.name!r} is {spec.dtype}, which does not hold {pad!r}",
            hint="give a 'pad' that the input can hold",
            where=loaded.locate("inputs", spec.name, "pad"),
        )
