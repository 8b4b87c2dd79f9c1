"""Models that are fed their own state: how samples are streams, and what is judged over them."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from edgepack.builder.build import build, dry_run
from edgepack.builder.inspect import inspect
from edgepack.cli.main import run
from edgepack.devices.harness import Harness
from edgepack.devices.inventory import load_device
from edgepack.devices.transports import connect
from edgepack.errors import (
    DeviceError,
    InconclusiveError,
    LimitError,
    ModelError,
    ProfileError,
    RemoteCommandError,
    StepError,
)
from edgepack.measure.bench.run import bench
from edgepack.measure.evaluate import evaluate as device_accuracy
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.model.facts import TensorSpec
from edgepack.native.plans import Planner
from edgepack.ondevice.harness.edgepack_load import find_nonfinite_goldens
from edgepack.ondevice.runtime.edgepack_loader import Bundle as LoadedBundle
from edgepack.ondevice.runtime.edgepack_loader import load
from edgepack.records.presets import Preset
from edgepack.records.run import Invalid
from edgepack.records.scenarios import make_scenario
from edgepack.records.verdict import require_valid
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import run_step
from edgepack.steps.graph.unrolled import Unrolled
from edgepack.steps.proofs.evaluation import EVALUATION, Evaluation
from edgepack.steps.samples import NpzSamples, OnnxTestData, PythonSamples
from edgepack.trying.trying import try_bundle
from edgepack.trying.verify import verify as verify_here
from onnx import numpy_helper

from tests.support.doubles import measure_double
from tests.support.nets.stream_nets import (
    HIDDEN,
    POSITIONS,
    WIDTH,
    counter,
    doubling,
    frames,
    gru,
    limited,
    lstm,
)
from tests.support.slow_cases import slow_after

PAIR = (("h_out", "h"),)
STATE = "state: {h_out: h}"
X, H = TensorSpec("x", "float32", (1, WIDTH)), TensorSpec("h", "float32", (1, HIDDEN))
BRIEF = Preset(
    "brief", runs=1, duration_s=0.2, iterations=200, warm_up_s=0, window_s=0, warm_up_cap_s=0
)
ZEROS = {"h": np.zeros((1, HIDDEN), np.float32)}


def write(folder: Path, *lines: str, targets: str = "targets: [host]") -> Path:
    path = folder / "edgepack.yaml"
    head = ["schema_version: 1", "name: net", "model: net.onnx", targets]
    path.write_text("\n".join([*head, *lines]) + "\n")
    return path


def streamed(model: Path, feeds, begins, pairs, zeros):
    """The outputs of a model that is fed its own state, frame by frame, without edgepack."""
    options = ort.SessionOptions()
    # As builds and loaders do on processors without VNNI, whose fast int8 kernels saturate.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    state, found, reached = zeros, [], []
    for number, feed in enumerate(feeds):
        state = zeros if number in begins else state
        reached.append(state)
        outputs = dict(zip(names, session.run(None, {**state, **feed}), strict=True))
        state = {name: outputs[output] for output, name in pairs}
        found.append(outputs)
    return found, reached


def r2(expected, found, numbers=None):
    """The coefficient of determination, by its definition."""
    expected, found = np.array(expected, np.float64), np.array(found, np.float64)
    variance = ((expected - expected.mean(axis=0)) ** 2).sum() / len(expected)
    chosen = list(numbers) if numbers is not None else list(range(len(expected)))
    return 1 - ((expected - found)[chosen] ** 2).sum() / len(chosen) / variance


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The gated cell, with two streams of 40 frames to calibrate and two of 60 to judge by."""
    folder = tmp_path_factory.mktemp("gru")
    gru(folder / "net.onnx")
    np.savez(folder / "cal.npz", x=frames(80, WIDTH, seed=1), stream=np.arange(80) // 40)
    np.savez(folder / "ev.npz", x=frames(120, WIDTH, seed=2), stream=np.arange(120) // 60)
    samples = "samples: {calibration: {path: cal.npz}, evaluation: {path: ev.npz}}"
    variants = "[{backend: cpu, recipe: int8-static}, {backend: cpu, recipe: fp32}]"
    targets = f"targets: [{{id: host, variants: {variants}}}]"
    project = write(folder, STATE, samples, targets=targets)
    result = build(project=project, out=folder / "dist")
    result.require_all()
    return folder, result.bundles[0].bundle


def test_build_judges_each_model_over_streams_with_its_own_state(built):
    folder, bundle = built
    verify_here(bundle.path)
    assert bundle.manifest.state == {"h_out": "h"}
    feeds = [{"x": row[None]} for row in np.load(folder / "ev.npz")["x"]]
    expected, _ = streamed(folder / "net.onnx", feeds, (0, 60), PAIR, ZEROS)
    wanted = [each["y"] for each in expected]
    first, last = [*range(15), *range(60, 75)], [*range(45, 60), *range(105, 120)]
    for variant in bundle.manifest.variants:
        outputs, _ = streamed(bundle.path / variant.model, feeds, (0, 60), PAIR, ZEROS)
        own = [each["y"] for each in outputs]
        accuracy = variant.accuracy
        assert list(accuracy.r2) == ["y"]
        assert accuracy.r2["y"].value == pytest.approx(r2(wanted, own), abs=1e-6)
        assert accuracy.drift.output == "y"
        assert accuracy.drift.first == pytest.approx(r2(wanted, own, first), abs=1e-6)
        assert accuracy.drift.last == pytest.approx(r2(wanted, own, last), abs=1e-6)
        assert not accuracy.drift.grows
    int8 = bundle.manifest.variants[0].accuracy
    assert 0.9 < int8.r2["y"].value < 1


def test_build_takes_what_the_float_model_reached_for_goldens_and_calibration(built):
    folder, bundle = built
    feeds = [{"x": row[None]} for row in np.load(folder / "ev.npz")["x"]]
    _, reached = streamed(folder / "net.onnx", feeds, (0, 60), PAIR, ZEROS)
    states = []
    for golden in bundle.manifest.goldens:
        given = {
            tensor.name: np.fromfile(bundle.path / tensor.path, tensor.dtype).reshape(tensor.shape)
            for tensor in golden.inputs
        }
        [number] = [n for n, feed in enumerate(feeds) if np.array_equal(feed["x"], given["x"])]
        np.testing.assert_allclose(given["h"], reached[number]["h"], atol=1e-5)
        states.append(np.abs(given["h"]).max())
    assert max(states) > 0.1
    plan = dry_run(project=folder / "edgepack.yaml")
    for name in ("calibration", "evaluation", "goldens", "int8-static"):
        steps = [step for step in plan.steps if step.step.name == name]
        assert steps
        assert all(step.inputs["samples"].startswith("unrolled-") for step in steps)
    readme = (bundle.path / "README.md").read_text()
    assert "- `h_out` into `h`" in readme


@pytest.mark.slow(reason="takes seconds")
def test_device_is_fed_its_own_state_also_after_an_evaluation_that_ended_early(built, monkeypatch):
    folder, bundle = built
    project, device = folder / "edgepack.yaml", load_device("local")
    simulated = bundle.manifest.variants[0].accuracy
    found = evaluate(bundle.path, device, project=project)
    assert found.measured == found.simulated == simulated
    whole = device_accuracy.stream_answers

    def broken(harness, inputs, numbers, variant):
        for count, answer in enumerate(whole(harness, inputs, numbers, variant)):
            if count == 25:
                raise DeviceError("the cable is out", hint="put it in")
            yield answer

    monkeypatch.setattr(device_accuracy, "stream_answers", broken)
    with pytest.raises(DeviceError, match="the cable is out"):
        evaluate(bundle.path, device, project=project)
    monkeypatch.setattr(device_accuracy, "stream_answers", whole)
    resumed = evaluate(bundle.path, device, project=project)
    assert resumed.resumed == 25
    assert resumed.measured == simulated


@pytest.mark.parametrize("target", ["android-xnnpack", "ios"])
def test_readmes_for_phones_say_where_the_state_goes(built, tmp_path, target):
    folder, _ = built
    result = build(
        project=folder / "edgepack.yaml",
        targets=[target],
        variants=["cpu-fp32"],
        out=tmp_path / "dist",
    )
    readme = (result.bundles[0].bundle.path / "README.md").read_text()
    assert "are inputs of the next one:\n- `h_out` into `h`\n\n" in readme


def test_limit_is_searched_for_over_streams(built, tmp_path):
    folder, bundle = built
    for name in ("net.onnx", "cal.npz", "ev.npz"):
        shutil.copyfile(folder / name, tmp_path / name)
    samples = "samples: {calibration: {path: cal.npz}, evaluation: {path: ev.npz}}"
    project = write(tmp_path, STATE, samples, "limits: {min_sqnr_db: 25}")
    result = build(project=project, variants=["cpu-int8-static"], out=tmp_path / "dist")
    [variant] = result.bundles[0].bundle.manifest.variants
    tried = [each for each in variant.tried if each.stage == "limit"]
    as_it_is = bundle.manifest.variants[0].accuracy.worst.sqnr_db
    assert tried[0].sqnr_db == pytest.approx(as_it_is, abs=0.1)
    assert tried[-1].sqnr_db == pytest.approx(variant.accuracy.worst.sqnr_db, abs=0.1)
    assert as_it_is < 25 <= variant.accuracy.worst.sqnr_db


@pytest.mark.slow(reason="takes seconds")
def test_try_runs_the_frames_of_a_file_as_streams(built, tmp_path):
    folder, bundle = built
    x, marks = np.load(folder / "ev.npz")["x"][:6], [0, 0, 0, 0, 1, 1]
    np.savez(tmp_path / "s.npz", x=x, stream=marks)
    trial = try_bundle(bundle.path, [str(tmp_path / "s.npz")])
    feeds = [{"x": row[None]} for row in x]
    fp32, int8 = (
        streamed(bundle.path / variant.model, feeds, (0, 4), PAIR, ZEROS)[0]
        for variant in reversed(bundle.manifest.variants)
    )
    for number, tried in enumerate(trial.inputs):
        begins = number in (0, 4)
        said = () if begins else ("from the sample before: h",)
        assert tried.said == said
        [block] = [each for each in tried.blocks if each.output == "y"]
        wanted, found = fp32[number]["y"].ravel(), int8[number]["y"].ravel()
        worst = block.compared[1].numbers["worst_difference"]
        assert worst == pytest.approx(np.abs(wanted - found).max(), abs=1e-6)


def test_try_takes_the_state_that_is_given_for_each_frame(built, tmp_path, capsys):
    folder, bundle = built
    x = np.load(folder / "ev.npz")["x"][:2]
    held = np.full((2, HIDDEN), 0.5, np.float32)
    np.savez(tmp_path / "held.npz", x=x, h=held)
    given = ([str(tmp_path / "held.npz")], [str(folder / "ev.npz"), "--input", "h=0.5"])
    for arguments in given:
        assert run(["try", str(bundle.path), *arguments, "--limit", "2", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        notes = [note for each in document["inputs"] for note in each["notes"]]
        assert not any("from the sample before" in note for note in notes)
    assert run(["try", str(bundle.path), "--input", "x=1", "--input", "h=0.5"]) == 0
    assert "h: 0.5 everywhere" in capsys.readouterr().out


def judged(folder: Path, reference: Path, model: Path, samples: Path, state):
    """What an evaluation says of a variant."""
    inputs = {"samples": samples}
    for name, path in (("reference", reference), ("model", model)):
        place = folder / f"{name}-{len(list(folder.iterdir()))}"
        place.mkdir()
        shutil.copyfile(path, place / "model.onnx")
        inputs[name] = place
    out = folder / f"out-{len(list(folder.iterdir()))}"
    out.mkdir()
    notes = run_step(Evaluation(None, None, (), None, "any", state=state), inputs, out)
    return json.loads((out / EVALUATION).read_text()), notes.done


def unrolled(folder: Path, model: Path, pairs, signature, state, **arrays) -> Path:
    """Streams of an ``.npz``, with the state that a model reaches."""
    np.savez(folder / "frames.npz", **arrays)
    (folder / "given").mkdir()
    step = NpzSamples(signature, None, None, (), state)
    run_step(step, {"source": folder / "frames.npz"}, folder / "given")
    place = folder / "float"
    place.mkdir()
    shutil.copyfile(model, place / "model.onnx")
    (folder / "unrolled").mkdir()
    inputs = {"model": place, "samples": folder / "given"}
    run_step(Unrolled(pairs, "any"), inputs, folder / "unrolled")
    return folder / "unrolled"


def test_evaluation_when_a_little_is_added_to_the_state_in_each_frame_sees_the_streams_drift(
    tmp_path,
):
    exact = gru(tmp_path / "exact.onnx")
    biased = gru(tmp_path / "biased.onnx", bias=0.005)
    x, marks = frames(128, WIDTH, seed=3), np.arange(128) // 64
    samples = unrolled(tmp_path, exact, PAIR, (X, H), (H,), x=x, stream=marks)
    alone, _ = judged(tmp_path, exact, biased, samples, ())
    assert alone["r2"]["y"]["value"] > 0.999
    along, told = judged(tmp_path, exact, biased, samples, PAIR)
    assert list(along["r2"]) == ["y"]
    assert along["drift"]["output"] == "y"
    assert along["drift"]["last"] < along["drift"]["first"] - 0.02
    assert 1 - along["drift"]["last"] > 4 * (1 - along["drift"]["first"])
    assert "at the beginning of streams and" in told
    right, _ = judged(tmp_path, exact, exact, samples, PAIR)
    assert right["drift"] == {"output": "y", "first": 1.0, "last": 1.0}


def test_outputs_that_hardly_vary_are_told_whatever_the_state_does(tmp_path):
    model = onnx.load(str(gru(tmp_path / "net.onnx")))
    [bias] = [tensor for tensor in model.graph.initializer if tensor.name == "by"]
    bias.CopyFrom(numpy_helper.from_array(np.full(3, 1000, np.float32), "by"))
    onnx.save(model, str(tmp_path / "net.onnx"))
    np.savez(tmp_path / "s.npz", x=frames(40, WIDTH))
    project = write(tmp_path, STATE, "samples: {evaluation: {path: s.npz}}")
    result = build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist")
    assert [text for text in result.warnings if "hardly vary" in text and "'y'" in text]


SUM = "state: {sum_out: sum}"


def write_counter(folder: Path, *, beside: bool) -> Path:
    """A sum that begins at 1024, where a step of 8 bits is 4, and goes on by 0.4 a frame."""
    counter(folder / "net.onnx")
    (folder / "hooks.py").write_text(
        "import numpy as np\n"
        "def sums():\n"
        "    random = np.random.default_rng(0)\n"
        "    for number in range(128):\n"
        f"        u = random.standard_normal((1, 1)) * {int(beside)}\n"
        "        held = {'sum': np.full((1, 1), 1024.0)} if number % 64 == 0 else {}\n"
        "        yield {'x': np.full((1, 1), 0.4), 'u': u, **held}\n"
    )
    source = "{python: 'hooks:sums'}"
    return write(folder, SUM, f"samples: {{calibration: {source}, evaluation: {source}}}")


@pytest.mark.slow(reason="takes seconds")
def test_build_when_errors_grow_along_streams_warns_and_says_how_much(tmp_path):
    project = write_counter(tmp_path, beside=True)
    result = build(project=project, variants=["cpu-int8-static"], out=tmp_path / "dist")
    [variant] = result.bundles[0].bundle.manifest.variants
    found = variant.accuracy.drift
    assert found.first > 0.95
    assert found.last < 0.7
    [told] = [text for text in result.warnings if "grow along a stream" in text]
    assert f"the R² of 'y' is {found.first:.3f} in the first quarter" in told


@pytest.mark.slow(reason="takes seconds")
def test_build_when_streams_drift_until_nothing_is_told_does_not_ship(tmp_path):
    project = write_counter(tmp_path, beside=False)
    result = build(project=project, variants=["cpu-int8-static"], out=tmp_path / "dist")
    with pytest.raises(LimitError, match="no better than a constant"):
        result.require_all()


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    """A model whose state doubles each frame, right over streams of 16 frames."""
    folder = tmp_path_factory.mktemp("doubling")
    doubling(folder / "net.onnx")
    np.savez(folder / "s.npz", x=frames(64, 1), stream=np.arange(64) // 16)
    project = write(folder, STATE, "samples: {evaluation: {path: s.npz}}")
    result = build(project=project, variants=["cpu-fp32"], out=folder / "dist")
    result.require_all()
    return result.bundles[0].bundle


@pytest.mark.slow(reason="takes seconds")
def test_bench_when_the_state_grows_for_ever_is_invalid_and_says_so(growing):
    verify_here(growing.path)
    report = bench(growing.path, load_device("local"), preset="smoke")
    assert isinstance(report.verdict, Invalid)
    assert report.verdict.cause == "stream"
    assert report.verdict.reasons[0] == (
        "run 1: the model was fed its own state, and h_out, y became NaN or infinite"
    )
    assert all(run.golden_min_sqnr_db == 200 for run in report.runs)
    assert all(run.not_finite == ["h_out", "y"] for run in report.runs)
    with pytest.raises(InconclusiveError) as caught:
        require_valid(report, growing.path)
    assert "give samples with streams as long as a device's" in str(caught.value.hint)


@contextmanager
def harness_of(bundle: Path):
    device = load_device("local")
    with connect(device) as transport:
        yield Harness(transport, PurePosixPath(bundle), sys.executable)


@pytest.mark.parametrize("scenario", slow_after(1, ["single-stream", "offline"]))
def test_harness_runs_streams_and_tells_what_is_infinite_after_them(growing, scenario):
    chosen = make_scenario(scenario).model_copy(update={"threads": 2})
    preset = replace(BRIEF, scenario=chosen)
    with harness_of(growing.path) as harness:
        assert harness.measure("cpu-fp32", preset).not_finite == ["h_out", "y"]


def test_harness_leaves_out_what_is_infinite_in_a_golden(growing, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(growing.path, folder)
    model = load(growing.path, "cpu-fp32")
    assert find_nonfinite_goldens(model) == set()
    [tensor] = [t for t in growing.manifest.goldens[-1].outputs["cpu-fp32"] if t.name == "y"]
    np.array([[-np.inf]], np.float32).tofile(folder / tensor.path)
    model.bundle = LoadedBundle(folder)
    assert find_nonfinite_goldens(model) == {"y"}


@pytest.mark.slow(reason="takes seconds")
def test_harness_when_the_model_bears_no_longer_stream_says_after_how_many_frames(tmp_path):
    limited(tmp_path / "net.onnx")
    np.savez(tmp_path / "s.npz", x=frames(32, 1, WIDTH), stream=np.arange(32) // 16)
    lines = ("state: {at_out: at}", "samples: {evaluation: {path: s.npz}}")
    project = write(tmp_path, *lines)
    result = build(project=project, variants=["cpu-fp32"], out=tmp_path / "dist")
    bundle = result.bundles[0].bundle
    verify_here(bundle.path)
    [at] = [tensor for tensor in bundle.manifest.goldens[0].inputs if tensor.name == "at"]
    [first] = np.fromfile(bundle.path / at.path, np.int64)
    with harness_of(bundle.path) as harness, pytest.raises(RemoteCommandError) as caught:
        harness.measure("cpu-fp32", BRIEF)
    assert f"after {POSITIONS - first} frames of a stream: " in caught.value.problem
    assert "start new streams" in str(caught.value.hint)


def test_plan_of_a_phone_is_enough_to_time_a_stream(growing, tmp_path, monkeypatch):
    [entry] = growing.manifest.variants
    planner = Planner(growing, entry, cpu_flags=frozenset(), cache="c", work="extra")
    (tmp_path / "plan.txt").write_text(planner.plan_goldens().text)
    monkeypatch.chdir(growing.path)
    options = {"--plan": str(tmp_path / "plan.txt"), "--iterations": "200"}
    found = measure_double.measure(options)
    assert found["golden_min_sqnr_db"] == 200
    assert sorted(found["not_finite"]) == ["h_out", "y"]


def test_goldens_are_frames_inside_streams(built):
    _, bundle = built
    for golden in bundle.manifest.goldens:
        [state] = [tensor for tensor in golden.inputs if tensor.name == "h"]
        assert np.fromfile(bundle.path / state.path, state.dtype).any()


SIGNATURE, FIRST = (X, H), np.full((1, HIDDEN), 0.5, np.float32)


def test_npz_with_marks_begins_a_stream_where_they_change(tmp_path):
    held = np.zeros((6, HIDDEN), np.float32)
    held[3] = 0.5
    held[4] = 9.0
    np.savez(tmp_path / "s.npz", x=frames(6, WIDTH), h=held, stream=[7, 7, 7, 2, 2, 7])
    out = tmp_path / "out"
    out.mkdir()
    step = NpzSamples(SIGNATURE, None, None, (), (H,))
    run_step(step, {"source": tmp_path / "s.npz"}, out)
    samples = SampleSet.read(out)
    assert samples.streams == (0, 3, 5)
    np.testing.assert_array_equal(samples.read_inputs(3)["h"], FIRST)
    assert all(not samples.read_inputs(number)["h"].any() for number in (0, 1, 2, 4, 5))


def test_npz_without_marks_is_one_stream_or_holds_the_state_of_each_sample(tmp_path):
    np.savez(tmp_path / "one.npz", x=frames(6, WIDTH))
    np.savez(tmp_path / "each.npz", x=frames(6, WIDTH), h=np.ones((6, HIDDEN), np.float32))
    for name, streams in (("one", (0,)), ("each", tuple(range(6)))):
        out = tmp_path / name
        out.mkdir()
        step = NpzSamples(SIGNATURE, None, None, (), (H,))
        run_step(step, {"source": tmp_path / f"{name}.npz"}, out)
        assert SampleSet.read(out).streams == streams


def test_functions_and_test_data_begin_a_stream_with_a_sample_that_holds_the_state(tmp_path):
    (tmp_path / "hooks.py").write_text(
        "import numpy as np\n"
        "def frames():\n"
        "    for number in range(5):\n"
        "        held = {'h': np.full((1, 16), 0.5)} if number == 2 else {}\n"
        "        yield {'x': np.ones((1, 8)), **held}\n"
    )
    for number in range(5):
        folder = tmp_path / f"set_{number}"
        folder.mkdir()
        tensors = [np.ones((1, WIDTH), np.float32), *([FIRST] if number == 2 else [])]
        for place, array in enumerate(tensors):
            data = numpy_helper.from_array(array).SerializeToString()
            (folder / f"input_{place}.pb").write_bytes(data)
    hook = PythonSamples(SIGNATURE, "hooks:frames", None, None, (), (H,))
    data = OnnxTestData(SIGNATURE, (), (H,))
    folders = {str(number): tmp_path / f"set_{number}" for number in range(5)}
    for name, step, inputs in (("a", hook, {"project": tmp_path}), ("b", data, folders)):
        out = tmp_path / name
        out.mkdir()
        run_step(step, inputs, out)
        samples = SampleSet.read(out)
        assert samples.streams == (0, 2)
        np.testing.assert_array_equal(samples.read_inputs(2)["h"], FIRST)
        assert not samples.read_inputs(3)["h"].any()


def test_unrolled_when_a_state_is_another_is_caught(tmp_path):
    model = gru(tmp_path / "net.onnx")
    out = unrolled(tmp_path, model, PAIR, SIGNATURE, (H,), x=frames(6, WIDTH))
    inputs = {"model": tmp_path / "float", "samples": tmp_path / "given"}
    Unrolled(PAIR, "any").verify(inputs, out)
    states = np.fromfile(out / "input-1.bin", np.float32).reshape(6, HIDDEN)
    states[4] *= 1.1
    states.tofile(out / "input-1.bin")
    with pytest.raises(StepError, match=r"state of sample 4 of frames\.npz"):
        Unrolled(PAIR, "any").verify(inputs, out)


def test_build_of_a_state_with_a_symbolic_batch_takes_one(tmp_path):
    lstm(tmp_path / "net.onnx")
    np.savez(tmp_path / "s.npz", x=frames(40, 1, 1, WIDTH))
    state = "state: {hn: h, cn: c}"
    project = write(tmp_path, state, "samples: {evaluation: {path: s.npz}}")
    result = build(project=project, out=tmp_path / "dist", variants=["cpu-fp32"])
    manifest = result.bundles[0].bundle.manifest
    for golden in manifest.goldens:
        assert {t.name: t.shape for t in golden.inputs}["h"] == [1, 1, HIDDEN]
    assert list(manifest.variants[0].accuracy.r2) == ["y"]


REFUSED = [
    ("state: {hout: h}", "the model has no output 'hout'", "'h_out'"),
    ("state: {h: h_out}", "the model has no output 'h'", "maps an output to the input"),
    ("state: {h_out: hh}", "the model has no input 'hh'", "'h'"),
    ("state: {y: h}", "output y: float32[1, 3] cannot feed the input h: float32[1, 16]", "shape"),
    ("state: {y: h, h_out: h}", "several outputs of 'state' feed the input 'h'", "name the one"),
    (
        "state: {h_out: h}\nconstants: {h: 0}",
        "the input 'h' is fed by an output and a constant",
        "remove it",
    ),
    (
        "state: {h_out: h}\nsamples: {evaluation: {images: photos}}",
        "a folder of images has no order",
        "python",
    ),
]


def test_state_of_several_sizes_is_refused(tmp_path):
    gru(tmp_path / "net.onnx", batch="batch")
    project = write(tmp_path, STATE, "dims: {batch: [1, 4]}")
    with pytest.raises(ProfileError, match="the state 'h' has 'batch', which has several sizes"):
        build(project=project, out=tmp_path / "dist")


@pytest.mark.parametrize(("lines", "problem", "hint"), REFUSED)
def test_state_that_does_not_fit_the_model_is_refused(tmp_path, lines, problem, hint):
    gru(tmp_path / "net.onnx")
    project = write(tmp_path, lines)
    for act in (lambda: build(project=project), lambda: inspect(project=project)):
        with pytest.raises(ProfileError) as caught:
            act()
        assert problem in caught.value.problem
        assert hint in f"{caught.value.problem} {caught.value.hint}"


def test_state_whose_output_turns_out_to_have_another_shape_is_refused(tmp_path):
    path = gru(tmp_path / "net.onnx", batch="batch")
    model = onnx.load(str(path))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    onnx.save(model, str(path))
    np.savez(tmp_path / "s.npz", x=frames(6, WIDTH))
    project = write(tmp_path, "state: {y: h}", "samples: {evaluation: {path: s.npz}}")
    with pytest.raises(ModelError, match=r"'y' has the shape \[1, 3\], and the input 'h'"):
        build(project=project, out=tmp_path / "dist")


CACHES = (
    "state: {conv_cache_out: conv_cache, tra_cache_out: tra_cache, inter_cache_out: inter_cache}"
)
SOURCES = {
    "audio/silero_vad/silero_vad_16k_op15.onnx": (
        "dims: {batch: 1, sequence: 576}\nconstants: {sr: 16000}\nstate: {stateN: state}",
        ("input", (576,)),
    ),
    "audio/silero_vad/silero_vad.onnx": (
        "constants: {sr: 16000}\nstate: {stateN: state}",
        ("input", (576,)),
    ),
    "audio/gtcrn/gtcrn_simple.onnx": (
        CACHES,
        ("mix", (1, 257, 1, 2)),
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_models_of_sound_are_built_and_judged_over_streams(tmp_path, shared_data, source):
    lines, (name, shape) = SOURCES[source]
    shutil.copyfile(shared_data / source, tmp_path / "net.onnx")
    np.savez(tmp_path / "s.npz", **{name: frames(48, *shape) * 0.1}, stream=np.arange(48) // 24)
    project = write(tmp_path, lines, "samples: {evaluation: {path: s.npz}}")
    result = build(project=project, out=tmp_path / "dist", variants=["cpu-fp32"])
    result.require_all()
    [variant] = result.bundles[0].bundle.manifest.variants
    drift = variant.accuracy.drift
    assert drift.first == drift.last == pytest.approx(1.0, abs=1e-6)
    verify_here(result.bundles[0].bundle.path)
