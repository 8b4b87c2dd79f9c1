"""What it costs to convert a model here, beside its exporter's own command in the same environment.

Both are whole processes that start the framework, in A B B A order. The exporter's command reads
the same file and writes ONNX, and is neither confined nor looked into. Then the proof, which starts
the framework again and runs two random inputs through both models, and for trees the edges of all
leaves; and the second build, in which nothing is converted. Environments and models are those of
the tests (``tests/support/environments.py``), and are made first where they are not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from edgepack.base.progress import Silent
from edgepack.builder.cache import StepCache
from edgepack.builder.sources import open_project
from edgepack.converters.conversion import ConvertedModel
from edgepack.converters.locks import LIGHTGBM, SKLEARN, TENSORFLOW
from edgepack.errors import ToolError
from edgepack.project.loading import make_project
from edgepack.steps.base import read_notes, run_step
from edgepack.steps.converted import Converted
from edgepack.steps.proofs.framework import FrameworkProof

from tests.bench.measuring import (
    EDGEPACK,
    Row,
    Table,
    interleaved,
    own_folders,
    process_seconds,
    ratio_text,
    run,
    scratch,
)
from tests.support.environments import find_framework_python, make_models
from tests.support.torch_python import make_torch_python

PAIRS = 3
NETS = Path(__file__).parents[1] / "support/nets"
KERAS = """
import keras, sys, tensorflow, tf2onnx.convert
model = keras.models.load_model(sys.argv[1], compile=False)
[given] = model.inputs
kinds = [tensorflow.TensorSpec(given.shape, given.dtype, name=given.name)]
call = tensorflow.function(lambda x: model(x, training=False), input_signature=kinds)
tf2onnx.convert.from_function(call, input_signature=kinds, opset=18, output_path=sys.argv[2])
"""
TFLITE = """
import sys, tf2onnx.convert
tf2onnx.convert.from_tflite(sys.argv[1], opset=18, output_path=sys.argv[2])
"""
TORCH = """
import sys, torch
program = torch.export.load(sys.argv[1])
torch.onnx.export(program, dynamo=True, opset_version=18, verbose=False).save(sys.argv[2])
"""
SCIKIT = """
import skl2onnx, skops.io, sys
from skl2onnx.common.data_types import FloatTensorType
model = skops.io.load(sys.argv[1], trusted=skops.io.get_untrusted_types(file=sys.argv[1]))
kinds = [("input", FloatTensorType([None, model.n_features_in_]))]
made = skl2onnx.to_onnx(model, initial_types=kinds, target_opset={"": 18, "ai.onnx.ml": 3})
open(sys.argv[2], "wb").write(made.SerializeToString())
"""
TREES = """
import lightgbm, onnxmltools, sys
from onnxmltools.convert.common.data_types import FloatTensorType
model = lightgbm.Booster(model_file=sys.argv[1])
kinds = [("input", FloatTensorType([None, model.num_feature()]))]
made = onnxmltools.convert_lightgbm(model, initial_types=kinds, target_opset=15, zipmap=False)
open(sys.argv[2], "wb").write(made.SerializeToString())
"""


@dataclass(frozen=True)
class Case:
    """A model, the Python that has its framework, and what exports it there."""

    source: Path
    python: str
    exporter: str


def measure() -> Iterator[Row | Table]:
    """Yield a row of the ratio for each model, and a table of all."""
    rows = []
    for case in _list_cases():
        row, cells = _measure(case)
        yield row
        rows.append(cells)
    yield Table(
        "models of other frameworks",
        ("model", "conversion", "exporter", "proof", "first build", "second", "conversions in it",
         "source", "ONNX", "farthest", "of it allowed"),
        tuple(rows),
    )  # fmt: skip


def _list_cases() -> Iterator[Case]:
    for name, exporter in (("pictures.keras", KERAS), ("pictures_float.tflite", TFLITE)):
        yield _find(name, "tensorflow", TENSORFLOW, exporter)
    yield _find("forest.skops", "sklearn", SKLEARN, SCIKIT)
    yield _find("multiclass.txt", "lightgbm", LIGHTGBM, TREES)
    try:
        python = str(make_torch_python())
    except ToolError as error:
        print(f"no PyTorch: {error.problem}")
        return
    with scratch() as folder:
        run([python, str(NETS / "torch_nets.py"), str(folder)])
        yield Case(folder / "convnet.pt2", python, TORCH)


def _find(name: str, kind: str, lock: Any, exporter: str) -> Case:
    python = find_framework_python(lock)
    return Case(make_models(NETS / f"make_{kind}_models.py", python) / name, python, exporter)


def _measure(case: Case) -> tuple[Row, tuple[str, ...]]:
    with scratch() as folder:
        converted = _convert(case, folder)
        number = iter(range(2 * PAIRS))

        def convert() -> float:
            out = folder / f"converted-{next(number)}"
            out.mkdir()
            started = perf_counter()
            run_step(Converted(converted.conversion), {"source": case.source}, out)
            return perf_counter() - started

        def export() -> float:
            command = [case.python, "-c", case.exporter, str(case.source)]
            return process_seconds([*command, str(folder / "exported.onnx")], _QUIET)

        pairs = interleaved(convert, export, PAIRS)
        proof_s, farthest, allowed = _prove(case, converted, folder / "proof")
        first_s, second_s, more = _build_twice(case, folder)
        ours, theirs = (sum(column) / PAIRS for column in zip(*pairs, strict=True))
        size = (converted.folder / "model.onnx").stat().st_size
        return (
            Row(
                f"{case.source.name}: conversion / exporter's own command, seconds",
                f"{PAIRS} pairs",
                ratio_text(pairs),
                "at most 2",
                f"{ours:.1f} s / {theirs:.1f} s",
            ),
            (
                case.source.name, f"{ours:.1f} s", f"{theirs:.1f} s", f"{proof_s:.1f} s",
                f"{first_s:.1f} s", f"{second_s:.1f} s", str(more),
                f"{case.source.stat().st_size / 1000:.0f} kB", f"{size / 1000:.0f} kB",
                f"{farthest:.2g}", f"{allowed:.1%}",
            ),
        )  # fmt: skip


_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


def _convert(case: Case, folder: Path) -> ConvertedModel:
    """Convert once, which also reads the files of the environment into memory."""
    cache = StepCache(folder / "steps")
    converted = open_project(make_project(case.source), cache, Silent(), case.python).converted
    if converted is None:
        raise TypeError("what was converted says so")
    return converted


def _prove(case: Case, converted: ConvertedModel, out: Path) -> tuple[float, float, float]:
    """Return how long the proof takes, the largest share of an output's largest value that a value
    is away, and the largest share of what is allowed.
    """
    out.mkdir()
    inputs = {"source": case.source, "converted": converted.folder}
    started = perf_counter()
    run_step(FrameworkProof(converted.conversion), inputs, out)
    seconds = perf_counter() - started
    found = [each for each in read_notes(out).facts["outputs"] if each["tolerance"]]
    farthest = max(each["farthest"] / each["largest"] for each in found)
    return seconds, farthest, max(each["farthest"] / each["tolerance"] for each in found)


def _build_twice(case: Case, folder: Path) -> tuple[float, float, int]:
    """Return the seconds of two builds, and how many conversions the second one made."""
    environment = own_folders(folder / "user")
    command = [EDGEPACK, "build", str(case.source), "--target", "host", "--python", case.python]
    command += ["--out", str(folder / "dist")]

    def find() -> set[tuple[Path, int]]:
        found = (folder / "user").rglob("signature.json")
        return {(path, path.stat().st_mtime_ns) for path in found}

    first_s = process_seconds(command, environment)
    before = find()
    second_s = process_seconds(command, environment)
    return first_s, second_s, len(find() - before)
