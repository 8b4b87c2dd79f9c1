"""An encoder's embeddings after every recipe: near float32's, or refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from edgepack.errors import StepError
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.model.running import make_session, run_session
from edgepack.quantization.methods.spread import find_spread_tensors
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.qdq.writer import QdqWriter, find_observed_tensors
from edgepack.quantization.ranges.collecting import collect
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.steps import comparing
from edgepack.steps.comparing import LEAST_COSINE, NEARER_EMBEDDINGS, compare
from edgepack.steps.embeddings import find_normalized_outputs, has_embeddings
from edgepack.steps.graph.rewritten import Rewritten
from edgepack.steps.recipes.fp16 import Fp16
from edgepack.steps.recipes.int8_dynamic import Int8Dynamic
from onnx import TensorProto, helper

from tests.support.nets import encoder_nets, int8_nets, tiny_models

MAX_IR = 13


@dataclass(frozen=True)
class Encoder:
    """Folders with the encoder, as made and with smooth norms, and calibration samples."""

    made: Path
    smooth: Path
    samples: Path
    feeds: list[dict[str, np.ndarray]]
    """Sentences that nothing was calibrated with."""
    expected: list[np.ndarray]

    def worst_cosine(self, model: Path) -> float:
        session = make_session(model / MODEL)
        found = [run_session(session, feed)["sentence"] for feed in self.feeds]
        return encoder_nets.worst_cosine(self.expected, found)


def require_close(before, after, samples):
    compare(before, after, samples).require_close_embeddings(NEARER_EMBEDDINGS)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Encoder:
    folder = tmp_path_factory.mktemp("encoder")
    made, smooth, samples = (folder / name for name in ("made", "smooth", "samples"))
    samples.mkdir()
    path = encoder_nets.encoder(made / MODEL)
    inputs, _ = read_signature(read_structure(path))
    named = [(f"{n}", feed) for n, feed in enumerate(encoder_nets.sentences(16, seed=100))]
    write_sample_set(samples, inputs, named)
    int8_nets.run(Rewritten(("smooth-norms",)), {"model": made, "samples": samples}, smooth)
    feeds = encoder_nets.sentences(24, seed=1)
    session = make_session(path)
    expected = [run_session(session, feed)["sentence"] for feed in feeds]
    return Encoder(made, smooth, samples, feeds, expected)


@pytest.mark.slow(reason="takes seconds")
def test_encoder_when_smoothed_gives_the_same_embeddings(encoder):
    assert encoder.worst_cosine(encoder.smooth) > 0.999999


@pytest.mark.slow(reason="builds an encoder")
def test_int8_dynamic_when_norms_are_smooth_keeps_embeddings(encoder, tmp_path):
    step = Int8Dynamic(int8_nets.CPU, MAX_IR)
    int8_nets.run(step, {"model": encoder.smooth, "samples": encoder.samples}, tmp_path / "out")
    assert encoder.worst_cosine(tmp_path / "out") >= LEAST_COSINE


@pytest.mark.slow(reason="builds an encoder")
def test_int8_dynamic_when_large_channels_stay_is_refused(encoder, tmp_path):
    step = Int8Dynamic(int8_nets.dialect("uint8", "int8", per_channel=False), MAX_IR)
    inputs = {"model": encoder.made, "samples": encoder.samples}
    with pytest.raises(StepError, match=r"'sentence' .*cosine"):
        int8_nets.run(step, inputs, tmp_path / "out")


def test_fp16_when_made_keeps_embeddings(encoder, tmp_path):
    # With all layers it takes four times as long and comes to the same.
    inputs = {"model": tmp_path / "made", "samples": encoder.samples}
    path = encoder_nets.encoder(inputs["model"] / MODEL, layers=1)
    int8_nets.run(Fp16(MAX_IR, ()), inputs, tmp_path / "out")
    sessions = [make_session(model) for model in (path, tmp_path / "out" / MODEL)]
    found = [[run_session(s, feed)["sentence"] for feed in encoder.feeds[:8]] for s in sessions]
    assert encoder_nets.worst_cosine(*found) > 0.9999


def written(encoder, folder: Path, out: Path, dialect) -> Path:
    """Write one of the encoders in a dialect, as its ranges say, streams float."""
    model = prepare_model(read_model(folder / MODEL))
    feeds = SampleSet.read(encoder.samples)
    statistics = collect(folder / MODEL, feeds, find_observed_tensors(model))
    ranges = {tensor: (found.low, found.high) for tensor, found in statistics.items()}
    unpaired = frozenset(find_spread_tensors(model, statistics))
    writer = QdqWriter(model, ranges, dialect, unpaired=unpaired)
    write_model(writer.write(writer.explain_unusable()), out / MODEL)
    return out


@pytest.mark.slow(reason="builds an encoder")
@pytest.mark.parametrize("name", ["cpu", "tensorrt", "qnn-8"])
def test_int8_static_when_norms_are_smooth_and_streams_float_keeps_embeddings(
    encoder, tmp_path, name
):
    written(encoder, encoder.smooth, tmp_path, int8_nets.DIALECTS[name])
    assert encoder.worst_cosine(tmp_path) >= LEAST_COSINE
    # Only what products read is quantized, and all of that.
    kinds = Counter(node.op_type for node in read_structure(encoder.made / MODEL).graph.node)
    assert kinds["MatMul"] == len(quantized_products(tmp_path / MODEL))


@pytest.fixture(scope="module")
def far(encoder, tmp_path_factory) -> Path:
    """A folder with the encoder in int8, large channels and all."""
    return written(encoder, encoder.made, tmp_path_factory.mktemp("far"), int8_nets.CPU)


@pytest.mark.slow(reason="builds an encoder")
def test_int8_static_when_large_channels_stay_is_refused(encoder, far):
    with pytest.raises(StepError, match=r"'sentence' is too far .* of 16 samples"):
        require_close(encoder.made / MODEL, far / MODEL, encoder.samples)


def quantized_products(path: Path) -> list[str]:
    """Return the matrix products both operands of which come from DequantizeLinear."""
    nodes = read_structure(path).graph.node
    made = {name: node.op_type for node in nodes for name in node.output}
    return [
        node.name
        for node in nodes
        if node.op_type == "MatMul"
        and all(made.get(name) == "DequantizeLinear" for name in node.input)
    ]


@pytest.mark.slow(reason="builds an encoder")
def test_embedding_when_it_turns_too_far_is_named_with_its_cosine(encoder, tmp_path):
    # Two layers less, and the sentences still have length 1.
    other = encoder_nets.encoder(tmp_path / MODEL, layers=4)
    with pytest.raises(StepError, match=r"'sentence'.*0\.98 is the least"):
        require_close(encoder.made / MODEL, other, encoder.samples)
    require_close(other, other, encoder.samples)


@pytest.mark.slow(reason="builds an encoder")
@pytest.mark.parametrize(
    ("output", "shape"),
    [
        pytest.param("layer5.end", [1, "words", encoder_nets.HIDDEN], id="a vector for each word"),
        pytest.param("mean", [1, encoder_nets.HIDDEN], id="their mean, of any length"),
    ],
)
def test_encoder_when_it_leaves_pooling_to_others_is_judged_by_its_sentences(
    encoder, far, tmp_path, output, shape
):
    paths = [tmp_path / name / MODEL for name in ("float", "int8")]
    for source, target in zip((encoder.made, far), paths, strict=True):
        model = read_model(source / MODEL)
        del model.graph.output[:]
        model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))
        target.parent.mkdir()
        write_model(model, target)
    found = [
        [run_session(session, feed)[output] for feed in SampleSet.read(encoder.samples)]
        for session in map(make_session, paths)
    ]
    sentences = [[one.reshape(-1, encoder_nets.HIDDEN).mean(0) for one in each] for each in found]
    worst = encoder_nets.worst_cosine(*sentences)
    assert worst < LEAST_COSINE
    with pytest.raises(StepError, match=rf"'{output}' is too far .* of 16 samples is {worst:.4f}"):
        require_close(*paths, encoder.samples)


def behind_a_product(*nodes):
    """A model whose last weights make ``p``, (1, 3, 4); the nodes make ``y`` of it."""
    value = ("x", TensorProto.FLOAT, [1, 3, 4])
    first = helper.make_node("MatMul", ["x", "w"], ["p"], "product")
    constants = [
        ("w", np.eye(4, dtype=np.float32)),
        ("g", np.ones(4, np.float32)),
        ("eps", np.array(1e-5, np.float32)),
        ("head", np.ones((4, 2), np.float32)),
    ]
    return lambda path: tiny_models.save(
        path, [first, *nodes], [value], [("y", TensorProto.FLOAT, None)], constants
    )


NORM = helper.make_node("LayerNormalization", ["p", "g"], ["n"], "norm")
SPELT_OUT = [
    helper.make_node("ReduceMean", ["p"], ["m"], "mean", axes=[-1]),
    helper.make_node("Sub", ["p", "m"], ["d"], "centred"),
    helper.make_node("Mul", ["d", "d"], ["dd"], "squares"),
    helper.make_node("ReduceMean", ["dd"], ["v"], "variance", axes=[-1]),
    helper.make_node("Add", ["v", "eps"], ["ve"], "added"),
    helper.make_node("Sqrt", ["ve"], ["s"], "root"),
    helper.make_node("Div", ["d", "s"], ["n"], "norm"),
]


@pytest.mark.parametrize(
    ("nodes", "is_normalized"),
    [
        pytest.param([NORM, helper.make_node("Identity", ["n"], ["y"])], True, id="a norm"),
        pytest.param(
            [*SPELT_OUT, helper.make_node("ReduceMean", ["n"], ["y"], axes=[1])],
            True,
            id="a norm in parts, pooled",
        ),
        pytest.param(
            [NORM, helper.make_node("MatMul", ["n", "head"], ["y"])], False, id="scores behind it"
        ),
        pytest.param([helper.make_node("Tanh", ["p"], ["y"])], False, id="no norm"),
    ],
)
def test_output_when_a_norm_is_its_end_is_an_encoders(tmp_path, nodes, is_normalized):
    model = read_structure(behind_a_product(*nodes)(tmp_path / MODEL))
    assert find_normalized_outputs(model) == ({"y"} if is_normalized else set())


@pytest.mark.parametrize(
    ("vector", "found"),
    [
        pytest.param([0.6, -0.8], True, id="of length 1"),
        pytest.param([6.0, -8.0], False, id="of another length"),
        pytest.param([0.6, 0.8], False, id="without negative values, as probabilities are"),
        pytest.param([-1.0], False, id="a single value"),
    ],
)
def test_output_when_searched_for_embeddings_holds_one_if(vector, found):
    assert has_embeddings(np.array([vector], np.float32), is_normalized=False) is found


def test_comparison_when_made_runs_each_model_once_on_each_sample(encoder, tmp_path, monkeypatch):
    runs = Counter()

    def counting(session, feed):
        runs[id(session), feed["input_ids"].tobytes()] += 1
        return run_session(session, feed)

    monkeypatch.setattr(comparing, "run_session", counting)
    found = comparing.compare(encoder.made / MODEL, encoder.smooth / MODEL, encoder.samples)
    assert found.inputs == "16 samples"
    assert len(runs) == 2 * 16
    assert set(runs.values()) == {1}


def test_comparison_when_lengths_are_1_in_one_sample_only_has_no_embeddings(tmp_path):
    value = (TensorProto.FLOAT, [1, 2])
    node = helper.make_node("Identity", ["x"], ["y"], "same")
    path = tiny_models.save(tmp_path / MODEL, [node], [("x", *value)], [("y", *value)])
    feeds = [{"x": np.array([x], np.float32)} for x in ([0.6, -0.8], [6.0, -8.0])]
    samples = tmp_path / "samples"
    samples.mkdir()
    inputs, _ = read_signature(read_structure(path))
    write_sample_set(samples, inputs, [(f"{n}", feed) for n, feed in enumerate(feeds)])
    assert comparing.compare(path, path, samples).embeddings == {}
