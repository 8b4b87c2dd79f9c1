"""Checks the inputs that the project makes constants against the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgepack.errors import ProfileError, suggest_nearest
from edgepack.model.facts import TensorSpec
from edgepack.project.loading import LoadedProject
from edgepack.project.project import ConstantValue
from edgepack.samples.constants import Constant
from edgepack.steps.graph.prepared import fix_sizes


def make_project_constants(
    loaded: LoadedProject, inputs: Sequence[TensorSpec]
) -> tuple[Constant, ...]:
    """Return the project's constants as the model takes them, by name.

    Args:
        loaded: The project.
        inputs: All the model's.

    Raises:
        ProfileError: The model has no such input, the input cannot have the value, or its size is
            not known; or ``inputs`` or ``state`` of the project describe it, too.
    """
    project = loaded.project
    specs = {spec.name: spec for spec in fix_sizes(inputs, project.fixed_dims)}
    found = []
    for name, value in sorted(project.constants.items()):
        where = loaded.locate("constants", name)
        if name not in specs:
            raise ProfileError(
                f"the model has no input {name!r}", hint=suggest_nearest(name, specs), where=where
            )
        if name in project.inputs:
            raise ProfileError(
                f"the input {name!r} is described under 'inputs' and is a constant too",
                hint="remove it from one of the two",
                where=where,
            )
        found.append(_make_constant(specs[name], value, where))
    if found and len(found) == len(specs):
        raise ProfileError(
            "all inputs of the model are constants, so that it has nothing to compute from",
            hint="leave out what changes from sample to sample",
            where=loaded.locate("constants"),
        )
    return tuple(found)


def _make_constant(spec: TensorSpec, value: ConstantValue, where: str) -> Constant:
    try:
        given = np.array(value)
    except ValueError as error:
        raise ProfileError(
            f"the rows of the constant {spec.name!r} have different lengths",
            hint="give each as many numbers",
            where=where,
        ) from error
    _require_numbers(spec, given.ravel().tolist(), where)
    single = given.ndim == 0
    if single and not all(isinstance(size, int) for size in spec.shape or ()):
        names = [size for size in spec.shape or () if isinstance(size, str) and size != "?"]
        line = f"dims: {{{', '.join(f'{name}: 1' for name in names)}}}" if names else ""
        raise ProfileError(
            f"the constant {spec.name!r} is one number, and how many the model takes is not known:"
            f" {spec}",
            hint=f"give the sizes, such as {line}" if line else "write all its numbers: [0, 0]",
            where=where,
        )
    if not single and spec.shape is not None and not _is_fitting(given.shape, spec.shape):
        raise ProfileError(
            f"the constant {spec.name!r} has the shape {list(given.shape)}, the model takes {spec}",
            hint="a single number fills the input; else write it as lists, at most two deep, and"
            " give symbolic dimensions their sizes under 'dims'",
            where=where,
        )
    return Constant(spec, value)


def _require_numbers(spec: TensorSpec, numbers: Iterable[float], where: str) -> None:
    """Check that the input's element type can represent every number."""
    for number in numbers:
        kind = spec.is_plain and isinstance(number, bool) == (spec.dtype == "bool")
        if not kind or not can_hold(number, spec.dtype):
            raise ProfileError(
                f"the input {spec.name!r} is {spec.dtype}, which does not hold {number!r}",
                hint="give true or false" if spec.dtype == "bool" else f"give {spec.dtype} values",
                where=where,
            )


def can_hold(value: float, dtype: str) -> bool:
    """Return whether an element type can represent a value; a float only needs the range."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return abs(value) <= float(np.finfo(kind).max)
    if kind.kind == "b":
        return value in (0, 1)
    limits = np.iinfo(kind)
    return value == int(value) and limits.min <= value <= limits.max


def _is_fitting(given: Sequence[int], wanted: Sequence[int | str]) -> bool:
    """Return whether a shape fits the expected one; a dimension without a name takes any size."""
    return len(given) == len(wanted) and all(
        want in (have, "?") for have, want in zip(given, wanted, strict=True)
    )
