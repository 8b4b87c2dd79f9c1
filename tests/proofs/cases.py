"""A case: a model that says something, its samples, and what its outputs are read as."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.proofs.net import Array
from tests.proofs.objects import Objects
from tests.proofs.readings import Reading

Feed = dict[str, Array]

CALIBRATION, EVALUATION, UNSEEN = 48, 64, 160
"""Samples: what is quantized with, what edgepack judges by, and what only the test bed sees."""


class CannotMakeError(Exception):
    """Why a case is skipped: something that this machine does not have."""


@dataclass
class Made:
    """A case's model and samples in a folder."""

    model: Path
    calibration: list[Feed]
    evaluation: list[Feed]
    unseen: list[Feed] | list[list[Feed]]
    """Samples; of a model with state, streams of them, whose state is fed back."""
    readings: dict[str, Reading] = field(default_factory=dict)
    """By output."""
    objects: Objects | None = None
    """What the outputs are together, where they are a detector's."""
    state: dict[str, str] = field(default_factory=dict)
    """By input that takes the state: the output that gives the next."""
    labels: Array | None = None
    """Of the evaluation samples."""
    yaml: dict[str, Any] = field(default_factory=dict)
    """What the project file says more: outputs, inputs, dims."""


@dataclass(frozen=True)
class Case:
    """A model of the zoo."""

    name: str
    kind: str
    make: Callable[[Path], Made]
    targets: tuple[Any, ...] = ("linux-x86-64",)
    """As ``targets`` of a project file has them."""
    quick: bool = False
    """Whether it is one of the few that are run in CI."""


@dataclass
class Zoo:
    """The cases of one module, in the order in which they are written."""

    kind: str
    cases: list[Case] = field(default_factory=list)

    def __call__(
        self, *targets: Any, kind: str = "", quick: bool = False
    ) -> Callable[[Callable[[Path], Made]], Callable[[Path], Made]]:
        """Take a function that makes a case, which has its name; the dialects go round."""

        def take(make: Callable[[Path], Made]) -> Callable[[Path], Made]:
            name = make.__name__.removeprefix("make_").replace("_", "-")
            also = DIALECTS[len(self.cases) % len(DIALECTS)]
            chosen = targets or ("linux-x86-64", also)
            self.cases.append(Case(name, kind or self.kind, make, chosen, quick))
            return make

        return take


DIALECTS: tuple[Any, ...] = (
    "jetson",  # float16, int8 on both sides and symmetric
    "raspberry-pi-xnnpack",  # int8 on both sides
    "android-qnn",  # uint16 and int8
    "raspberry-pi-acl",  # uint8 on both sides, per tensor
    "intel",  # float16
)
PRODUCTS = {
    "id": "linux-aarch64",
    "variants": [
        {"backend": "cpu", "recipe": "int8-dynamic"},
        {"backend": "cpu", "recipe": "int4-weight"},
        {"backend": "cpu", "recipe": "fp32"},
    ],
}
"""What matrix products are also built for: weights alone in integers."""


def split(feeds: Sequence[Feed]) -> tuple[list[Feed], list[Feed], list[Feed]]:
    """Return calibration, evaluation and unseen samples, of which no two share one."""
    first, second = CALIBRATION, CALIBRATION + EVALUATION
    return list(feeds[:first]), list(feeds[first:second]), list(feeds[second:])


def feeds_of(**arrays: Array) -> list[Feed]:
    """Return a feed for each place of the leading axis."""
    count = len(next(iter(arrays.values())))
    return [{name: array[k : k + 1] for name, array in arrays.items()} for k in range(count)]


SAMPLES = CALIBRATION + EVALUATION + UNSEEN


def made(model: Path, given: Array, readings: dict[str, Reading], **more: Any) -> Made:
    """Return a case of one input ``x``; ``given`` holds all of its samples."""
    calibration, evaluation, unseen = split(feeds_of(x=given.astype(np.float32)))
    return Made(model, calibration, evaluation, unseen, readings, **more)
