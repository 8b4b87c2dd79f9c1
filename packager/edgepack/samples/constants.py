"""Inputs with one constant value, which is part of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.model.facts import TensorSpec
from edgepack.project.project import ConstantValue
from edgepack.samples.sample_set import Sample


@dataclass(frozen=True)
class Constant:
    """An input of the model's, and its value."""

    spec: TensorSpec
    """Its sizes are known, or follow from ``value``."""
    value: ConstantValue
    """A single number fills the input."""

    @property
    def array(self) -> Array:
        """The value as the model takes it."""
        value = np.array(self.value, self.spec.dtype)
        if value.ndim == 0 and self.spec.shape:
            return np.full([int(size) for size in self.spec.shape], value)
        return value

    def find_others(self, given: Array) -> Array:
        """Return what an array holds that is not the value, and be that once for each sample."""
        own = np.ravel(np.array(self.value))
        if given.size == 0 or given.size % own.size or given.dtype.kind not in "biuf":
            return given
        rows = given.reshape(-1, own.size)
        # A value of 0.1 in the file is another one in float32.
        others: Array = rows[~np.isclose(rows, own, rtol=1e-6).all(axis=1)]
        return others


def make_constant_arrays(constants: Iterable[Constant]) -> dict[str, Array]:
    """Return the values by the inputs' names."""
    return {constant.spec.name: constant.array for constant in constants}


def drop_constant_inputs(
    title: str, inputs: Mapping[str, Array], constants: Sequence[Constant]
) -> dict[str, Any]:
    """Return a sample without the inputs that are constant.

    Raises:
        SamplesError: It has another value for one of these.
    """
    fixed = {constant.spec.name: constant for constant in constants}
    for name in fixed.keys() & inputs.keys():
        given, value = np.asarray(inputs[name]), fixed[name].value
        others = fixed[name].find_others(given)
        if others.size or not given.size:
            example = ", ".join(map(str, others.ravel()[:3].tolist())) or "nothing"
            raise SamplesError(
                f"{title} has {example} for {name!r}, which is {value} in edgepack.yaml",
                hint="leave such samples out, or fix the value under 'constants'; samples need not"
                " hold the input",
            )
    return {name: array for name, array in inputs.items() if name not in fixed}


def drop_constants(samples: Iterable[Sample], constants: Sequence[Constant]) -> Iterator[Sample]:
    """Yield samples without the inputs that are constant.

    Raises:
        SamplesError: A sample has another value.
    """
    for title, inputs in samples:
        yield title, drop_constant_inputs(title, inputs, constants)
