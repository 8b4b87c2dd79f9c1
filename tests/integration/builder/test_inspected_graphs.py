"""``inspect`` judges the graphs that ``build`` would judge: one plan makes both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import pytest
from edgepack.base.progress import Silent
from edgepack.builder import inspect as inspecting
from edgepack.builder.build import dry_run
from edgepack.builder.cache import StepCache
from edgepack.builder.execution import Execution, execute
from edgepack.builder.inspect import inspect
from edgepack.builder.plan import Plan
from edgepack.builder.planner import draft_models
from edgepack.model.files import MODEL
from edgepack.steps.base import Notes, Step, find_settings
from edgepack.steps.graph.rewritten import Rewritten
from edgepack.steps.graph.simplified import Simplified
from edgepack.steps.recipes.bucketed import WEIGHTS, Bucketed
from edgepack.steps.recipes.calibration import Calibration
from edgepack.steps.recipes.int8_static import Int8Static
from edgepack.steps.recipes.recipes import RECIPES
from onnx import TensorProto, helper

from tests.support.nets import branch_nets, int8_nets, stream_nets, text_nets, tiny_models

node, FLOAT = helper.make_node, TensorProto.FLOAT
ALL = ["all"]


class Here:
    """Stands for worker processes: calls in this one, so that a test can look on."""

    def __init__(self, count: int) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def call(self, function, *arguments):
        return function(*arguments)


def mixer(path: Path) -> Path:
    """Two products, each behind a LayerNormalization with large channels, as in a transformer."""
    random = np.random.default_rng(4)
    constants = [(n, random.standard_normal((32, 32)).astype(np.float32)) for n in "ab"]
    constants += [("scale", np.where(np.arange(32) % 11, 0.5, 40).astype(np.float32))]
    constants += [("bias", np.zeros(32, np.float32))]
    nodes = [
        node("LayerNormalization", ["x", "scale", "bias"], ["n"], "norm"),
        node("MatMul", ["n", "a"], ["h"], "up"),
        node("Relu", ["h"], ["r"], "relu"),
        node("LayerNormalization", ["r", "scale", "bias"], ["m"], "norm2"),
        node("MatMul", ["m", "b"], ["y"], "down"),
    ]
    value = (FLOAT, ["batch", 12, 32])
    return tiny_models.save(path, nodes, [("x", *value)], [("y", *value)], constants)


def carried(path: Path) -> Path:
    """A Conv that is quantized already."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize"),
        node("DequantizeLinear", ["w", "s", "wz"], ["v"], "weights"),
        node("Conv", ["d", "v"], ["y"], "conv"),
    ]
    weights = np.random.default_rng(1).integers(-100, 100, (4, 3, 3, 3)).astype(np.int8)
    constants = [("s", np.float32(0.03)), ("z", np.uint8(128)), ("wz", np.int8(0)), ("w", weights)]
    shapes = [("x", FLOAT, [1, 3, 8, 8])], [("y", FLOAT, [1, 4, 6, 6])]
    return tiny_models.save(path, nodes, *shapes, constants)


def old_net(path: Path) -> Path:
    return tiny_models.conv_net(path, opset=11)


def texts(path: Path) -> Path:
    (path.parent / "words.json").write_text(json.dumps(text_nets.word_pieces()))
    return text_nets.text_net(path)


IMAGE = "{resize: {letterbox: 8}, scale: 0.0039}"
NETS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "conv": (tiny_models.conv_net, "dims: {batch: 1}"),
    "any-batch": (tiny_models.conv_net, ""),
    "sizes": (tiny_models.conv_net, "dims: {batch: [1, 4]}"),
    "range": (tiny_models.conv_net, "dims: {batch: {min: 1, opt: 2, max: 4}}"),
    "old-opset": (old_net, "dims: {batch: 1}"),
    "pictures": (
        tiny_models.conv_net,
        f"inputs: {{image: {{image: {IMAGE}}}}}\npreprocess: {{in_graph: true}}",
    ),
    "norms": (mixer, "dims: {batch: [1, 2]}"),
    "mixed": (int8_nets.mixed_net, ""),
    "residual": (int8_nets.residual_net, ""),
    "constant": (branch_nets.rated, "constants: {rate: 16000}"),
    "state": (stream_nets.gru, "state: {h_out: h}"),
    "relu": (tiny_models.relu, ""),
    "carried": (carried, ""),
    "texts": (
        texts,
        """
files: [words.json]
inputs: {input_ids: {tokens: {file: words.json, length: 6}}}
preprocess: {extensions: [tokenize]}
""",
    ),
}
LEAST = {"texts": 3}
"""Graphs that there are to compare, where these are few: phones have no tokenizers."""
SAMPLED = {
    "conv": ("image", (1, 3, 8, 8)),
    "sizes": ("image", (1, 3, 8, 8)),
    "norms": ("x", (1, 12, 32)),
    "mixed": ("image", (1, 3, 8, 8)),
    "residual": ("image", (1, 3, 8, 8)),
}
"""The input of a net, and the shape of a sample."""
SHARED = (
    "small/mlperf_tiny_kws_dscnn_fp32.onnx",
    "small/cifar10_resnet20_fp32_bn.onnx",
    "dense/super_resolution_opset.onnx",
    "text/bert_toy_optimized.onnx",
)


def write_project(folder: Path, model: Path, extra: str = "") -> Path:
    path = folder / "edgepack.yaml"
    path.write_text(f"schema_version: 1\nname: net\nversion: 1.0.0\nmodel: {model}\n{extra}\n")
    return path


def digest(folder: Path) -> str:
    """Return a digest of a model and the weights beside it."""
    files = sorted([*folder.glob(f"{MODEL}*"), *folder.glob(WEIGHTS)])
    assert folder / MODEL in files
    return sha256(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()


def judged_by_inspect(project: Path, patch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Return the id of each variant whose graph is judged, with the graph's digest."""
    found = set()
    predict = inspecting.predict_placement

    def looked_on(model: Path, variant):
        found.add((variant.id, digest(model.parent)))
        return predict(model, variant)

    patch.setattr(inspecting, "Workers", Here)
    patch.setattr(inspecting, "predict_placement", looked_on)
    assert inspect(project=project, targets=ALL).variants
    return found


def judged_by_build(plan: Plan, cache: StepCache) -> set[tuple[str, str]]:
    """Return the id of each variant that a build would judge, with its graph's digest."""
    planned = [variant for bundle in plan.bundles for variant in bundle.variants]
    done = executed(plan, [variant.bucketed or variant.model for variant in planned], cache)
    return {
        (variant.variant.id, digest(done.artifacts[step].path))
        for variant in planned
        if (step := variant.bucketed or variant.model) in done.artifacts
    }


def executed(plan: Plan, steps: Sequence[str], cache: StepCache) -> Execution:
    """Do steps of a plan; one that refuses its model stops no variant that does without."""
    needed = plan.find_needed(steps)
    chosen = replace(plan, steps=tuple(each for each in plan.steps if each.id in needed))
    return execute(chosen, cache=cache, jobs=1, progress=Silent())


def int8_steps_of_inspect(project: Path, patch: pytest.MonkeyPatch) -> list[object]:
    """Return what steps of int8-static, and those that observe for it, are and are given."""
    found = []
    draft = inspecting.draft_step

    def looked_on(step: Step, inputs, out: Path):
        if isinstance(step, Int8Static | Calibration):
            found.append((find_settings(step), digest(inputs["model"])))
        draft(step, inputs, out)

    patch.setattr(inspecting, "Workers", Here)
    patch.setattr(inspecting, "draft_step", looked_on)
    inspect(project=project, targets=ALL)
    return sorted(found, key=str)


def int8_steps_of_build(plan: Plan, cache: StepCache) -> list[object]:
    steps = [each for each in plan.steps if isinstance(each.step, Int8Static | Calibration)]
    done = executed(plan, [each.inputs["model"] for each in steps], cache).artifacts
    given = [(find_settings(s.step), digest(done[s.inputs["model"]].path)) for s in steps]
    return sorted(given, key=str)


def assert_same_graphs(project: Path, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Hold the graphs of all targets that inspect judges against build's; return how many."""
    with patch.context() as here:
        inspected = judged_by_inspect(project, here)
    plan = dry_run(project=project, targets=ALL)
    planned = {each.variant.id for bundle in plan.bundles for each in bundle.variants}
    made = judged_by_build(plan, StepCache(folder / "steps"))
    assert {pair for pair in inspected if pair[0] in planned} == made
    assert all(observed(variant) for variant, _ in inspected if variant not in planned)
    return len(made)


def observed(variant: str) -> bool:
    """Return whether a build without samples leaves a variant out."""
    return any(kind.observer and name in variant for name, kind in RECIPES.items())


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize("net", NETS)
def test_inspect_when_there_are_no_samples_judges_the_graphs_that_build_would(
    tmp_path, monkeypatch, net
):
    save, extra = NETS[net]
    project = write_project(tmp_path, save(tmp_path / "net.onnx"), extra)
    assert assert_same_graphs(project, tmp_path, monkeypatch) >= LEAST.get(net, 5)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", SHARED)
def test_inspect_when_a_model_is_public_judges_the_graphs_that_build_would(
    shared_data, tmp_path, monkeypatch, name
):
    project = write_project(tmp_path, shared_data / name)
    assert assert_same_graphs(project, tmp_path, monkeypatch)


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize("net", SAMPLED)
def test_inspect_when_int8_is_calibrated_begins_with_the_graph_that_build_does(
    tmp_path, monkeypatch, net
):
    save, extra = NETS[net]
    model = save(tmp_path / "net.onnx")
    name, shape = SAMPLED[net]
    values = np.random.default_rng(7).standard_normal((8, *shape)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", **{name: values})
    given = "samples: {calibration: {path: samples.npz}, evaluation: {path: samples.npz}}"
    project = write_project(tmp_path, model, f"{extra}\n{given}\nlimits: {{min_sqnr_db: 20}}")
    with monkeypatch.context() as here:
        inspected = int8_steps_of_inspect(project, here)
    # Where a search is measured changes what a build ends with, not what it begins with.
    plan = dry_run(project=project, targets=ALL, simulate_s=0.0)
    assert inspected == int8_steps_of_build(plan, StepCache(tmp_path / "steps"))
    assert len(inspected) >= 5


LEFT_OUT: dict[str, Callable[[Step], bool]] = {
    "smooth-norms": lambda step: step == Rewritten(("smooth-norms",)),
    "simplified": lambda step: isinstance(step, Simplified),
    "sizes": lambda step: isinstance(step, Bucketed),
}


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.parametrize("step", LEFT_OUT)
def test_comparison_when_a_step_is_left_out_of_inspect_fails(tmp_path, monkeypatch, step):
    def torn(inputs, profiles):
        plan, drafts = draft_models(inputs, profiles)
        steps = [replace(s, step=Untouched()) if LEFT_OUT[step](s.step) else s for s in plan.steps]
        return replace(plan, steps=tuple(steps)), drafts

    monkeypatch.setattr(inspecting, "draft_models", torn)
    project = write_project(tmp_path, mixer(tmp_path / "net.onnx"), NETS["norms"][1])
    with pytest.raises(AssertionError):
        assert_same_graphs(project, tmp_path, monkeypatch)


@dataclass(frozen=True)
class Untouched:
    """Stands for a step that changes nothing."""

    name: ClassVar[str] = "untouched"
    libraries: ClassVar[tuple[str, ...]] = ()
    cacheable = True

    def check(self, inputs) -> None: ...

    def run(self, inputs, out: Path) -> Notes:
        shutil.copytree(inputs["model"], out, dirs_exist_ok=True)
        return Notes("untouched")

    def verify(self, inputs, out: Path) -> None: ...
