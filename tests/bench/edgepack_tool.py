"""Does with edgepack's own steps what ``peer_tool.py`` does with other tools.

::

    python edgepack_tool.py simplify MODEL OUT.onnx
    python edgepack_tool.py quantize MODEL INPUT SAMPLES.npy OUT.onnx [OPTION=VALUE ...]
    python edgepack_tool.py calibrate MODEL INPUT SAMPLES.npy OUT.npz [times=N]

The last line that the last two print is the same JSON document: ``seconds`` of the steps, with
their checks and proofs, or of the calibration alone, and ``peak_bytes`` of its processes.
``times`` gives the samples over and over.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path

# As in edgepack's workers.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["VECLIB_MAXIMUM_THREADS"] = "1"

import numpy as np
from edgepack.base.machine import find_processor
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_structure
from edgepack.project.profile import Dialect
from edgepack.quantization.qdq.writer import find_observed_tensors
from edgepack.quantization.ranges.collecting import collect
from edgepack.quantization.ranges.statistics import write_statistics
from edgepack.samples.sample_set import write_sample_set
from edgepack.steps.base import Inputs, Notes, Step, run_step
from edgepack.steps.graph.opset import AtLeastOpset
from edgepack.steps.graph.prepared import Prepared
from edgepack.steps.graph.simplified import Simplified
from edgepack.steps.recipes.calibration import Calibration
from edgepack.steps.recipes.int8 import INT8_OPSET
from edgepack.steps.recipes.int8_static import Int8Static

from tests.bench.measuring import scratch
from tests.bench.peer_tool import peak_bytes

MAX_IR = 13
"""What onnxruntime 1.31.1 loads."""
WIDE_OPSET = 21


def simplify(model: Path, out: Path) -> None:
    """Write the float model as a build would hand it to quantization, with a batch of one."""
    dims = {d for spec in read_signature(read_structure(model))[0] for d in spec.shape or ()}
    with scratch() as folder:
        fixed = tuple((dim, 1) for dim in sorted(map(str, dims)) if not dim.isdigit())
        prepared = _step(Prepared(fixed), {"source": model}, folder / "prepared")
        simplified = _step(Simplified(), {"model": prepared}, folder / "simplified")
        raised = _step(AtLeastOpset(INT8_OPSET), {"model": simplified}, folder / "raised")
        shutil.copyfile(raised / MODEL, out)


def quantize(model: Path, samples: Path, out: Path, options: dict[str, str]) -> None:
    """Quantize in the dialect of the options, and print what it took."""
    flags = {"yes": True, "no": False}
    dialect = Dialect.model_validate({k: flags.get(v, v) for k, v in options.items()})
    with scratch() as folder:
        (folder / "model").mkdir()
        shutil.copyfile(model, folder / "model" / MODEL)
        inputs, outputs = read_signature(read_structure(model))
        array = np.load(samples, mmap_mode="r")
        named = ((f"sample {k}", {inputs[0].name: array[k : k + 1]}) for k in range(len(array)))
        (folder / "samples").mkdir()
        write_sample_set(folder / "samples", inputs, named)
        given = {"model": folder / "model", "samples": folder / "samples"}
        started = time.perf_counter()
        given["statistics"] = _step(Calibration(), given, folder / "statistics")
        if dialect.activations == "uint16":
            raised = {k: given[k] for k in ("model", "samples")}
            given["model"] = _step(AtLeastOpset(WIDE_OPSET), raised, folder / "raised")
        # Other activations are for other providers: for a CPU, nodes would be left float.
        cpu = "x86-64" if dialect.activations == "uint8" else None
        step = Int8Static(
            dialect, MAX_IR, cpu=cpu, processor=find_processor(), scores_output=outputs[0].name
        )
        made = _step(step, given, folder / "int8")
        seconds = time.perf_counter() - started
        shutil.copyfile(made / MODEL, out)
    print(json.dumps({"seconds": seconds, "peak_bytes": _peak_bytes()}))


def calibrate(model: Path, name: str, samples: Path, out: Path, times: int) -> None:
    """Collect the statistics of all methods, and print what it took."""
    array = np.load(samples, mmap_mode="r")
    feeds = (
        {name: np.ascontiguousarray(array[k : k + 1])}
        for _ in range(times)
        for k in range(len(array))
    )
    started = time.perf_counter()
    write_statistics(collect(model, feeds, find_observed_tensors(read_structure(model))), out)
    print(json.dumps({"seconds": time.perf_counter() - started, "peak_bytes": _peak_bytes()}))


def _peak_bytes() -> int:
    """Return the most memory that this process had, and as much as the largest one it has started.

    With two cores there is one, which counts some of the samples. What Linux says of it may be what
    this process had when it started it (getrusage(2)): that is no less.
    """
    return peak_bytes() + 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def _step(step: Step, inputs: Inputs, out: Path) -> Path:
    out.mkdir()
    notes: Notes = run_step(step, inputs, out)
    print(f"{step.name}: {notes.done}", file=sys.stderr)
    return out


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    if arguments[0] == "simplify":
        simplify(Path(arguments[1]), Path(arguments[2]))
        return
    model, name, samples, out, *options = arguments[1:]
    given = dict(option.split("=", 1) for option in options)
    if arguments[0] == "calibrate":
        calibrate(Path(model), name, Path(samples), Path(out), int(given.get("times", "1")))
        return
    quantize(Path(model), Path(samples), Path(out), given)


if __name__ == "__main__":
    main(sys.argv[1:])
