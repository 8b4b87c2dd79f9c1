"""Which tensors of a model are observed, and what the statistics of the others follow from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgepack.quantization.ranges.channels import find_channels_second
from edgepack.quantization.ranges.following import (
    Bounds,
    Join,
    find_clamps,
    find_cuts,
    find_joins,
    find_moves,
)
from edgepack.quantization.ranges.statistics import TensorStatistics
from edgepack.quantization.ranges.tally import Clamp, Tally

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Layout:
    """Plans how to get the statistics of the requested tensors."""

    names: tuple[str, ...]
    """The requested tensors."""
    observed: frozenset[str]
    """Those whose values are counted."""
    made: tuple[str, ...]
    """Those of the observed ones that nodes make, sorted; the others are inputs."""
    outputs: tuple[str, ...]
    """The model's outputs that nodes make, whether requested or not."""
    moved: dict[str, str]
    """What :func:`~edgepack.quantization.ranges.following.find_moves` found."""
    shortened: dict[str, str]
    """What :func:`~edgepack.quantization.ranges.following.find_cuts` found."""
    joined: dict[str, Join]
    """What :func:`~edgepack.quantization.ranges.following.find_joins` found."""
    clamped: dict[str, Bounds]
    """What :func:`~edgepack.quantization.ranges.following.find_clamps` found."""
    channels_second: frozenset[str]
    """What :func:`~edgepack.quantization.ranges.channels.find_channels_second` found."""

    @classmethod
    def of(cls, model: onnx.ModelProto, tensors: Collection[str]) -> Layout:
        """Return the layout that observes as little of a model as it can."""
        names = dict.fromkeys(tensors)
        moved = find_moves(model, names)
        shortened = find_cuts(model, names.keys() - moved.keys())
        joined = find_joins(model, names.keys() - moved.keys() - shortened.keys())
        clamped = find_clamps(model, names.keys() - moved.keys() - shortened.keys() - joined.keys())
        observed = names.keys() - moved.keys() - shortened.keys() - joined.keys() - clamped.keys()
        made = {name for node in model.graph.node for name in node.output if name}
        return cls(
            names=tuple(names),
            observed=frozenset(observed),
            made=tuple(sorted(observed & made)),
            outputs=tuple(value.name for value in model.graph.output if value.name in made),
            moved=moved,
            shortened=shortened,
            joined=joined,
            clamped=clamped,
            channels_second=find_channels_second(model),
        )

    def make_tallies(self) -> dict[str, Tally]:
        """Return a tally for each tensor, with nothing counted yet.

        Counting the observed ones counts those that are clamped as well.
        """
        tallies = {name: Tally(is_second=name in self.channels_second) for name in self.names}
        for name, bounds in self.clamped.items():
            clamp = Clamp(tallies[name], bounds.low, bounds.high)
            tallies[bounds.input].clamps.append(clamp)
        return tallies

    def make_statistics(self, tallies: Mapping[str, Tally]) -> dict[str, TensorStatistics]:
        """Return the statistics of the tensors that have any, in their order."""
        every = dict(tallies)
        for name, join in self.joined.items():
            every[name] = Tally.join_tallies([every[one] for one in join.inputs], join.axis)
        for name, after in reversed(self.shortened.items()):
            every[name] = every[after]
        for name, source in self.moved.items():
            every[name] = every[source].copy_moved()
        found = {name: every[name].make_statistics() for name in self.names}
        return {name: statistics for name, statistics in found.items() if statistics is not None}
