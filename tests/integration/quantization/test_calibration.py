"""The calibration step: what it writes, says and refuses, and how far it tells that it is."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from edgepack.base.processes import Workers
from edgepack.builder.cache import StepCache
from edgepack.builder.execution import execute
from edgepack.builder.plan import PlanBuilder
from edgepack.errors import StepError
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_structure
from edgepack.model.running import make_random_inputs
from edgepack.quantization.ranges.statistics import read_statistics, write_statistics
from edgepack.samples.sample_set import write_sample_set
from edgepack.steps.base import run_step
from edgepack.steps.recipes.calibration import STATISTICS, Calibration
from edgepack.steps.recipes.int8_static import Int8Static
from onnx import TensorProto, helper

from tests.support.doubles.watched_progress import Watched
from tests.support.nets import int8_nets, tiny_models

FLOAT = TensorProto.FLOAT


def given(folder, model, feeds):
    """A model and samples, as the inputs of a step."""
    inputs = {name: folder / name for name in ("model", "samples")}
    for path in inputs.values():
        path.mkdir(parents=True)
    shutil.copyfile(model, inputs["model"] / MODEL)
    named = [(f"sample {n}", feed) for n, feed in enumerate(feeds)]
    write_sample_set(inputs["samples"], read_signature(read_structure(model))[0], named)
    return inputs


def calibrate(folder, model, feeds, **settings):
    """Run the step; return its notes and the statistics."""
    inputs = given(folder, model, feeds)
    notes = int8_nets.run(Calibration(**settings), inputs, folder / "out")
    return notes, read_statistics(folder / "out" / STATISTICS)


def test_calibration_when_run_has_the_extremes_of_what_can_get_a_scale(tmp_path):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    feeds = int8_nets.image_feeds()
    notes, statistics = calibrate(tmp_path / "steps", model, feeds)
    everything = np.concatenate([feed["image"] for feed in feeds])
    assert (statistics["image"].low, statistics["image"].high) == (
        everything.min(),
        everything.max(),
    )
    np.testing.assert_array_equal(statistics["image"].channel_low, everything.min((0, 2, 3)))
    assert notes.facts["tensors"] == len(statistics)
    assert (notes.facts["samples"], notes.facts["warnings"]) == (len(feeds), [])


def test_calibration_when_run_twice_writes_the_same_bytes(tmp_path):
    model = int8_nets.mixed_net(tmp_path / "net.onnx")
    inputs = given(tmp_path / "steps", model, int8_nets.image_feeds())
    written = []
    for name in "ab":
        int8_nets.run(Calibration(), inputs, tmp_path / name)
        written.append((tmp_path / name / STATISTICS).read_bytes())
    assert written[0] == written[1]


def test_calibration_when_a_tensor_is_infinite_leaves_its_node_float(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("Mul", ["a", "huge"], ["b"], "overflow"),
        helper.make_node("Sigmoid", ["b"], ["c"], "back"),
        helper.make_node("Conv", ["c", "w"], ["y"], "last"),
    ]
    constants = [
        ("w", np.ones((1, 1, 1, 1), np.float32)),
        ("huge", np.array(3e38, np.float32)),
    ]
    value = (FLOAT, [1, 1, 2, 2])
    model = tiny_models.save(
        tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)], constants
    )
    feeds = [{"x": np.full((1, 1, 2, 2), n, np.float32)} for n in (100, 200)]
    inputs = int8_nets.calibrated(tmp_path / "steps", model, feeds, simplify=False)
    assert "b" not in read_statistics(inputs["statistics"] / STATISTICS)
    notes, _ = calibrate(tmp_path / "again", model, feeds)
    assert notes.facts["without_range"] == ["b"]
    assert "no range, because of infinite values or none at all, for 'b'" in notes.done
    notes = int8_nets.run(Int8Static(int8_nets.CPU, 13), inputs, tmp_path / "out")
    assert set(notes.facts["left_float"]) == {"overflow", "back"}


# --- what it warns of and refuses -------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "warning"),
    [(1, "one sample shows little"), (3, "all 3 samples are equal")],
)
def test_calibration_when_samples_tell_little_warns(tmp_path, count, warning):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    notes, _ = calibrate(tmp_path / "steps", model, int8_nets.image_feeds(1) * count)
    assert warning in notes.done
    assert [text.startswith(warning) for text in notes.facts["warnings"]] == [True]


def test_calibration_when_a_tensor_never_changes_warns(tmp_path):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    feeds = [{"image": np.full((1, 3, 8, 8), 0.5, np.float32)} for _ in range(2)]
    feeds.append({"image": np.full((1, 3, 8, 8), 0.5, np.float32)})
    notes, _ = calibrate(tmp_path / "steps", model, feeds)
    told = [text.split(":")[0] for text in notes.facts["warnings"]]
    assert "one single value on all samples in 'image'" in told


def test_calibration_when_a_node_has_bodies_says_that_they_are_not_observed(tmp_path):
    branch = helper.make_graph(
        [helper.make_node("Relu", ["a"], ["b"], "relu")],
        "branch",
        [],
        [helper.make_tensor_value_info("b", FLOAT, [1, 4])],
    )
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"], "add"),
        helper.make_node("If", ["up"], ["y"], "choice", then_branch=branch, else_branch=branch),
    ]
    inputs = [("x", FLOAT, [1, 4]), ("up", TensorProto.BOOL, [])]
    model = tiny_models.save(tmp_path / "net.onnx", nodes, inputs, [("y", FLOAT, [1, 4])])
    feeds = [{"x": np.full((1, 4), n, np.float32), "up": np.ones((), bool)} for n in (1, 2)]
    notes, statistics = calibrate(tmp_path / "steps", model, feeds)
    assert statistics["a"].high == 4
    assert "inside the bodies of 'choice' stay float" in notes.done


def test_calibration_when_the_model_is_float16_is_refused(tmp_path):
    value = (TensorProto.FLOAT16, [1, 4])
    model = tiny_models.save(
        tmp_path / "net.onnx",
        [helper.make_node("Add", ["x", "half"], ["y"], "add")],
        [("x", *value)],
        [("y", *value)],
        [("half", np.ones(4, np.float16))],
    )
    with pytest.raises(StepError, match="float16: 1 constants, 'half' first"):
        calibrate(tmp_path / "s", model, [{"x": np.ones((1, 4), np.float16)}])


def test_calibration_when_an_output_is_nan_is_refused_by_name(tmp_path):
    nodes = [helper.make_node("Sqrt", ["x"], ["y"], "root")]
    value = (FLOAT, [1, 2])
    model = tiny_models.save(tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)])
    feeds = [{"x": np.array([[n, 1]], np.float32)} for n in (4, -4)]
    found = r"^the tensor 'y' has NaN on calibration sample 1 .*node 'root' \(Sqrt\)"
    with pytest.raises(StepError, match=found):
        calibrate(tmp_path / "s", model, feeds, every_op=True)


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        ("image", {"high": 0.1, "channel_high": None}),
        ("scores", {"low": 5.0, "high": 4.0}),
        ("scores", {"high": float("nan")}),
        ("scores", {"first": 7}),
        ("scores", {"width": float("inf")}),
        ("image", {"channel_low": np.zeros(3, np.float32)}),
    ],
)
def test_calibration_when_the_file_lies_says_so(tmp_path, name, lie):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    _, statistics = calibrate(tmp_path / "steps", model, int8_nets.image_feeds())
    statistics[name] = replace(statistics[name], **lie)
    write_statistics(statistics, tmp_path / "steps" / "out" / STATISTICS)
    inputs = {key: tmp_path / "steps" / key for key in ("model", "samples")}
    with pytest.raises(StepError, match="calibration is wrong"):
        Calibration().verify(inputs, tmp_path / "steps" / "out")


def test_calibration_when_a_worker_runs_it_tells_how_far_it_is(tmp_path):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    inputs = given(tmp_path / "steps", model, int8_nets.image_feeds(6))
    (tmp_path / "out").mkdir()
    told = []
    with Workers(1) as workers:
        step = Calibration()
        workers.call(
            run_step, step, inputs, tmp_path / "out", on_progress=lambda *far: told.append(far)
        )
    assert told[-1] == (6, 6)
    assert sorted(told) == told


class Told(Watched):
    """Keeps what is said of parts."""

    def __init__(self):
        self.parts = []

    def report(self, part, done, total):
        self.parts.append((part, done, total))


def test_calibration_when_a_build_runs_it_moves_the_bar_of_its_step(tmp_path):
    model = tiny_models.conv_net(tmp_path / "net.onnx", batch=1)
    inputs = given(tmp_path / "steps", model, int8_nets.image_feeds(6))
    builder = PlanBuilder()
    origins = {name: builder.add_source(name, path, name) for name, path in inputs.items()}
    step_id = builder.add_step(Calibration(), **origins)
    told = Told()
    execute(builder.make_plan([]), cache=StepCache(tmp_path / "cache"), jobs=1, progress=told)
    assert told.parts[-1] == (step_id, 6, 6)


# --- public models ----------------------------------------------------------------------------


def feed_of(model, seed, **shapes):
    """Seeded random inputs; ``shapes`` are those that the model leaves open."""
    random = np.random.default_rng(seed)
    inputs, _ = read_signature(read_structure(model))
    feed = make_random_inputs([spec for spec in inputs if spec.name not in shapes], seed=seed)
    dtypes = {spec.name: spec.dtype for spec in inputs}
    for name, shape in shapes.items():
        feed[name] = random.integers(0, 2, shape).astype(dtypes[name])
    return feed


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("file", "shapes"),
    [
        ("audio/gtcrn/gtcrn_simple.onnx", [{}, {}]),
        (
            "audio/silero_vad/silero_vad_16k_op15.onnx",
            [{"input": (n, 512), "state": (2, n, 128)} for n in (1, 2)],
        ),
        ("dense/ppocr_v3_det_en.onnx", [{"x": (1, 3, n, 64)} for n in (32, 96)]),
        (
            "text/bert_toy_optimized.onnx",
            [dict.fromkeys(("input_ids", "token_type_ids", "input_mask"), (1, n)) for n in (3, 7)],
        ),
    ],
)
def test_calibration_when_a_model_has_states_integers_or_free_shapes_takes_it(
    tmp_path, shared_data, file, shapes
):
    model = shared_data / file
    feeds = [feed_of(model, seed, **sizes) for seed, sizes in enumerate(shapes)]
    notes, statistics = calibrate(tmp_path / "steps", model, feeds)
    assert notes.facts["tensors"] > 10
    for name in feeds[0].keys() & statistics.keys():
        values = np.concatenate([feed[name].ravel() for feed in feeds])
        assert (statistics[name].low, statistics[name].high) == (values.min(), values.max())
        assert statistics[name].counts.sum() == values.size


@pytest.mark.shared_data
def test_calibration_when_all_operators_lie_in_bodies_says_so(tmp_path, shared_data):
    model = shared_data / "audio/silero_vad/silero_vad.onnx"
    feeds = [feed_of(model, 0, input=(1, 512), state=(2, 1, 128))]
    feeds[0]["sr"] = np.array(16000)
    with pytest.raises(StepError, match=r"nothing .* be quantized, because it lies in the bodies"):
        calibrate(tmp_path / "steps", model, feeds)


def test_calibration_when_a_tensor_of_the_simplifier_never_changes_says_where_it_is(tmp_path):
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["mine"]),
        helper.make_node("Mul", ["mine", "zero"], ["_v_1"], "Mul_1"),
        helper.make_node("Conv", ["_v_1", "w"], ["_v_2"], "Conv_2"),
        helper.make_node("Add", ["mine", "_v_2"], ["y"]),
    ]
    weights = np.random.default_rng(3).standard_normal((3, 3, 1, 1)).astype(np.float32)
    constants = [("w", weights), ("zero", np.zeros(1, np.float32))]
    value = TensorProto.FLOAT, [1, 3, 8, 8]
    model = tiny_models.save(
        tmp_path / "net.onnx", nodes, [("image", *value)], [("y", *value)], constants
    )
    notes, _ = calibrate(tmp_path / "steps", model, int8_nets.image_feeds(3))
    told = "one single value on all samples in the Mul after 'mine', the Conv after 'mine'"
    assert any(warning.startswith(f"{told}:") for warning in notes.facts["warnings"])
