"""A metric of the user's own: a function that runs in a process of its own."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.errors import SamplesError
from edgepack.model.running import Arrays
from edgepack.project.samples import PythonMetric
from edgepack.samples.hook import save_arrays
from edgepack.samples.sample_set import SampleSet
from edgepack.samples.sources import run_hook
from edgepack.steps.base import Inputs


@dataclass(frozen=True)
class HookMetric:
    """A metric of the user's own, for one set of samples."""

    metric: PythonMetric
    samples: SampleSet
    project: Path
    interpreter: str | None

    def __call__(self, outputs: list[Arrays], about: str) -> dict[str, float]:
        """Return what the function says of all outputs of the set: the value that decides first.

        A single number has the function's name.

        Args:
            outputs: Of each sample.
            about: Whose outputs they are, for what the function prints.

        Raises:
            SamplesError: The hook fails, or does not return the value that is to decide.
        """
        found = self._run("metric", outputs, about)
        return self._put_decisive_first(
            found if isinstance(found, dict) else {self.metric.python: found}
        )

    def measure_groups(self, outputs: list[Arrays], about: str, count: int) -> list[float]:
        """Return the value that decides without each of ``count`` groups of the samples.

        Raises:
            SamplesError: The hook fails with fewer samples.
        """
        found = self._run("groups", outputs, about, str(count))
        name = self.metric.value
        return [
            (each[name] if name else next(iter(each.values()))) if isinstance(each, dict) else each
            for each in found
        ]

    def _run(self, mode: str, outputs: list[Arrays], about: str, *more: str) -> Any:  # noqa: ANN401
        """Return what the function writes as JSON."""
        labels = self.samples.labels
        with tempfile.TemporaryDirectory(prefix="edgepack-metric-") as scratch:
            folder = Path(scratch)
            for n, arrays in enumerate(outputs):
                save_arrays(folder / f"{n}.npz", arrays)
            (folder / "names.json").write_text(json.dumps(self.samples.names), encoding="utf-8")
            if labels is not None:
                np.save(folder / "labels.npy", labels, allow_pickle=False)
            arguments = [mode, self.metric.python, scratch, *more]
            run_hook(arguments, self.project, self.interpreter, about)
            return json.loads((folder / "value.json").read_text(encoding="utf-8"))

    def _put_decisive_first(self, found: dict[str, float]) -> dict[str, float]:
        first = next(iter(found)) if self.metric.value is None else self.metric.value
        if first not in found:
            raise SamplesError(
                f"the metric {self.metric.python} returned {', '.join(found)}, not {first!r}",
                hint="'value' under 'metric' in edgepack.yaml names one of the values that the"
                " function returns, or leave it out: then the first decides",
            )
        return {first: found[first], **found}


def make_hook(
    metric: str | PythonMetric | None,
    samples: SampleSet,
    inputs: Inputs,
    interpreter: str | None,
) -> HookMetric | None:
    """Return what calls the user's metric, if it is one."""
    if not isinstance(metric, PythonMetric):
        return None
    return HookMetric(metric, samples, inputs["project"], interpreter)
