"""Golden inputs and outputs: what a device must reproduce before a variant is used there."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgepack.accuracy import Array, min_sqnr_db
from edgepack.errors import StepError
from edgepack.model.running import make_session, run_session
from edgepack.steps.base import MODEL, Inputs, Notes
from edgepack.steps.comparing import probe_inputs

GOLDENS = "goldens.json"
_MARGIN_DB = 6.0
FLOOR_DB = 6.0
"""No golden test asks for less: an output of zeros alone is 0 dB from any other."""


@dataclass(frozen=True)
class Goldens:
    """A variant's own outputs on this machine's CPU, and how near another device must come.

    ``min_sqnr_db`` is the smaller of ``cap_db`` and the SQNR between onnxruntime's optimized and
    unoptimized session less 6 dB: kernels differ between machines about as much as between
    those two. It is 6 dB at least. Inputs: ``model``; ``samples``, or ``made``, a set that stands
    in for them, else seeded random ones.
    """

    name: ClassVar[str] = "goldens"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnxruntime")
    cacheable = True
    count: int
    cap_db: float
    processor: str
    """The kind of processor that this runs on: it decides the last bits."""

    def check(self, inputs: Inputs) -> None:
        """Accept any model that a recipe has proven."""

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``goldens.json`` and one raw file per tensor."""
        model = inputs["model"] / MODEL
        session, plain = make_session(model), make_session(model, optimized=False)
        goldens = []
        own_db = math.inf
        samples = inputs.get("samples", inputs.get("made"))
        for n, feed in enumerate(probe_inputs(model, samples, self.count)):
            outputs = run_session(session, feed)
            own_db = min(own_db, min_sqnr_db(outputs, run_session(plain, feed)))
            goldens.append(
                {
                    "inputs": [_write(out, f"{n}-in-{k}", *item) for k, item in _numbered(feed)],
                    "outputs": [
                        _write(out, f"{n}-out-{k}", *item) for k, item in _numbered(outputs)
                    ],
                }
            )
        if own_db < FLOOR_DB:
            raise StepError(
                f"onnxruntime's optimized and unoptimized sessions are {own_db:.1f} dB apart, so"
                " a right output cannot be told from a wrong one",
                hint="give calibration samples that look like real inputs, or build without this"
                " variant: --variant cpu-fp32",
            )
        limit_db = round(min(self.cap_db, max(FLOOR_DB, own_db - _MARGIN_DB)), 1)
        index = {"goldens": goldens, "min_sqnr_db": limit_db}
        (out / GOLDENS).write_text(json.dumps(index), encoding="utf-8")
        return Notes(
            f"{len(goldens)} golden samples, to be met within {limit_db:g} dB",
            {"min_sqnr_db": limit_db, "real": "samples" in inputs},
        )

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that a fresh session reproduces the files.

        Raises:
            StepError: It does not.
        """
        index = read_goldens(out)
        session = make_session(inputs["model"] / MODEL)
        for golden in index["goldens"]:
            feed = {entry["name"]: read_tensor(out, entry) for entry in golden["inputs"]}
            expected = {entry["name"]: read_tensor(out, entry) for entry in golden["outputs"]}
            sqnr = min_sqnr_db(expected, run_session(session, feed))
            if not sqnr >= index["min_sqnr_db"]:
                raise StepError(
                    f"a second session gives outputs {sqnr:.0f} dB from the first",
                    hint="the model is not repeatable on this machine: look for random operators",
                )


def _numbered(arrays: dict[str, Array]) -> list[tuple[int, tuple[str, Array]]]:
    return list(enumerate(arrays.items()))


def _write(out: Path, stem: str, name: str, array: Array) -> dict[str, object]:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    (out / f"{stem}.bin").write_bytes(little.tobytes())
    return {
        "name": name,
        "file": f"{stem}.bin",
        "dtype": array.dtype.name,
        "shape": list(array.shape),
    }


def read_goldens(folder: Path) -> Any:  # noqa: ANN401  (plain JSON, written above)
    """Return the index that :class:`Goldens` wrote: ``goldens`` and ``min_sqnr_db``."""
    return json.loads((folder / GOLDENS).read_text(encoding="utf-8"))


def read_tensor(folder: Path, entry: dict[str, Any]) -> Array:
    """Return one raw little-endian tensor."""
    return np.fromfile(folder / entry["file"], dtype=entry["dtype"]).reshape(entry["shape"])
