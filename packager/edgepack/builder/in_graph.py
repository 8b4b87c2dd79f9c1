"""Works out a model's inputs and their sizes when preprocessing is in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgepack.errors import ProfileError
from edgepack.model.editing import take_name
from edgepack.model.facts import TensorSpec
from edgepack.project.loading import LoadedProject
from edgepack.project.project import Project
from edgepack.steps.in_graph.preprocessing import find_tensor_shape
from edgepack.steps.in_graph.texts import list_made_names


def find_given_inputs(inputs: Sequence[TensorSpec], project: Project) -> tuple[TensorSpec, ...]:
    """Return the inputs, with pictures and texts in place of the tensors made from them.

    A picture is uint8 ``(H, W, 3)``, with the symbolic dimensions ``<input>_height`` and
    ``<input>_width``, or the bytes of a file, with ``<input>_bytes``; so is a text. Where the model
    has a dimension of that name already, a number is appended.
    """
    used = {size for spec in inputs for size in spec.shape or () if isinstance(size, str)}

    def make_shape(name: str, *sizes: str) -> tuple[str, ...]:
        return tuple(take_name(f"{name}_{size}", used) for size in sizes)

    texts = project.texts.items()
    beside = {other for each in texts for other in list_made_names(*each)[1:]}
    taken = []
    for spec in inputs:
        name = spec.name
        if name in project.texts or (name in project.pictures and project.takes_files):
            taken.append(TensorSpec(name, "uint8", make_shape(name, "bytes")))
        elif name in project.pictures:
            taken.append(TensorSpec(name, "uint8", (*make_shape(name, "height", "width"), 3)))
        elif name not in beside:
            taken.append(spec)
    return tuple(taken)


def find_made_dims(loaded: LoadedProject, inputs: Sequence[TensorSpec]) -> dict[str, int]:
    """Return the sizes of symbolic dimensions that follow from the tensors made in the graph.

    Raises:
        ProfileError: A picture does not become what the model takes, or ``dims`` has another size.
    """
    project = loaded.project
    found: dict[str, int] = {}
    for spec in inputs:
        if image := project.pictures.get(spec.name):
            found |= _find_sizes(loaded, spec, find_tensor_shape(image), found)
        if spec.name in project.texts and spec.shape is not None:
            batch, tokens = spec.shape
            found |= {batch: 1} if isinstance(batch, str) and batch != "?" else {}
            _require_one_size(loaded, tokens)
    for name, size in found.items():
        if project.dims.get(name, size) != size:
            raise ProfileError(
                f"{name!r} is {size} in what preprocessing in the graph makes of one sample",
                hint=f"remove {name!r} from 'dims', or 'preprocess'",
                where=loaded.locate("dims", name),
            )
    return found


def _require_one_size(loaded: LoadedProject, tokens: int | str) -> None:
    if tokens in {**loaded.project.buckets, **loaded.project.spans}:
        raise ProfileError(
            f"{str(tokens)!r} has several sizes, and a model that makes the tokens itself takes"
            " texts: it cannot be chosen by their number",
            hint="give one size, or none, or leave 'tokenize' out of 'extensions'",
            where=loaded.locate("dims", str(tokens)),
        )


def _find_sizes(
    loaded: LoadedProject, spec: TensorSpec, shape: Sequence[int], known: Mapping[str, int]
) -> dict[str, int]:
    """Return the sizes of one input's symbolic dimensions, given those of inputs before it."""
    taken = spec.shape if spec.shape is not None else shape
    fits = spec.dtype in ("float32", "float16") and len(taken) == len(shape)
    found: dict[str, int] = dict(known)
    for own, made in zip(taken, shape, strict=False):
        size = own if isinstance(own, int) else found.setdefault(own, made) if own != "?" else made
        fits = fits and size == made
    if not fits:
        raise ProfileError(
            f"the model takes {spec}, and 'image' makes float32[{', '.join(map(str, shape))}] of a"
            " picture",
            hint="fix 'resize', 'order' or 'layout', or leave preprocess: {in_graph: true} out",
            where=loaded.locate("inputs", spec.name, "image"),
        )
    return found
