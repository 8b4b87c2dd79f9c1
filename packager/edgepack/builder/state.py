"""Checks which outputs feed which inputs in the next run against the model."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.errors import ProfileError, suggest_nearest
from edgepack.model.facts import TensorSpec
from edgepack.project.loading import LoadedProject
from edgepack.steps.graph.prepared import fix_sizes


def find_project_state(
    loaded: LoadedProject, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Return the inputs that hold the state, in the model's order.

    Args:
        loaded: The project.
        inputs: The model's, without constants.
        outputs: The model's.

    Raises:
        ProfileError: The model has no such output or input, the one cannot feed the other, or
            samples are not taken in order, or are pictures or texts that the model takes.
    """
    project = loaded.project
    if not project.state:
        return ()
    dims = project.fixed_dims
    taken = {spec.name: spec for spec in fix_sizes(inputs, dims)}
    made = {spec.name: spec for spec in fix_sizes(outputs, dims)}
    for output, name in project.state.items():
        where = loaded.locate("state", output)
        if output not in made:
            hint = (
                f"{suggest_nearest(output, made)}; 'state' maps an output to the input"
                " that it feeds"
            )
            raise ProfileError(f"the model has no output {output!r}", hint=hint, where=where)
        if name not in taken:
            raise ProfileError(
                f"the model has no input {name!r}", hint=suggest_nearest(name, taken), where=where
            )
        _require_same(made[output], taken[name], where)
        if several := [size for size in taken[name].shape or () if size in project.buckets]:
            raise ProfileError(
                f"the state {name!r} has {several[0]!r}, which has several sizes, and a state goes"
                " from one run into the next as it is",
                hint="give that dimension one size under 'dims'",
                where=where,
            )
    _require_order(loaded)
    return tuple(spec for spec in taken.values() if spec.name in project.state.values())


def _require_same(made: TensorSpec, taken: TensorSpec, where: str) -> None:
    if taken.shape is None:
        raise ProfileError(
            f"the input {taken.name!r} has no shape, so that no stream can begin with zeros",
            hint="export the model with the shape of its state",
            where=where,
        )
    shape = made.shape if made.shape is not None else taken.shape
    fits = made.dtype == taken.dtype and len(shape) == len(taken.shape)
    pairs = zip(shape, taken.shape, strict=False)
    if not fits or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise ProfileError(
            f"the output {made} cannot feed the input {taken}",
            hint="an output has the type and shape of the input that it feeds",
            where=where,
        )


def _require_order(loaded: LoadedProject) -> None:
    project, samples = loaded.project, loaded.project.samples
    if project.pictures or project.texts:
        raise ProfileError(
            "'state' and preprocessing in the model are given",
            hint="leave 'preprocess' out, and give samples as tensors",
            where=loaded.locate("preprocess"),
        )
    for role, source in (("calibration", samples.calibration), ("evaluation", samples.evaluation)):
        if source is not None and source.images is not None:
            raise ProfileError(
                "a folder of images has no order, and 'state' needs frames one after the other",
                hint="give them with a function (python: 'mydata:frames'), as .npz, or a video",
                where=loaded.locate("samples", role, "images"),
            )
