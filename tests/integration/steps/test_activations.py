"""Activations and norms: which pieces are joined, which are left, and what providers gain."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx
import pytest
from edgepack.base.progress import Silent
from edgepack.builder.build import dry_run
from edgepack.builder.cache import open_own_cache
from edgepack.builder.execution import execute
from edgepack.builder.inspect import inspect
from edgepack.model.files import MODEL
from edgepack.model.running import make_session
from edgepack.steps.base import run_step
from edgepack.steps.graph.rewritten import Rewritten, choose_rewrites
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets.tiny_models import save

FLOAT = TensorProto.FLOAT
SHAPE = [2, 4, 6]


def numbers(**values):
    return [(name, np.array(value, np.float32)) for name, value in values.items()]


def nodes(*lines):
    """One node a line: output = Operator input input ..., from x to y."""
    made = []
    for line in lines:
        output, _, call = line.partition(" = ")
        op, *inputs = call.split()
        made.append(helper.make_node(op, inputs, [output], output))
    return made


CONSTANTS = numbers(
    three=3, zero=0, six=6, sixth=1 / 6, half=0.5, one=1, two=2, root2=math.sqrt(2),
    inverse=math.sqrt(0.5), cubed=3, tiny=0.044715, factor=math.sqrt(2 / math.pi),
)  # fmt: skip
CLIPPED = ("a = Add x three", "c = Clip a zero six")
ERF = ("d = Div x root2", "e = Erf d", "p = Add e one")
TANH = ("q = Mul tiny w", "s = Add x q", "m = Mul factor s", "t = Tanh m", "p = Add one t")
WAYS = {
    "HardSwish, divided at last": ([*CLIPPED, "m = Mul x c", "y = Div m six"], 14),
    "HardSwish, multiplied at last": ([*CLIPPED, "m = Mul c x", "y = Mul sixth m"], 14),
    "HardSwish, by a sigmoid": ([*CLIPPED, "m = Mul c sixth", "y = Mul m x"], 14),
    "HardSwish, of ReLU6 in pieces": (
        ["a = Add x three", "r = Relu a", "c = Min r six", "m = Mul x c", "y = Div m six"],
        14,
    ),
    "HardSigmoid": ([*CLIPPED, "y = Div c six"], 13),
    "Gelu, halved at last": ([*ERF, "m = Mul x p", "y = Mul m half"], 20),
    "Gelu, halved first": (["h = Mul half x", *ERF, "y = Mul h p"], 20),
    "Gelu, of Erfc": (
        ["h = Mul half x", "d = Mul x inverse", "e = Erf d", "p = Add e one", "y = Mul h p"],
        20,
    ),
    "Gelu, by tanh": (["w = Pow x cubed", "h = Mul x half", *TANH, "y = Mul h p"], 20),
    "Gelu, by tanh and products": (
        ["v = Mul x x", "w = Mul x v", "h = Div x two", *TANH, "y = Mul h p"],
        20,
    ),
    "Mish": (["s = Softplus x", "t = Tanh s", "y = Mul x t"], 18),
    "Mish, the other way": (["s = Softplus x", "t = Tanh s", "y = Mul t x"], 18),
    "Mish, of Exp and Log": (
        ["e = Exp x", "a = Add one e", "s = Log a", "t = Tanh s", "y = Mul x t"], 18,
    ),
    "Clip": (["r = Max x zero", "y = Min r six"], 13),
    "Clip, the other way": (["r = Min x six", "y = Max r zero"], 13),
}  # fmt: skip
ALL = ("fuse-clip", "fuse-hard-swish", "fuse-gelu", "fuse-layer-norm", "fuse-mish")


def make(folder, lines, opset=20, constants=CONSTANTS, outputs=("y",)):
    read = {name for line in lines for name in line.split()}
    used = [(name, array) for name, array in constants if name in read]
    ends = [[("x", FLOAT, SHAPE)], [(name, FLOAT, SHAPE) for name in outputs]]
    save(folder / "in" / MODEL, nodes(*lines), *ends, used, opset=opset, ir=9)


def rewrite(folder, names=ALL):
    (folder / "out").mkdir()
    notes = run_step(Rewritten(names), {"model": folder / "in"}, folder / "out")
    return [n.op_type for n in onnx.load(folder / "out" / MODEL).graph.node], notes


@pytest.mark.parametrize("way", WAYS)
def test_pieces_become_one_operator(tmp_path, way):
    """The step itself proves that it computes the same."""
    lines, opset = WAYS[way]
    make(tmp_path, lines, opset)
    ops, _ = rewrite(tmp_path)
    assert ops == [way.partition(",")[0]]


@pytest.mark.parametrize("way", [way for way, (_, opset) in WAYS.items() if opset > 13])
def test_pieces_stay_where_the_opset_has_no_such_operator(tmp_path, way):
    lines, opset = WAYS[way]
    make(tmp_path, lines, opset - 1)
    ops, _ = rewrite(tmp_path)
    assert way.partition(",")[0] not in ops


@pytest.mark.parametrize(
    "lines",
    [
        ["a = Add x two", "c = Clip a zero six", "m = Mul x c", "y = Div m six"],
        ["a = Add x three", "c = Clip a zero six", "m = Mul a c", "y = Div m six"],
        ["d = Div x two", "e = Erf d", "p = Add e one", "m = Mul x p", "y = Mul m half"],
        ["s = Softplus x", "t = Tanh s", "y = Mul s t"],
        ["e = Exp x", "a = Add e two", "s = Log a", "t = Tanh s", "y = Mul x t"],
        ["r = Max x six", "y = Min r zero"],
        ["z = Sub x two", "r = Max x zero z", "y = Min r six"],
        ["r = Max x zero", "y = Min r six x"],
    ],
)
def test_what_looks_alike_stays_to_the_byte(tmp_path, lines):
    make(tmp_path, lines)
    before = (tmp_path / "in" / MODEL).read_bytes()
    _, notes = rewrite(tmp_path, (*ALL, "split-mish"))
    assert "Mish" not in notes.done
    assert "HardSwish" not in notes.done
    assert "Gelu" not in notes.done
    assert "Clip" not in notes.done
    if notes.done == "nothing to rewrite":
        assert (tmp_path / "out" / MODEL).read_bytes() == before


def test_pieces_that_somebody_else_reads_stay(tmp_path):
    make(tmp_path, [*CLIPPED, "m = Mul x c", "y = Div m six"], outputs=("y", "c"))
    ops, _ = rewrite(tmp_path, ("fuse-hard-swish",))
    assert ops == ["Add", "Clip", "Mul", "Div"]


def save_norm(folder, opset, axes=-1):
    given = helper.make_node
    mean = {"axes": [axes]} if opset < 18 else {}
    more = ["axes"] if opset >= 18 else []
    made = [
        given("ReduceMean", ["x", *more], ["u"], "u", **mean),
        given("Sub", ["x", "u"], ["d"], "d"),
        given("Pow", ["d", "two"], ["s"], "s"),
        given("ReduceMean", ["s", *more], ["v"], "v", **mean),
        given("Add", ["v", "epsilon"], ["w"], "w"),
        given("Sqrt", ["w"], ["r"], "r"),
        given("Div", ["d", "r"], ["n"], "n"),
        given("Mul", ["n", "scale"], ["m"], "m"),
        given("Add", ["m", "bias"], ["y"], "y"),
    ]
    initializers = [
        ("two", np.array(2, np.float32)),
        ("epsilon", np.array(1e-5, np.float32)),
        ("scale", np.linspace(1, 2, 6, dtype=np.float32)),
        ("bias", np.linspace(-1, 1, 6, dtype=np.float32)),
        *([("axes", np.array([axes], np.int64))] if more else []),
    ]
    ends = [[("x", FLOAT, SHAPE)], [("y", FLOAT, SHAPE)]]
    save(folder / "in" / MODEL, made, *ends, initializers, opset=opset, ir=9)


@pytest.mark.parametrize("opset", [17, 18])
def test_a_layer_norm_in_pieces_becomes_one_operator(tmp_path, opset):
    save_norm(tmp_path, opset)
    ops, notes = rewrite(tmp_path)
    assert ops == ["LayerNormalization"]
    assert "of 9 nodes to 'y'" in notes.done


@pytest.mark.parametrize(("opset", "axes"), [(16, -1), (17, 1)])
def test_a_layer_norm_over_another_axis_or_of_an_old_opset_stays(tmp_path, opset, axes):
    save_norm(tmp_path, opset, axes)
    assert "LayerNormalization" not in rewrite(tmp_path)[0]


# --- the other way -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("HardSwish", ["x"], ["y"], "act"),
        helper.make_node("HardSigmoid", ["x"], ["y"], "act", alpha=1 / 6, beta=0.5),
        helper.make_node("HardSigmoid", ["x"], ["y"], "act"),
        helper.make_node("HardSigmoid", ["x"], ["y"], "act", alpha=0.25, beta=0.3),
    ],
)
def test_hard_activations_are_written_with_a_clip_to_six(tmp_path, node):
    ends = [[("x", FLOAT, SHAPE)], [("y", FLOAT, SHAPE)]]
    save(tmp_path / "in" / MODEL, [node], *ends, opset=14)
    ops, _ = rewrite(tmp_path, ("split-hard-swish",))
    assert {*ops} == {"Add", "Clip", "Mul"}
    model = onnx.load(tmp_path / "out" / MODEL)
    clip = next(n for n in model.graph.node if n.op_type == "Clip")
    ends = {t.name: numpy_helper.to_array(t).item() for t in model.graph.initializer}
    assert [ends[name] for name in clip.input[1:]] == [0, 6]


@pytest.mark.parametrize("target", ["android-nnapi", "ios"])
def test_a_provider_without_hard_swish_takes_its_pieces(tmp_path, target):
    made = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("HardSwish", ["c"], ["y"], "act"),
    ]
    weights = [("w", np.ones((4, 3, 1, 1), np.float32))]
    ends = [[("x", FLOAT, [1, 3, 8, 8])], [("y", FLOAT, [1, 4, 8, 8])]]
    save(tmp_path / "net.onnx", made, *ends, weights, opset=14)
    found = [v for v in inspect(tmp_path / "net.onnx", [target]).variants if "cpu" not in v.variant]
    assert any(each.taken == each.nodes > 2 for each in found)


MISH = (["y = Mish x"], *(lines for way, (lines, _) in WAYS.items() if way.startswith("Mish")))


@pytest.mark.parametrize(
    ("lines", "opset"), [*((lines, 18) for lines in MISH), *((lines, 7) for lines in MISH[1:])]
)
def test_mish_is_split_and_right_where_its_powers_overflow(tmp_path, lines, opset):
    make(tmp_path, lines, opset)
    ops, notes = rewrite(tmp_path, ("split-mish",))
    assert sorted(ops) == ["Add", "Add", "Div", "Div", "Exp", "Mul"]
    assert notes.facts["rewrites"] == {"split-mish": 1}
    session = make_session(tmp_path / "out" / MODEL)
    for low, high in ((-150, 150), (-12, 12), (-1e30, 1e30)):
        x = np.linspace(low, high, math.prod(SHAPE)).reshape(SHAPE)
        found = session.run(None, {"x": x.astype(np.float32)})[0]
        wanted = x * np.tanh(np.logaddexp(0, x))
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-30)


def test_two_of_mish_are_split_and_float16_and_pieces_read_elsewhere_stay(tmp_path):
    make(tmp_path, ["m = Mish x", "n = Mish m", "y = Mish n"], 18)
    assert len(rewrite(tmp_path, ("split-mish",))[0]) == 18
    ends = [[("x", TensorProto.FLOAT16, SHAPE)], [("y", TensorProto.FLOAT16, SHAPE)]]
    for name, lines in (("whole", MISH[0]), ("pieces", MISH[1])):
        save(tmp_path / name / "in" / MODEL, nodes(*lines), *ends, opset=18, ir=9)
        ops, _ = rewrite(tmp_path / name, ("split-mish",))
        assert ops == [line.split()[2] for line in lines]
    read = tmp_path / "read"
    make(read, MISH[1], outputs=("y", "t"))
    assert rewrite(read, ("fuse-mish", "split-mish"))[0] == ["Softplus", "Tanh", "Mul"]


def test_mish_is_joined_only_where_it_can_be_split_again(tmp_path):
    """Behind an operator that onnx does not know no type is known."""
    made = [
        helper.make_node("BiasGelu", ["x", "b"], ["a"], "unknown", domain="com.microsoft"),
        *nodes("s = Softplus a", "t = Tanh s", "y = Mul a t"),
    ]
    bias = ("b", np.zeros(SHAPE[-1], np.float32))
    ends = [[("x", TensorProto.FLOAT, SHAPE)], [("y", TensorProto.FLOAT, SHAPE)]]
    save(tmp_path / "in" / MODEL, made, *ends, [bias], opset=18, ir=9)
    ops, _ = rewrite(tmp_path, ("fuse-mish", "split-mish"))
    assert ops == ["BiasGelu", "Softplus", "Tanh", "Mul"]


def save_mish_net(path, opset=18):
    """Two convolutions with a Mish in pieces behind each."""
    made = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first"),
        *nodes("s = Softplus a", "t = Tanh s", "m = Mul t a"),
        helper.make_node("Conv", ["m", "v"], ["b"], "second"),
        *nodes("u = Softplus b", "z = Tanh u", "y = Mul b z"),
    ]
    random = np.random.default_rng(7)
    weights = [
        ("w", random.standard_normal((4, 3, 1, 1)).astype(np.float32)),
        ("v", random.standard_normal((4, 4, 1, 1)).astype(np.float32)),
    ]
    ends = [[("x", FLOAT, [1, 3, 8, 8])], [("y", FLOAT, [1, 4, 8, 8])]]
    return save(path, made, *ends, weights, opset=opset, ir=9)


@pytest.mark.parametrize("variant", ["nnapi-fp32", "coreml-fp16"])
def test_a_provider_without_softplus_takes_all_of_a_mish(tmp_path, variant):
    """Core ML has Softplus; its fp16 models have a Log in its place, which it has not."""
    save_mish_net(tmp_path / "net.onnx")
    targets = ["android-nnapi", "ios"]
    found = inspect(tmp_path / "net.onnx", targets).variants
    judged = next(each for each in found if each.variant == variant)
    assert judged.taken == judged.nodes >= 14


def test_mish_has_one_range_in_int8_and_is_split_behind_it(tmp_path):
    save_mish_net(tmp_path / "net.onnx")
    samples = np.random.default_rng(8).standard_normal((8, 1, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=samples)
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\nsamples: {calibration: {path: s.npz}}\n"
    )
    plan = dry_run(project=project, targets=["linux-x86-64"], variants=["cpu-int8-static"])
    last = [each for each in plan.steps if each.step.name == "rewritten"][-1]
    assert last.step == Rewritten(("split-mish",))
    execution = execute(plan.only([last.id]), cache=open_own_cache(), jobs=1, progress=Silent())
    made = onnx.load(execution.artifacts[last.id].path / MODEL)
    ops = Counter(n.op_type for n in made.graph.node)
    assert {op: ops[op] for op in ("Exp", "Mul", "Add", "Div", "Softplus", "Tanh")} == {
        "Exp": 2, "Mul": 2, "Add": 4, "Div": 4, "Softplus": 0, "Tanh": 0,
    }  # fmt: skip
    ranged = {n.input[0] for n in made.graph.node if n.op_type == "QuantizeLinear"}
    assert ranged <= {"x", "a", "m", "b", "y"}


# --- what is planned ---------------------------------------------------------------------------


def test_rewrites_are_planned_for_models_with_their_operators_alone():
    names = ("drop-identities", "fuse-clip", "fuse-hard-swish")
    assert choose_rewrites(names, ["Conv", "Relu"]) == ("drop-identities",)
    assert choose_rewrites(names, ["Relu", "Min"]) == ("drop-identities", "fuse-clip")
    assert choose_rewrites(("fuse-mish", "split-mish"), ["Mish"]) == ("split-mish",)
    assert choose_rewrites(names, ["Add", "Clip", "Mul"]) == ("drop-identities", "fuse-hard-swish")


def test_pieces_are_joined_before_simplifying_puts_their_factor_into_weights(tmp_path):
    """onnxsim multiplies 1/6 into the convolution behind, and no HardSwish is left to be found."""
    lines = [*CLIPPED, "m = Mul x c", "f = Mul m sixth"]
    read = {name for line in lines for name in line.split()}
    made = [*nodes(*lines), helper.make_node("Conv", ["f", "w"], ["y"], "conv")]
    weights = [(name, array) for name, array in CONSTANTS if name in read]
    weights.append(("w", np.ones((4, 3, 1, 1), np.float32)))
    ends = [[("x", FLOAT, [1, 3, 8, 8])], [("y", FLOAT, [1, 4, 8, 8])]]
    save(tmp_path / "net.onnx", made, *ends, weights, opset=14)
    plan = dry_run(tmp_path / "net.onnx", targets=["android-qnn"], variants=["cpu-fp32"])
    assert not [each for each in plan.steps if each.step.name == "rewritten"]
    project = tmp_path / "edgepack.yaml"
    np.savez(tmp_path / "s.npz", x=np.ones((4, 1, 3, 8, 8), np.float32))
    project.write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\nsamples: {calibration: {path: s.npz}}\n"
    )
    plan = dry_run(project=project, targets=["android-qnn"], variants=["qnn-int8-static"])
    names = [each.step.name for each in plan.steps]
    first = names.index("rewritten")
    assert plan.steps[first].step == Rewritten(("fuse-hard-swish",))
    assert first < max(n for n, name in enumerate(names) if name == "simplified")
    execution = execute(
        plan.only([plan.steps[first].id]), cache=open_own_cache(), jobs=1, progress=Silent()
    )
    made = onnx.load(execution.artifacts[plan.steps[first].id].path / MODEL)
    assert [n.op_type for n in made.graph.node] == ["HardSwish", "Conv"]
