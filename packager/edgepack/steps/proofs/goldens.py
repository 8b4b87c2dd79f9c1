"""Golden inputs and outputs: what a device must reproduce before a variant is used there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import StepError
from edgepack.metrics.accuracy import array_sqnr_db, min_sqnr_db
from edgepack.model.files import MODEL, find_model_file
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.proofs.candidates import Candidates, find_stride, keep_all_values, keep_values
from edgepack.steps.proofs.faults import FaultTrial
from edgepack.steps.proofs.golden_choice import read_choice
from edgepack.steps.proofs.mutants import open_mutable_session
from edgepack.steps.proofs.quantities import Quantities, split_by_part
from edgepack.steps.proofs.telling import FLOOR_DB, MARGIN_DB, Name, Tolerance, measure_variations

if TYPE_CHECKING:
    import onnxruntime

GOLDENS = "goldens.json"


@dataclass(frozen=True)
class Goldens:
    """A variant's own outputs on this machine's CPU, and how near another device must come.

    ``min_sqnr_db`` is the smaller of ``cap_db`` and the SQNR between onnxruntime's optimized and
    unoptimized session less 6 dB: kernels differ between machines about as much as between those
    two. It is 6 dB at least. An output that varies little over samples for its size has to be
    nearer, so that an error is less than a fifth of its deviation; but not nearer than these two
    sessions are, less 6 dB. Wrong models are compared with the goldens, and those that pass are
    recorded (decision 017).

    Inputs: ``model``; ``shipped``, the file that is shipped where that is another one: the outputs
    are its own then; ``choice``, the samples to take; ``samples``, or ``made``, a set that stands
    in for them, else seeded random ones.
    """

    name: ClassVar[str] = "goldens"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    cacheable = True
    cap_db: float
    processor: str
    """The kind of processor that this runs on: it decides the last bits."""
    config: tuple[tuple[str, str], ...] = ()
    """Session config entries that the shipped file needs."""

    def check(self, inputs: Inputs) -> None:
        """Accept any model that a recipe has proven."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``goldens.json`` and one raw file per tensor."""
        candidates, chosen = Candidates.of(inputs), read_choice(inputs["choice"])
        session = make_session(candidates.model)
        plain, mutants = open_mutable_session(candidates.model, candidates.make_feed(chosen[0]))
        whole = {number: run_session(session, candidates.make_feed(number)) for number in chosen}
        others = candidates.choose_others(chosen)
        found = {number: keep_all_values(outputs) for number, outputs in whole.items()}
        again = {number: candidates.run(plain, number) for number in chosen}
        own_db = min(
            _compute_noise_db([found[n] for n in chosen], [again[n] for n in chosen]).values()
        )
        found |= {number: candidates.run(session, number) for number in others}
        several = _find_quantities(whole[chosen[0]], found.values())
        parts, plain_parts = (
            {number: split_by_part(outputs, several) for number, outputs in each.items()}
            for each in (found, again)
        )
        noise_db = _compute_noise_db([parts[n] for n in chosen], [plain_parts[n] for n in chosen])
        limit_db = self._choose_limit_db(own_db)
        tolerance = Tolerance(limit_db, measure_variations(parts.values()), noise_db, several)
        shipped = self._open_shipped(inputs)
        golden = (
            {n: run_session(shipped, candidates.make_feed(n)) for n in chosen} if shipped else whole
        )
        goldens = [
            _write_golden(out, place, candidates.make_feed(number), golden[number], tolerance)
            for place, number in enumerate(chosen)
        ]
        trial = FaultTrial(candidates, found, chosen, tolerance)
        faults = [
            *trial.try_mutants(plain, mutants),
            *trial.try_swaps(),
            *trial.try_constants(candidates.run_strangers(session)),
        ]
        index = {
            "goldens": goldens,
            "min_sqnr_db": limit_db,
            "faults": [[fault.what, fault.told_by] for fault in faults],
        }
        (out / GOLDENS).write_text(json.dumps(index), encoding="utf-8")
        told = sum(fault.told_by is not None for fault in faults)
        return Notes(
            f"{len(goldens)} golden samples, to be met within {limit_db:g} dB, tell {told} of"
            f" {len(faults)} wrong models from the right one",
            {"min_sqnr_db": limit_db, "real": "samples" in inputs, "told": told}
            | {"faults": len(faults)},
        )

    def _open_shipped(self, inputs: Inputs) -> onnxruntime.InferenceSession | None:
        """Return a session of the file that is shipped, where that is another one."""
        if "shipped" not in inputs:
            return None
        return make_session(find_model_file(inputs["shipped"]), config=dict(self.config))

    def _choose_limit_db(self, own_db: float) -> float:
        if own_db < FLOOR_DB:
            raise StepError(
                f"onnxruntime's optimized and unoptimized sessions are {own_db:.1f} dB apart, so"
                " a right output cannot be told from a wrong one",
                hint="give calibration samples that look like real inputs, or build without this"
                " variant: --variant cpu-fp32",
            )
        return min(self.cap_db, max(FLOOR_DB, math.floor(10 * (own_db - MARGIN_DB)) / 10))

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that a fresh session reproduces the files.

        Raises:
            StepError: It does not.
        """
        index = read_goldens(out)
        session = self._open_shipped(inputs) or make_session(inputs["model"] / MODEL)
        for golden in index["goldens"]:
            feed = {entry["name"]: read_tensor(out, entry) for entry in golden["inputs"]}
            expected = {entry["name"]: read_tensor(out, entry) for entry in golden["outputs"]}
            sqnr = min_sqnr_db(expected, keep_all_values(run_session(session, feed)))
            if not sqnr >= index["min_sqnr_db"]:
                raise StepError(
                    f"a second session gives outputs {sqnr:.0f} dB from the first",
                    hint="the model is not repeatable on this machine: look for random operators",
                )


def _write_golden(
    out: Path, place: int, feed: Arrays, outputs: Arrays, tolerance: Tolerance
) -> dict[str, Any]:
    """Write the tensors of a golden sample; return its entry for the index."""
    inputs = [_write(out, f"{place}-in-{k}", *item) for k, item in enumerate(feed.items())]
    entries = []
    for k, (name, array) in enumerate(outputs.items()):
        entry = _write(out, f"{place}-out-{k}", name, array, find_stride(array.size))
        extra_db = tolerance.compute_extra_db(name, keep_values(array))
        if several := tolerance.several.get(name):
            entry["quantities"] = {"size": several.size, "runs": several.runs, "extra_db": extra_db}
        else:
            [entry["extra_db"]] = extra_db
        entries.append(entry)
    return {"inputs": inputs, "outputs": entries}


def _find_quantities(outputs: Arrays, found: Iterable[Arrays]) -> dict[str, Quantities]:
    """Return the quantities of outputs that have more than one."""
    by_sample = list(found)
    several = {
        name: Quantities.of(output.shape, [each[name] for each in by_sample])
        for name, output in outputs.items()
        if output.dtype.kind == "f"
    }
    return {name: quantities for name, quantities in several.items() if quantities}


def _compute_noise_db(
    some: Sequence[Mapping[Name, Array]], again: Sequence[Mapping[Name, Array]]
) -> dict[Name, float]:
    """Return how near two sessions' outputs are, each in the worst sample."""
    return {
        name: min(
            array_sqnr_db(one[name], other[name]) for one, other in zip(some, again, strict=True)
        )
        for name in some[0]
    }


def _write(out: Path, stem: str, name: str, array: Array, stride: int = 1) -> dict[str, Any]:
    some = array.reshape(-1)[::stride]
    little = np.ascontiguousarray(some, array.dtype.newbyteorder("<"))
    (out / f"{stem}.bin").write_bytes(little.tobytes())
    return {
        "name": name,
        "file": f"{stem}.bin",
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "stride": stride,
    }


def read_goldens(folder: Path) -> Any:  # noqa: ANN401  (plain JSON, written above)
    """Return the index that :class:`Goldens` wrote: ``goldens``, ``min_sqnr_db`` and ``faults``."""
    return json.loads((folder / GOLDENS).read_text(encoding="utf-8"))


def read_tensor(folder: Path, entry: dict[str, Any]) -> Array:
    """Return one raw little-endian tensor, or what is kept of it as one vector."""
    values = np.fromfile(folder / entry["file"], dtype=entry["dtype"])
    return values.reshape(entry["shape"] if entry["stride"] == 1 else -1)
