"""Describes a recipe to a plan: the steps that make its numbers, and how near they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgepack.model.simulating import Simulation
from edgepack.project.limits import AccuracyLimits
from edgepack.project.outputs import OutputDescription
from edgepack.project.profile import Profile, Variant
from edgepack.project.samples import PythonMetric
from edgepack.quantization.search.outside import Outside
from edgepack.steps.base import Step
from edgepack.steps.streams import StatePairs


@dataclass(frozen=True)
class LimitSearch:
    """What a model is searched for: a limit, and the metric that it is about."""

    limits: AccuracyLimits
    metric: str | PythonMetric | None
    interpreter: str | None
    described: tuple[tuple[str, OutputDescription], ...] = ()
    """The project's descriptions of outputs."""
    state: StatePairs = ()
    """The model is fed its own."""
    simulation: Simulation | None = None
    """What decides in the place of this machine's CPU, where it computes enough samples in time."""


@dataclass(frozen=True)
class Asked:
    """The variant that a recipe's steps are made for, and what the project says of its model."""

    profile: Profile
    variant: Variant
    op_counts: Mapping[str, int]
    """Operators of the user's model."""
    scores_output: str | None = None
    """The output that may hold class scores."""
    search: LimitSearch | None = None
    """None without a limit."""
    outside: Outside | None = None
    """The inputs that are changed to find what no sample shows."""


MODEL_COPIES = 3
"""Of the weights, while a step writes them: the model, protobuf's buffer and what it returns."""

Given = Literal["probes", "calibration", "statistics", "prepared", "evaluation", "metric"]
"""What a recipe's step can be given besides the model; each is left out where there is none.

``probes`` are samples for proofs, ``statistics`` what ``observer`` made. With a limit to search for
also ``prepared``, the float model, ``evaluation``, its samples, and ``metric``, the folder of one
that is the user's own."""


def make_no_steps(asked: Asked) -> tuple[Step, ...]:
    """Return no steps."""
    del asked
    return ()


@dataclass(frozen=True)
class RecipeKind:
    """What a recipe is: steps, what they are given, and decibels.

    A step that takes samples and cannot run without is a
    :class:`~edgepack.steps.base.Drafting` one.
    """

    step: Callable[[Asked], Step]
    """The step that makes the numbers. Its input ``model`` is the float one; it has the recipe's
    name."""
    words: str
    """What the step does, for somebody who watches a build."""
    cpu_cap_db: float
    """How near goldens, which the CPU of this host computes, are met at best on a device's CPU."""
    other_cap_db: float
    """The same on other providers, which may compute in float16, and round int8 elsewhere."""
    padded_db: float
    """How near a model with static shapes comes at least, padded, to that with dynamic ones.

    Padding leaves the numbers of each place as they are, but kernels sum in another order: float32
    differs in the last bits, and where an int8 model rounds, by a step now and then. Half of an
    input that is padding leaves under 10 dB of what depends on it."""
    given: Mapping[str, Given] = field(default_factory=dict)
    """What else the step takes, by the name of its input."""
    before: Callable[[Asked], tuple[Step, ...]] = make_no_steps
    """Steps that change the float model first, such as to an opset; they prove it the same."""
    observer: Callable[[Asked], Step] | None = None
    """The step that makes statistics of that model and the calibration samples."""
    after: Callable[[Asked], tuple[Step, ...]] = make_no_steps
    """Steps that change the float model once it was observed."""
    needs_calibration: bool = False
    """Whether it needs calibration samples."""
    takes_long: bool = True
    """Whether a build's time goes to the step, so that it is counted in an estimate."""
    weight_copies: int = MODEL_COPIES
    """The most copies of the weights that the step has in memory at once."""
    holds_activations: bool = False
    """Whether it keeps all activations of a sample in memory, and not only the live ones."""
    in_integers: bool = False
    """Whether numbers become integers, so that they may be too far off, and slower."""
    in_pairs: bool = False
    """Whether its tensors have QuantizeLinear and DequantizeLinear, so that each can be compared
    with that of the float model, and a CPU has kernels that fuse them."""

    @property
    def calibration(self) -> str:
        """The name of the step's input with calibration samples; empty where it has none."""
        return next((name for name, what in self.given.items() if what == "calibration"), "")
