"""What every backend keeps to, whichever provider it is about."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx
import pytest
from edgepack.backends.base import THREADS, Misfit, Refusal, predict
from edgepack.backends.registry import BACKENDS
from edgepack.errors import ModelError
from edgepack.model.facts import TensorSpec
from edgepack.model.graph import Graph, Node, make_partitioned_graph, read_graph
from edgepack.ondevice.runtime.edgepack_names import (
    PLUGINS,
    PROVIDER_OPTIONS,
    find_provider_option_problem,
)
from edgepack.project.profile import DeviceKind, Dialect, Provider, Variant
from edgepack.steps.graph.rewritten import REWRITES
from edgepack.steps.recipes.recipes import RECIPES
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import conv_net

NAMES = sorted(BACKENDS)
NEEDED = {"qnn": {"soc_model": "43", "enable_htp_fp16_precision": "1"}}
"""Options without which a provider runs no float models."""
DEVICE = DeviceKind(os="linux", arch="aarch64", python=">=3.11")
FLOAT = TensorProto.FLOAT
LARGE = ("light_vgg19.onnx",)
"""Makes 500 MB of weights while it loads, for eleven seconds, and has no operator of its own."""
every_backend = pytest.mark.parametrize("name", NAMES)


def variant_of(name: str, recipe: str = "fp32", dialect: Dialect | None = None) -> Variant:
    providers = [Provider(name=BACKENDS[name].provider, options=NEEDED.get(name, {}))]
    if name != "cpu":
        providers.append(Provider(name="CPUExecutionProvider"))
    return Variant(
        id=f"{name}-{recipe}", backend=name, recipe=recipe, dialect=dialect, providers=providers
    )


def value(name: str, dtype: int | None = FLOAT, shape: list | None = None):
    made = helper.make_tensor_value_info(name, dtype or FLOAT, shape)
    if dtype is None:
        made.ClearField("type")
    return made


def graph_of(nodes, inputs, outputs, *, opset: int | None = 17, more=()) -> Graph:
    imports = [helper.make_opsetid(domain, 1) for domain in more]
    imports += [helper.make_opsetid("", opset)] if opset is not None else []
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs))
    del model.opset_import[:]
    model.opset_import.extend(imports)
    return read_graph(model)


def branches() -> onnx.NodeProto:
    bodies = {}
    for key in ("then_branch", "else_branch"):
        node = helper.make_node("Neg", ["x"], [f"{key}_y"])
        bodies[key] = helper.make_graph([node], key, [], [value(f"{key}_y")])
    return helper.make_node("If", ["c"], ["y"], "if", **bodies)


def odd_graphs() -> dict[str, Graph]:
    relu = helper.make_node("Relu", ["x"], ["y"], "relu")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], "conv")
    dynamic = value("x", shape=["n", 3, "h", None])
    return {
        "empty": graph_of([], [value("x", shape=[1])], [value("x", shape=[1])]),
        "no shapes": graph_of([conv], [value("x"), value("w")], [value("y")]),
        "no types": graph_of([relu], [value("x", None)], [value("y", None)]),
        "no opset": graph_of([relu], [value("x", shape=[1])], [value("y")], opset=None),
        "opset of the future": graph_of([relu], [value("x", shape=[1])], [value("y")], opset=999),
        "old opset": graph_of([relu], [value("x", shape=[1])], [value("y")], opset=1),
        "dynamic": graph_of([conv], [dynamic, value("w")], [value("y")]),
        "scalar": graph_of([relu], [value("x", shape=[])], [value("y")]),
        "nothing in it": graph_of([relu], [value("x", shape=[0, 3])], [value("y")]),
        "strings": graph_of([relu], [value("x", TensorProto.STRING, [1])], [value("y")]),
        "branches": graph_of(
            [branches()], [value("c", TensorProto.BOOL, []), value("x", shape=[1])], [value("y")]
        ),
        "quantized by hand": graph_of(
            [
                helper.make_node("DequantizeLinear", ["x", "s"], ["f"], "dq"),
                helper.make_node("Relu", ["f"], ["r"], "relu"),
                helper.make_node("QuantizeLinear", ["r", "s", "z"], ["y"], "q"),
            ],
            [value("x", TensorProto.INT8), value("s", shape=[]), value("z", TensorProto.INT8)],
            [value("y", TensorProto.INT8)],
        ),
    }  # fmt: skip


@cache
def bare_graphs() -> dict[str, Graph]:
    """Every operator of ONNX alone, without attributes, types or shapes."""
    found = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated:
            names = tuple(f"i{place}" for place in range(schema.min_input))
            outputs = tuple(f"o{place}" for place in range(max(schema.min_output, 1)))
            node = Node(0, "n", schema.name, "", names, outputs, {})
            inputs = tuple(TensorSpec(name, "", None) for name in names)
            found[f"{schema.name} {schema.since_version}"] = Graph(
                (node,), inputs, outputs, schema.since_version, {}, {}
            )
    return found


def check(name: str, graph: Graph, variant: Variant) -> dict[int, Refusal]:
    found = BACKENDS[name].refusals(graph, variant)
    assert set(found) <= {node.index for node in graph.nodes}
    for refusal in found.values():
        assert refusal.reason
        assert refusal.remedy
    placement = predict(BACKENDS[name], graph, variant)
    assert len(placement.nodes) == len(graph.nodes)
    assert round(placement.share * len(graph.nodes)) == len(graph.nodes) - len(found)
    return found


@every_backend
def test_backend_when_read_names_what_there_is(name):
    backend = BACKENDS[name]
    assert name == backend.name
    assert "CPUExecutionProvider" in backend.providers
    assert RECIPES.keys() >= backend.recipes
    assert {"onnx", "ort-fixed", "ort-runtime"} >= backend.formats
    assert {*backend.early_rewrites, *backend.rewrites, *backend.last_rewrites} <= set(REWRITES)
    assert len(backend.shape_options) in (0, 3)
    operators = {schema.name for schema in onnx.defs.get_all_schemas()}
    named = {*backend.float32_ops, *backend.per_tensor_ops, *(g[0] for g in backend.output_grids)}
    assert named <= operators


@every_backend
def test_backend_when_it_names_options_they_are_ones_that_devices_take(name):
    backend = BACKENDS[name]
    shapes = [(option, "x:1x3x8x8") for option in backend.shape_options]
    tried = [(knob.key, value) for knob in backend.knobs for value in knob.values]
    for key, value in (*shapes, *tried):
        given = value.replace(THREADS, "4")
        assert not find_provider_option_problem(backend.provider, key, given)


def test_backends_when_held_against_the_tables_of_devices_agree():
    assert {backend.provider for backend in BACKENDS.values()} == set(PROVIDER_OPTIONS)
    plugins = {b.provider: b.plugin.replace("-", "_") for b in BACKENDS.values() if b.plugin}
    assert plugins == PLUGINS


def test_rewrites_when_counted_are_all_asked_for_by_a_backend_or_a_recipe():
    asked = {
        name
        for b in BACKENDS.values()
        for name in (*b.early_rewrites, *b.rewrites, *b.last_rewrites)
    }
    assert asked | {"smooth-norms"} == set(REWRITES)


@every_backend
def test_backend_when_asked_about_fp32_finds_no_misfit(name):
    assert "fp32" in BACKENDS[name].recipes
    device = DeviceKind(os="browser", arch="wasm32") if name == "webgpu" else DEVICE
    assert BACKENDS[name].misfits(variant_of(name), device) == []


@every_backend
def test_backend_when_asked_about_any_dialect_names_key_problem_and_hint(name):
    for activations in ("uint8", "int8", "uint16"):
        for weights in ("uint8", "int8"):
            for flags in range(8):
                dialect = Dialect(
                    activations=activations,
                    weights=weights,
                    symmetric=bool(flags & 1),
                    per_channel=bool(flags & 2),
                    bias="float32" if flags & 4 else "int32",
                )
                variant = variant_of(name, "int8-static", dialect)
                for misfit in BACKENDS[name].misfits(variant, DEVICE):
                    assert isinstance(misfit, Misfit)
                    assert misfit.key[0] in Variant.model_fields
                    assert misfit.problem
                    assert misfit.hint


@pytest.mark.parametrize("name", sorted(set(BACKENDS) - {"cpu"}))
def test_backend_when_no_operator_is_known_refuses_every_node(name):
    nodes = [helper.make_node("Nothing", ["x"], ["y"], "a", domain="test.nowhere")]
    nodes += [helper.make_node("Nowhere", ["y"], ["z"], "b", domain="test.nowhere")]
    graph = graph_of(nodes, [value("x", shape=[1])], [value("z")], more=["test.nowhere"])
    assert set(check(name, graph, variant_of(name))) == {0, 1}


@every_backend
@pytest.mark.parametrize("kind", sorted(odd_graphs()))
def test_backend_when_a_graph_is_odd_answers(name, kind):
    check(name, odd_graphs()[kind], variant_of(name))


@every_backend
def test_backend_when_operators_stand_bare_answers_for_each(name):
    for what, graph in bare_graphs().items():
        try:
            check(name, graph, variant_of(name))
        except Exception as error:
            raise AssertionError(f"{name} fails on a bare {what}") from error


@every_backend
def test_backend_when_a_graph_is_as_onnxruntime_shows_it_answers(name, tmp_path):
    check(name, make_partitioned_graph(conv_net(tmp_path / "net.onnx")), variant_of(name))


def test_backends_when_a_public_model_is_awkward_answer(shared_data):
    loaded = 0
    for path in sorted((shared_data / "awkward").rglob("*.onnx")):
        graph = None if path.name in LARGE else _graph(path)
        loaded += graph is not None
        for name in NAMES if graph else ():
            try:
                check(name, graph, variant_of(name))
            except Exception as error:
                raise AssertionError(f"{name} fails on {path.name}") from error
    assert loaded > 20


def _graph(path: Path) -> Graph | None:
    """None for what onnxruntime cannot load."""
    try:
        return make_partitioned_graph(path)
    except ModelError:
        return None
