"""One pass over samples: what comes out, that nothing but the values decides it, and what fails."""

from __future__ import annotations

import os
import weakref

import numpy as np
import onnx
import pytest
from edgepack.errors import ModelError, SamplesError, StepError, ToolError
from edgepack.quantization.ranges import collecting, counter, tally
from edgepack.quantization.ranges.collecting import collect
from edgepack.quantization.ranges.counter import Counter
from edgepack.quantization.ranges.helper import Helper
from edgepack.quantization.ranges.histogram import Histogram
from edgepack.quantization.ranges.observing import Observer
from edgepack.quantization.ranges.statistics import write_statistics
from onnx import TensorProto, helper

from tests.support.nets import tiny_models

FLOAT = TensorProto.FLOAT
NAMES = ["image", "c", "r", "k", "j", "y"]


def whole(*shape, seed=0):
    """Small whole numbers: sums and products of them are the same in any order."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def branching_net(path, size=8):
    """Image [1, 2, size, size] -> Conv c -> Relu r and Clip k -> Concat j -> Add y."""
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Clip", ["c", "low", "high"], ["k"], "clip"),
        helper.make_node("Concat", ["r", "k"], ["j"], "concat", axis=1),
        helper.make_node("Add", ["j", "j"], ["y"], "add"),
    ]
    constants = [
        ("w", whole(4, 2, 3, 3)),
        ("low", np.array(-2, np.float32)),
        ("high", np.array(6, np.float32)),
    ]
    inputs = [("image", FLOAT, [1, 2, size, size])]
    path = tiny_models.save(path, nodes, inputs, [("y", FLOAT, [1, 8, size, size])], constants)
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(path)), path)
    return path


def feeds(count, size=8):
    return [{"image": whole(1, 2, size, size, seed=n) * (n + 1)} for n in range(count)]


def reference(feed, model):
    """Every tensor of :func:`branching_net`, the first from onnx's own reference."""
    from onnx.reference import ReferenceEvaluator

    loaded = onnx.load(model)
    loaded.graph.output.append(onnx.ValueInfoProto(name="c"))
    c = ReferenceEvaluator(loaded).run(["c"], feed)[0]
    r, k = np.maximum(c, 0), np.clip(c, -2, 6)
    j = np.concatenate([r, k], axis=1)
    return {"image": feed["image"], "c": c, "r": r, "k": k, "j": j, "y": j + j}


def same(one, other):
    pairs = (one.counts, other.counts), (one.channel_low, other.channel_low)
    plain = ("low", "high", "first", "width", "channel_axis")
    return all(getattr(one, name) == getattr(other, name) for name in plain) and all(
        np.array_equal(a, b) for a, b in (*pairs, (one.channel_high, other.channel_high))
    )


def npz(statistics, path):
    write_statistics(statistics, path)
    return path.read_bytes()


@pytest.mark.parametrize("size", [8, 100])
def test_collect_when_compared_with_all_values_at_once_is_the_same(tmp_path, size):
    assert (4 * size**2 >= tally._SHARED_VALUES) == (size == 100), "both ways to count a Relu"
    model = branching_net(tmp_path / "net.onnx", size)
    samples = feeds(3, size)
    found = collect(model, samples, NAMES)
    assert list(found) == NAMES
    references = [reference(feed, model) for feed in samples]
    for name, statistics in found.items():
        values = np.concatenate([tensors[name] for tensors in references])
        histogram = Histogram()
        histogram.add(values)
        exact = histogram.make_statistics()
        assert (statistics.low, statistics.high) == (values.min(), values.max())
        assert (statistics.first, statistics.width) == (exact.first, exact.width)
        np.testing.assert_array_equal(statistics.counts, exact.counts)
        np.testing.assert_array_equal(statistics.channel_low, values.min((0, 2, 3)))
        np.testing.assert_array_equal(statistics.channel_high, values.max((0, 2, 3)))


def test_collect_when_samples_are_gathered_or_reordered_gives_the_same_bytes(tmp_path, monkeypatch):
    model = branching_net(tmp_path / "net.onnx")
    samples = feeds(9)
    wanted = npz(collect(model, samples, NAMES), tmp_path / "a.npz")
    assert npz(collect(model, samples[::-1], NAMES[::-1]), tmp_path / "b.npz") == wanted
    monkeypatch.setattr(counter, "_GATHERED_VALUES", 0)
    monkeypatch.setattr(tally, "_SHARED_VALUES", 0)
    assert npz(collect(model, samples, NAMES), tmp_path / "c.npz") == wanted


@pytest.fixture
def three_processes(monkeypatch):
    """Have two others help with whatever there is to count."""
    monkeypatch.setattr(collecting, "_SHARED_VALUES", 0)
    monkeypatch.setattr(collecting, "count_cores", lambda: 3)


@pytest.mark.usefixtures("three_processes")
def test_collect_when_processes_share_the_samples_gives_the_same_bytes(tmp_path, monkeypatch):
    model = branching_net(tmp_path / "net.onnx")
    samples, done = feeds(9), []
    shared = collect(model, samples, NAMES, lambda: done.append(1))
    assert len(done) == 9
    monkeypatch.setattr(collecting, "count_cores", lambda: 1)
    alone = collect(model, samples, NAMES)
    assert npz(shared, tmp_path / "a.npz") == npz(alone, tmp_path / "b.npz")


@pytest.mark.usefixtures("three_processes")
def test_collect_when_a_helper_meets_nan_raises_its_error(tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(Counter, "take", lambda _, number, sample: taken.append(number) or 1)
    samples = [{"x": np.array([[value, 1]], np.float32)} for value in (1, -1, 1, 1)]
    with pytest.raises(StepError, match=r"'l' has NaN on calibration sample 1 \("):
        collect(roots_net(tmp_path / "net.onnx"), samples, ["l", "y"])
    assert 1 not in taken


@pytest.mark.usefixtures("three_processes")
def test_collect_when_a_helper_dies_says_so(tmp_path, monkeypatch):
    class Dying(Helper):
        def end(self):
            self._submit_call(os._exit, 3)
            return super().end()

    monkeypatch.setattr(collecting, "Helper", Dying)
    with pytest.raises(ToolError, match="died with exit code 3") as caught:
        collect(branching_net(tmp_path / "net.onnx"), feeds(5), NAMES)
    assert caught.value.hint


@pytest.mark.parametrize("shared", [0, 1 << 30])
def test_collect_when_a_clamp_or_concat_follows_from_its_input_is_as_if_observed(
    tmp_path, monkeypatch, shared
):
    monkeypatch.setattr(tally, "_SHARED_VALUES", shared)
    model = branching_net(tmp_path / "net.onnx")
    for scale in (1.0, -1000.0, 1e-30):
        samples = [{"image": feed["image"] * np.float32(scale)} for feed in feeds(4)]
        together = collect(model, samples, NAMES)
        for name in ("r", "k", "j"):
            assert same(together[name], collect(model, samples, [name])[name])


def test_collect_when_a_relu_leaves_little_of_a_wide_range_keeps_its_fine_bins(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    value = (FLOAT, [1, 1 << 16])
    model = tiny_models.save(tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)])
    x = np.linspace(-1000, 1, 1 << 16, dtype=np.float32)[None]
    found = collect(model, [{"x": x}], ["x", "y"])
    assert found["x"].width == 2.0**-2
    assert found["y"].width == 2.0**-11
    assert found["y"].counts.sum() == x.size
    assert found["y"].counts[0] >= (x < 0).sum()


def test_collect_when_it_goes_on_lets_go_of_earlier_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(counter, "_GATHERED_VALUES", 0)
    model = branching_net(tmp_path / "net.onnx")
    alive: list[list[weakref.ref]] = []
    run = Observer.run

    def watched(observer, sample):
        assert sum(any(ref() is not None for ref in refs) for refs in alive) <= 1
        tensors = run(observer, sample)
        alive.append([weakref.ref(array) for array in tensors.values()])
        return tensors

    monkeypatch.setattr(Observer, "run", watched)
    collect(model, feeds(5), NAMES)
    assert len(alive) == 5


def test_collect_when_samples_are_an_iterator_takes_each_once_and_says_so(tmp_path):
    model = branching_net(tmp_path / "net.onnx")
    given, done = [], []

    def samples():
        for feed in feeds(4):
            given.append(len(done))
            yield feed

    collect(model, samples(), NAMES, lambda: done.append(1))
    assert given == [0, 1, 2, 3]
    assert len(done) == 4


def test_collect_when_shapes_vary_counts_all_values(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 1]),
    ]
    value = ("x", FLOAT, ["batch", "steps", 6])
    model = tiny_models.save(tmp_path / "net.onnx", nodes, [value], [("t", FLOAT, None)])
    shapes = [(1, 9, 6), (2, 9, 6), (1, 3, 6), (1, 0, 6), (1, 9, 6)]
    samples = [{"x": whole(*shape, seed=n)} for n, shape in enumerate(shapes)]
    found = collect(model, samples, ["x", "r", "t"])
    values = np.concatenate([feed["x"].ravel() for feed in samples])
    assert found["x"].counts.sum() == found["t"].counts.sum() == values.size
    assert (found["x"].low, found["t"].high) == (values.min(), values.max())
    assert found["x"].channel_axis is None, "first 6 of axis 2, then 3 of axis 1"
    steady = collect(model, [samples[0], samples[1], samples[4]], ["x", "t"])
    both = np.concatenate([samples[n]["x"] for n in (0, 1, 4)])
    assert (steady["x"].channel_axis, steady["t"].channel_axis) == (2, 1)
    np.testing.assert_array_equal(steady["x"].channel_low, both.min((0, 1)))
    np.testing.assert_array_equal(steady["t"].channel_high, np.maximum(both, 0).max((0, 1)))


def test_collect_when_tensors_are_scalar_empty_narrow_or_no_floats_takes_what_it_can(tmp_path):
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["scalar"], "max", keepdims=0),
        helper.make_node("Cast", ["x"], ["half"], "half", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["x"], ["double"], "double", to=TensorProto.DOUBLE),
        helper.make_node("Shape", ["x"], ["shape"], "shape"),
        helper.make_node("Slice", ["x", "zero", "zero"], ["empty"], "empty"),
        helper.make_node("Gather", ["x", "ids"], ["y"], "gather", axis=1),
    ]
    inputs = [("x", FLOAT, [1, 4]), ("ids", TensorProto.INT64, [2])]
    zero = ("zero", np.zeros(1, np.int64))
    model = tiny_models.save(tmp_path / "net.onnx", nodes, inputs, [("y", FLOAT, [1, 2])], [zero])
    feed = {"x": np.array([[0.1, 0.2, 0.3, 0.4]], np.float32), "ids": np.array([0, 1])}
    names = ["x", "x", "scalar", "half", "double", "shape", "empty", "ids", "y"]
    found = collect(model, [feed, feed], names)
    assert list(found) == ["x", "scalar", "half", "double", "y"]
    assert (found["scalar"].low, found["scalar"].counts.tolist()) == (np.float32(0.4), [2])
    assert found["half"].low == np.float16(0.1)
    assert found["double"].high == np.float32(0.4)
    assert found["y"].counts.sum() == 4


def test_collect_when_only_inputs_are_floats_takes_these(tmp_path):
    nodes = [helper.make_node("Cast", ["x"], ["y"], "cast", to=TensorProto.INT64)]
    inputs = [("x", FLOAT, [1, 3])]
    model = tiny_models.save(
        tmp_path / "net.onnx", nodes, inputs, [("y", TensorProto.INT64, [1, 3])]
    )
    found = collect(model, [{"x": np.array([[1, 5, 3]], np.float32)}], ["x", "y"])
    assert {name: (one.low, one.high) for name, one in found.items()} == {"x": (1, 5)}


def test_collect_when_zeros_have_both_signs_depends_on_neither(tmp_path):
    nodes = [helper.make_node("Neg", ["x"], ["y"], "neg")]
    value = (FLOAT, [1, 3, 1, 2])
    model = tiny_models.save(tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)])
    plus, minus = (
        np.array([0.0, sign * 0.0] * 3, np.float32).reshape(1, 3, 1, 2) for sign in (1, -1)
    )
    one = npz(collect(model, [{"x": plus}, {"x": minus}], ["x", "y"]), tmp_path / "a.npz")
    assert npz(collect(model, [{"x": minus}, {"x": plus}], ["x", "y"]), tmp_path / "b.npz") == one


def test_collect_when_weights_lie_in_another_file_finds_them(tmp_path):
    model = onnx.load(branching_net(tmp_path / "net.onnx"))
    wanted = collect(tmp_path / "net.onnx", feeds(2), NAMES)
    apart = tmp_path / "apart" / "net.onnx"
    apart.parent.mkdir()
    onnx.save_model(model, apart, save_as_external_data=True, location="w.bin", size_threshold=0)
    files = sorted(apart.parent.iterdir())
    found = collect(apart, feeds(2), NAMES)
    assert all(same(found[name], wanted[name]) for name in NAMES)
    assert sorted(apart.parent.iterdir()) == files


def test_collect_when_weights_are_larger_than_2_gib_works(tmp_path):
    rows, columns = 140_000, 4096
    table = onnx.TensorProto(name="table", data_type=FLOAT, dims=[rows, columns])
    table.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": "table.bin", "offset": 0, "length": 4 * rows * columns}
    for key, value in entries.items():
        table.external_data.add(key=key, value=str(value))
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"], "gather")]
    path = tiny_models.save(
        tmp_path / "net.onnx",
        nodes,
        [("ids", TensorProto.INT64, [2])],
        [("y", FLOAT, [2, columns])],
    )
    model = onnx.load(path)
    model.graph.initializer.append(table)
    onnx.save(model, path)
    with (tmp_path / "table.bin").open("wb") as file:
        file.seek(4 * columns)
        file.write(np.ones(columns, np.float32).tobytes())
        # The rest is a hole: it reads as 0 and takes no room on the disk.
        file.truncate(4 * rows * columns)
    assert (tmp_path / "table.bin").stat().st_size > 1 << 31
    found = collect(path, [{"ids": np.array([1, rows - 1])}], ["y"])
    assert (found["y"].low, found["y"].high) == (0, 1)


def test_collect_when_a_branch_is_a_body_observes_the_main_graph(tmp_path):
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["a"], [f"{op}_out"], op)],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_out", FLOAT, [1, 4])],
        )
        for op in ("Relu", "Neg")
    ]
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], "abs"),
        helper.make_node(
            "If", ["up"], ["y"], "if", then_branch=branches[0], else_branch=branches[1]
        ),
    ]
    inputs = [("x", FLOAT, [1, 4]), ("up", TensorProto.BOOL, [])]
    model = tiny_models.save(tmp_path / "net.onnx", nodes, inputs, [("y", FLOAT, [1, 4])])
    x = np.array([[1, -2, 3, -4]], np.float32)
    samples = [{"x": x, "up": np.array(up)} for up in (True, False)]
    found = collect(model, samples, ["x", "a", "y"])
    assert [(found[name].low, found[name].high) for name in ("x", "a", "y")] == [
        (-4, 3),
        (1, 4),
        (-4, 4),
    ]


# --- what fails -------------------------------------------------------------------------------


def test_collect_when_there_are_no_samples_says_so(tmp_path):
    with pytest.raises(SamplesError, match="no calibration samples"):
        collect(branching_net(tmp_path / "net.onnx"), [], NAMES)


def roots_net(path):
    """x [1, 2] -> Log l -> Mul m -> Sub s -> Clip y: log of 0 is infinite, of less is NaN."""
    nodes = [
        helper.make_node("Log", ["x"], ["l"], "log"),
        helper.make_node("Mul", ["l", "two"], ["m"], "double"),
        helper.make_node("Sub", ["m", "l"], ["s"], "difference"),
        helper.make_node("Clip", ["s", "low", "high"], ["y"], "clip"),
    ]
    constants = [(n, np.array(v, np.float32)) for n, v in (("two", 2), ("low", -9), ("high", 9))]
    value = (FLOAT, [1, 2])
    return tiny_models.save(path, nodes, [("x", *value)], [("y", *value)], constants)


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (
            -1,
            r"the tensor 'l' has NaN on calibration sample 2 .*'log' \(Log\) .*from finite inputs",
        ),
        (
            0,
            r"the tensor 's' has NaN .* 2 .*'difference' \(Sub\) .*'m', which has infinity and 'l'",
        ),
    ],
)
def test_collect_when_a_tensor_is_nan_names_it_its_node_and_the_sample(tmp_path, bad, found):
    model = roots_net(tmp_path / "net.onnx")
    samples = [{"x": np.array([[1, value]], np.float32)} for value in (1, 2, bad, 3)]
    with pytest.raises(StepError, match=found):
        collect(model, samples, ["x", "m", "s"])


def test_collect_when_nan_stays_inside_is_refused_all_the_same(tmp_path):
    nodes = [
        helper.make_node("Sqrt", ["x"], ["root"], "root"),
        helper.make_node("IsNaN", ["root"], ["bad"], "test"),
        helper.make_node("Where", ["bad", "zero", "root"], ["y"], "mend"),
    ]
    zero = ("zero", np.zeros(1, np.float32))
    value = (FLOAT, [1, 2])
    model = tiny_models.save(tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)], [zero])
    with pytest.raises(StepError, match=r"'root' has NaN on calibration sample 0.*\(Sqrt\)"):
        collect(model, [{"x": np.array([[4, -1]], np.float32)}], ["x", "root", "y"])


@pytest.mark.parametrize(("bad", "found"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_collect_when_an_input_is_bad_blames_the_sample(tmp_path, bad, found):
    model = branching_net(tmp_path / "net.onnx")
    samples = feeds(2)
    samples[1]["image"][0, 0, 0, 0] = bad
    with pytest.raises(SamplesError, match=f"input 'image' has {found} on calibration sample 1"):
        collect(model, samples, NAMES)


def test_collect_when_a_tensor_is_infinite_leaves_it_out_alone(tmp_path):
    model = roots_net(tmp_path / "net.onnx")
    loaded = onnx.load(model)
    # Without the difference, which would be NaN.
    loaded.graph.node[3].input[0] = "m"
    del loaded.graph.node[2]
    onnx.save(loaded, model)
    samples = [{"x": np.array([[1, 0]], np.float32)}, {"x": np.array([[2, 3]], np.float32)}]
    found = collect(model, samples, ["x", "l", "m", "y"])
    assert list(found) == ["x", "y"]
    assert (found["y"].low, found["y"].counts.sum()) == (-9, 4)


def test_collect_when_an_output_is_infinite_names_it(tmp_path):
    nodes = [helper.make_node("Exp", ["x"], ["y"], "exp")]
    value = (FLOAT, [1, 2])
    model = tiny_models.save(tmp_path / "net.onnx", nodes, [("x", *value)], [("y", *value)])
    samples = [{"x": np.array([[1, value]], np.float32)} for value in (1, 100)]
    with pytest.raises(StepError, match=r"'y' has infinity on calibration sample 1.*'exp' \(Exp\)"):
        collect(model, samples, ["x"])


def test_collect_when_a_sample_does_not_run_says_which(tmp_path):
    nodes = [helper.make_node("Gather", ["x", "ids"], ["y"], "gather", axis=1)]
    inputs = [("x", FLOAT, [1, 4]), ("ids", TensorProto.INT64, [1])]
    model = tiny_models.save(tmp_path / "net.onnx", nodes, inputs, [("y", FLOAT, [1, 1])])
    samples = [{"x": np.ones((1, 4), np.float32), "ids": np.array([n])} for n in (3, 4)]
    with pytest.raises(ModelError, match=r"sample 1 .*node 'gather'"):
        collect(model, samples, ["x", "y"])
