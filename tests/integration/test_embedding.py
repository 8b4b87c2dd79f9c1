"""An encoder's embeddings after every recipe: near float32's, or refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import encoder_nets
import int8_nets
import numpy as np
import pytest
from edgepack.calibration.collecting import collect
from edgepack.data import SampleSet
from edgepack.data.sample_set import write_sample_set
from edgepack.errors import StepError
from edgepack.model.facts import signature
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.model.running import make_session, run_session
from edgepack.quantization.preparing import quantizable
from edgepack.quantization.spread import spread_tensors
from edgepack.quantization.writer import QdqWriter, observed_tensors
from edgepack.steps.base import MODEL
from edgepack.steps.comparing import LEAST_COSINE
from edgepack.steps.embeddings import embeddings, require_close_embeddings
from edgepack.steps.fp16 import Fp16
from edgepack.steps.int8_dynamic import Int8Dynamic
from edgepack.steps.rewritten import Rewritten

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


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Encoder:
    folder = tmp_path_factory.mktemp("encoder")
    made, smooth, samples = (folder / name for name in ("made", "smooth", "samples"))
    samples.mkdir()
    path = encoder_nets.encoder(made / MODEL)
    inputs, _ = signature(read_structure(path))
    named = [(f"{n}", feed) for n, feed in enumerate(encoder_nets.sentences(16, seed=100))]
    write_sample_set(samples, inputs, named)
    int8_nets.run(Rewritten(("smooth-norms",)), {"model": made, "samples": samples}, smooth)
    feeds = encoder_nets.sentences(24, seed=1)
    session = make_session(path)
    expected = [run_session(session, feed)["sentence"] for feed in feeds]
    return Encoder(made, smooth, samples, feeds, expected)


def test_encoder_when_smoothed_gives_the_same_embeddings(encoder):
    assert encoder.worst_cosine(encoder.smooth) > 0.999999


def test_int8_dynamic_when_norms_are_smooth_keeps_embeddings(encoder, tmp_path):
    step = Int8Dynamic(int8_nets.CPU, MAX_IR)
    int8_nets.run(step, {"model": encoder.smooth, "samples": encoder.samples}, tmp_path / "out")
    assert encoder.worst_cosine(tmp_path / "out") >= LEAST_COSINE


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
    model = quantizable(read_model(folder / MODEL))
    feeds = SampleSet.read(encoder.samples)
    statistics = collect(folder / MODEL, feeds, observed_tensors(model))
    ranges = {tensor: (found.low, found.high) for tensor, found in statistics.items()}
    unpaired = frozenset(spread_tensors(model, statistics))
    writer = QdqWriter(model, ranges, dialect, unpaired=unpaired)
    write_model(writer.write(writer.unusable()), out / MODEL)
    return out


@pytest.mark.parametrize("name", ["cpu", "tensorrt", "qnn-8"])
def test_int8_static_when_norms_are_smooth_and_streams_float_keeps_embeddings(
    encoder, tmp_path, name
):
    written(encoder, encoder.smooth, tmp_path, int8_nets.DIALECTS[name])
    assert encoder.worst_cosine(tmp_path) >= LEAST_COSINE
    # Only what products read is quantized, and all of that.
    kinds = Counter(node.op_type for node in read_structure(encoder.made / MODEL).graph.node)
    assert kinds["MatMul"] == len(quantized_products(tmp_path / MODEL))


def test_int8_static_when_large_channels_stay_is_refused(encoder, tmp_path):
    written(encoder, encoder.made, tmp_path, int8_nets.CPU)
    with pytest.raises(StepError, match=r"'sentence' is too far .* of 16 samples"):
        require_close_embeddings(encoder.made / MODEL, tmp_path / MODEL, encoder.samples)


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


def test_embedding_when_it_turns_too_far_is_named_with_its_cosine(encoder, tmp_path):
    # Two layers less, and the sentences still have length 1.
    other = encoder_nets.encoder(tmp_path / MODEL, layers=4)
    with pytest.raises(StepError, match=r"'sentence'.*0\.98 is the least"):
        require_close_embeddings(encoder.made / MODEL, other, encoder.samples)
    require_close_embeddings(other, other, encoder.samples)


@pytest.mark.parametrize(
    ("vectors", "found"),
    [
        pytest.param([[0.6, -0.8]], ["y"], id="of length 1"),
        pytest.param([[0.6, -0.8], [6.0, -8.0]], [], id="of length 1 in one sample only"),
        pytest.param([[0.6, 0.8]], [], id="without negative values, as probabilities are"),
        pytest.param([[1.0]], [], id="a single value"),
    ],
)
def test_output_when_searched_for_embeddings_is_one_if(vectors, found):
    outputs = [{"y": np.array([vector], np.float32)} for vector in vectors]
    assert embeddings(outputs) == found
