"""The fused-attention step, and a bundle with what it made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.backends.targets import find_misfits
from edgepack.builder import planner, timing
from edgepack.builder.build import BuildResult, build
from edgepack.builder.inspect import inspect
from edgepack.builder.timing import LatencyComparison
from edgepack.errors import EdgepackError, StepError, ToolError
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.project.profile import VariantChange, change_profile, load_profile
from edgepack.samples.sample_set import write_sample_set
from edgepack.steps.base import Notes, run_step
from edgepack.steps.graph import attention
from edgepack.steps.graph.attention import FusedAttention, count_fused
from edgepack.trying.verify import verify as verify_here
from onnx import numpy_helper
from onnxruntime.transformers.fusion_options import FusionOptions

from tests.support.nets import decoder_nets, encoder_nets, tiny_models


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder, samples whose masks hide nothing, and what the step makes."""
    folder = tmp_path_factory.mktemp("attention")
    encoder_nets.encoder(folder / "in" / MODEL, layers=1)
    inputs, _ = read_signature(read_structure(folder / "in" / MODEL))
    (folder / "samples").mkdir()
    rows = [(str(n), feed) for n, feed in enumerate(encoder_nets.sentences(8, seed=3))]
    write_sample_set(folder / "samples", inputs, rows)
    fuse(folder, "out")
    return folder


def fuse(folder: Path, out: str) -> Notes:
    (folder / out).mkdir()
    inputs = {"model": folder / "in", "samples": folder / "samples"}
    return run_step(FusedAttention(), inputs, folder / out)


def test_encoder_when_fused_has_one_attention_for_each_layer_and_the_same_bytes_each_time(made):
    model = read_model(made / "out" / MODEL)
    assert count_fused(model) == {"Attention": 1}
    assert not any(node.op_type == "Softmax" for node in model.graph.node)
    # What costs the CPU time is not made.
    operators = {node.op_type for node in model.graph.node}
    assert not operators & {"SkipLayerNormalization", "EmbedLayerNormalization", "BiasGelu"}
    notes = fuse(made, "again")
    assert notes.facts == {"fused_attention": 1}
    assert (made / "again" / MODEL).read_bytes() == (made / "out" / MODEL).read_bytes()


def _lose_mask(node: onnx.NodeProto) -> None:
    node.input[3] = ""


def _change_heads(node: onnx.NodeProto) -> None:
    next(entry for entry in node.attribute if entry.name == "num_heads").i = 6


def _rename(node: onnx.NodeProto) -> None:
    node.domain = "edgepack.other"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_lose_mask, "60 dB are needed"),
        (_change_heads, "60 dB are needed"),
        (_rename, "has no more Attention or RotaryEmbedding"),
    ],
)
def test_step_when_its_attention_is_wrong_is_caught(
    made: Path, tmp_path: Path, change: Callable[[onnx.NodeProto], None], message: str
):
    model = read_model(made / "out" / MODEL)
    [node] = [each for each in model.graph.node if each.op_type == "Attention"]
    change(node)
    write_model(model, tmp_path / MODEL)
    inputs = {"model": made / "in", "samples": made / "samples"}
    with pytest.raises(EdgepackError, match=message):
        FusedAttention().verify(inputs, tmp_path)


def test_attention_that_takes_what_is_hidden_for_the_end_is_caught(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The optimizer's default gives the operator the number of words in the place of the mask.
    monkeypatch.setattr(FusionOptions, "use_raw_attention_mask", lambda *_, **__: None)
    inputs = {"model": made / "in", "samples": made / "samples"}
    with pytest.raises(StepError, match="60 dB are needed"):
        run_step(FusedAttention(), inputs, tmp_path)


@pytest.fixture
def turning(tmp_path: Path) -> Path:
    """A folder with a decoder with rotary positions, and samples."""
    decoder_nets.decoder(tmp_path / "in" / MODEL)
    inputs, _ = read_signature(read_structure(tmp_path / "in" / MODEL))
    (tmp_path / "samples").mkdir()
    rows = [(str(n), decoder_nets.make_words(6 + n, seed=n)) for n in range(4)]
    write_sample_set(tmp_path / "samples", inputs, rows)
    return tmp_path


def test_rotary_positions_are_one_operator_for_each_query_and_key(turning: Path):
    notes = fuse(turning, "out")
    assert notes.facts == {"fused_attention": 2}
    model = read_model(turning / "out" / MODEL)
    assert count_fused(model) == {"RotaryEmbedding": 2}
    assert not {node.op_type for node in model.graph.node} & {"Neg", "Cos", "Sin"}


@pytest.mark.parametrize("table", ["cos_cache", "sin_cache"])
def test_rotary_positions_that_are_others_are_caught(turning: Path, table: str):
    fuse(turning, "out")
    model = read_model(turning / "out" / MODEL)
    [tensor] = [each for each in model.graph.initializer if each.name == table]
    moved = np.roll(numpy_helper.to_array(tensor), 1, axis=0)
    tensor.CopyFrom(numpy_helper.from_array(moved, table))
    write_model(model, turning / "out" / MODEL)
    inputs = {"model": turning / "in", "samples": turning / "samples"}
    with pytest.raises(StepError, match="60 dB are needed"):
        FusedAttention().verify(inputs, turning / "out")


def test_rotary_positions_of_layers_that_turn_otherwise_are_refused(turning: Path):
    # The optimizer (1.31.1) gives all layers the tables of the first one that it finds.
    decoder_nets.decoder(turning / "in" / MODEL, (10000.0, 100.0))
    with pytest.raises(StepError, match="60 dB are needed"):
        fuse(turning, "out")


def test_rotary_positions_that_the_optimizer_does_not_find_are_refused(turning: Path):
    decoder_nets.decoder(turning / "in" / MODEL, scaled=False)
    with pytest.raises(StepError, match="found no attention"):
        fuse(turning, "out")


def test_attention_that_was_there_before_is_none_that_was_fused(made: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    fused = read_model(made / "out" / MODEL)
    (tmp_path / "in").mkdir()
    write_model(fused, tmp_path / "in" / MODEL)
    inputs = {"model": tmp_path / "in", "samples": made / "samples"}
    with pytest.raises(StepError, match="found no attention"):
        FusedAttention().run(inputs, tmp_path / "out")
    write_model(fused, tmp_path / "out" / MODEL)
    with pytest.raises(StepError, match="no more"):
        FusedAttention().verify(inputs, tmp_path / "out")


def test_model_without_attention_is_refused_with_what_to_do(tmp_path: Path):
    tiny_models.conv_net(tmp_path / "in" / MODEL, batch=1)
    (tmp_path / "out").mkdir()
    with pytest.raises(StepError, match="found no attention") as caught:
        run_step(FusedAttention(), {"model": tmp_path / "in"}, tmp_path / "out")
    assert caught.value.hint == "leave fused_attention out of the variant"


def test_step_without_sympy_says_what_to_install(made: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "NEEDED", "edgepack_no_such_module")
    with pytest.raises(ToolError, match="needs edgepack_no_such_module") as caught:
        FusedAttention().check({"model": made / "in"})
    assert "edgepack[attention]" in caught.value.hint


@pytest.mark.parametrize(
    ("target", "backend", "recipe", "fits"),
    [
        ("linux-x86-64", "cpu", "fp32", True),
        ("linux-x86-64", "cpu", "int8-dynamic", False),
        ("intel", "openvino", "fp32", False),
        ("jetson", "tensorrt", "fp16", False),
        ("nvidia", "cuda", "fp16", False),
        ("ios", "coreml", "fp16", False),
        ("android-nnapi", "nnapi", "fp16", False),
    ],
)
def test_fused_attention_is_for_floats_on_the_cpu(
    target: str, backend: str, recipe: str, *, fits: bool
):
    profile = load_profile(target)
    asked = VariantChange(backend=backend, recipe=recipe, fused_attention=True)
    if recipe == "int8-dynamic":
        dialect = profile.find_variant("cpu-int8-static").dialect
        asked = asked.model_copy(update={"dialect": dialect})
    changed = change_profile(profile, [asked])
    [variant] = changed.variants
    assert variant.id == f"{backend}-{recipe}-fused"
    found = [misfit.key for misfit in find_misfits(variant, changed)]
    assert (("fused_attention",) in found) != fits


PROJECT = """
schema_version: 1
name: encoder
version: 1.0.0
model: in/model.onnx
targets:
  - id: linux-x86-64
    variants:
      - {backend: cpu, recipe: fp32, fused_attention: true}
      - {backend: cpu, recipe: fp32}
"""


def build_timed(
    folder: Path,
    found: LatencyComparison,
    patch: pytest.MonkeyPatch,
    variants: tuple[str, ...] = (),
) -> BuildResult:
    """Build with what the two models are said to take, in the place of a measurement."""
    patch.setattr(timing, "find_comparison", lambda *_: found)
    patch.setattr(timing, "find_architecture", lambda: "x86-64")
    (folder / "edgepack.yaml").write_text(PROJECT)
    result = build(project=folder / "edgepack.yaml", out=folder / "dist")
    result.require_all()
    return result


def test_bundle_when_fused_attention_is_faster_has_it_first_and_proven(
    made: Path, monkeypatch: pytest.MonkeyPatch
):
    result = build_timed(made, LatencyComparison(9.0, 10.0, 8), monkeypatch)
    bundle = result.bundles[0].bundle
    assert [v.id for v in bundle.manifest.variants] == ["cpu-fp32-fused", "cpu-fp32"]
    fused, plain = (read_model(bundle.path / v.model) for v in bundle.manifest.variants)
    assert (count_fused(fused), count_fused(plain)) == ({"Attention": 1}, {})
    assert all(check.passed for check in verify_here(bundle.path).goldens)


def test_bundle_when_fused_attention_is_not_clearly_faster_leaves_it_out(
    made: Path, monkeypatch: pytest.MonkeyPatch
):
    result = build_timed(made, LatencyComparison(9.8, 10.0, 8), monkeypatch)
    assert [v.id for v in result.bundles[0].bundle.manifest.variants] == ["cpu-fp32"]
    [unused] = result.unused["linux-x86-64"]
    assert (unused.variant, unused.stage) == ("cpu-fp32-fused", "left out")
    assert "not clearly faster" in unused.reason
    assert "(9.800 against 10.000 ms)" in unused.reason


def test_inspection_has_the_nodes_of_fused_attention(made: Path):
    (made / "edgepack.yaml").write_text(PROJECT)
    fused, plain = inspect(project=made / "edgepack.yaml").variants
    assert fused.variant == "cpu-fp32-fused"
    assert 0 < fused.nodes < plain.nodes
    assert fused.taken == fused.nodes


def test_variant_of_a_model_without_attention_is_refused_before_anything_runs(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tiny_models.conv_net(tmp_path / "in" / MODEL, batch=1)
    (tmp_path / "edgepack.yaml").write_text(PROJECT)
    fused, _ = inspect(project=tmp_path / "edgepack.yaml").variants
    assert fused.unused is not None
    assert (fused.unused.stage, "no attention" in fused.unused.reason) == ("refused", True)
    monkeypatch.setattr(planner, "can_fuse", lambda: False)
    (made / "edgepack.yaml").write_text(PROJECT)
    fused, _ = inspect(project=made / "edgepack.yaml").variants
    assert fused.unused is not None
    assert "edgepack[attention]" in str(fused.unused.hint)
