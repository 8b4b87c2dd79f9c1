"""Inputs that take pictures because preprocessing is put into the model: what that decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgepack.errors import ProfileError
from edgepack.model.facts import TensorSpec
from edgepack.project import LoadedProject, Project
from edgepack.steps.half import fresh
from edgepack.steps.preprocessing import tensor_shape


def with_pictures(inputs: Sequence[TensorSpec], project: Project) -> tuple[TensorSpec, ...]:
    """Return the inputs with pictures for the tensors made of them.

    That is uint8 ``(H, W, 3)``, with the symbolic dimensions ``<input>_height`` and
    ``<input>_width``, or the bytes of a file, with ``<input>_bytes``; where the model has a
    dimension of that name, there is an underscore behind it.
    """
    used = {size for spec in inputs for size in spec.shape or () if isinstance(size, str)}
    sizes = ("bytes",) if project.takes_files else ("height", "width")
    channels = () if project.takes_files else (3,)

    def picture(name: str) -> TensorSpec:
        symbolic = (fresh(f"{name}_{size}", used) for size in sizes)
        return TensorSpec(name, "uint8", (*symbolic, *channels))

    return tuple(picture(s.name) if s.name in project.pictures else s for s in inputs)


def picture_dims(loaded: LoadedProject, inputs: Sequence[TensorSpec]) -> dict[str, int]:
    """Return the sizes that symbolic dimensions have because a picture's tensor has them.

    Raises:
        ProfileError: A picture does not become what the model takes, or ``dims`` says otherwise.
    """
    found: dict[str, int] = {}
    for spec in inputs:
        if image := loaded.project.pictures.get(spec.name):
            found |= _sizes(loaded, spec, tensor_shape(image), found)
    for name, size in found.items():
        if loaded.project.dims.get(name, size) != size:
            raise ProfileError(
                f"{name!r} is {size} in what preprocessing in the graph makes of one picture",
                hint=f"remove {name!r} from 'dims', or 'preprocess'",
                where=loaded.where("dims", name),
            )
    return found


def _sizes(
    loaded: LoadedProject, spec: TensorSpec, shape: Sequence[int], known: Mapping[str, int]
) -> dict[str, int]:
    """Return the sizes of one input's symbolic dimensions, given those of inputs before it."""
    taken = spec.shape if spec.shape is not None else shape
    fits = spec.dtype == "float32" and len(taken) == len(shape)
    found: dict[str, int] = dict(known)
    for own, made in zip(taken, shape, strict=False):
        size = own if isinstance(own, int) else found.setdefault(own, made) if own != "?" else made
        fits = fits and size == made
    if not fits:
        raise ProfileError(
            f"the model takes {spec}, and 'image' makes float32[{', '.join(map(str, shape))}] of a"
            " picture",
            hint="mend 'resize', 'order' or 'layout', or leave preprocess: {in_graph: true} out",
            where=loaded.where("inputs", spec.name, "image"),
        )
    return found
