"""Which processors a device lets a measured process use, and which of them are fast."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edgepack.base.schema import StrictModel
from edgepack.ondevice.runtime import edgepack_names

AFFINITIES = edgepack_names.AFFINITIES


class Processor(StrictModel):
    """One logical processor."""

    number: Annotated[int, Field(ge=0, lt=4096)]
    core: Annotated[str, Field(max_length=200)]
    """The same for all logical processors of one physical core."""
    max_khz: Annotated[int, Field(ge=0)]
    """0 where the system does not report it."""
    capacity: Annotated[int, Field(ge=0)]
    """How fast it is beside the others, as Linux has it: 1024 is the fastest; 0 if unknown."""


class Topology(StrictModel):
    """What a measured process may run on."""

    count: Annotated[int, Field(gt=0, le=4096)]
    processors: Annotated[list[Processor], Field(max_length=4096)]
    """Empty where the system does not let threads be bound to processors."""

    @property
    def clusters(self) -> list[list[int]]:
        """The numbers of processors of the same speed, one of each physical core, fastest first."""
        found: dict[tuple[int, int], list[int]] = {}
        seen = set()
        for processor in self.processors:
            if processor.core not in seen:
                seen.add(processor.core)
                speed = (processor.capacity, processor.max_khz)
                found.setdefault(speed, []).append(processor.number)
        return [found[speed] for speed in sorted(found, reverse=True)]

    @property
    def order(self) -> list[int]:
        """The processors to bind threads to, first those to use first."""
        first = [number for cluster in self.clusters for number in cluster]
        return first + [p.number for p in self.processors if p.number not in first]

    @property
    def thread_counts(self) -> list[int]:
        """The numbers of threads worth trying: all up to 4, then fewer, and whole clusters."""
        counts, step = set(range(1, min(4, self.count) + 1)), 4
        while step <= self.count:
            counts |= {step, min(self.count, step * 3 // 2)}
            step *= 2
        whole = 0
        for cluster in self.clusters:
            whole += len(cluster)
            counts.add(whole)
        return sorted({*counts, self.count})
