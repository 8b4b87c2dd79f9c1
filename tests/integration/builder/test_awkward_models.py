"""What edgepack makes of models that break tools: each a proven bundle or one clear error."""

from __future__ import annotations

import pytest
from edgepack.builder.build import build
from edgepack.builder.inspect import inspect
from edgepack.bundle.reading import verify
from edgepack.errors import EdgepackError, ModelError
from edgepack.project.profile import load_profile

CANNOT_CARRY = "which bundles cannot carry"
NOT_RUN = "does not run the model"
ONNX_SIMPLE = "onnx_simple/test_"
SLOW = pytest.mark.slow(reason="takes many seconds")

BUILT = [
    "deeploy_cct2_opset20.onnx",
    "external_resnet_fp32/model.onnx",
    "genai_tiny_random_gpt2_past.onnx",
    "light/light_densenet121.onnx",
    "light/light_inception_v2.onnx",
    "light/light_shufflenet.onnx",
    "lightgbm.onnx",
    f"{ONNX_SIMPLE}sequence_model2/model.onnx",
    f"{ONNX_SIMPLE}sequence_model4/model.onnx",
    f"{ONNX_SIMPLE}sequence_model6/model.onnx",
    f"{ONNX_SIMPLE}sign_model/model.onnx",
    "ort/CNTK__test_LSTM.tanh.bidirectional__model.onnx",
    "ort/abs_0d_input.onnx",
    "ort/attention_past_state.u8s8.onnx",
    "ort/conv.int4_weights.qdq.onnx",
    "ort/conv_qdq_s8s8_perchannel.onnx",
    "ort/crop_and_resize.onnx",
    "ort/deform_conv_test.onnx",
    "ort/dummy_t5_with_sequence_input_ids.onnx",
    "ort/float8__te.cast_fp8_1_fp32.onnx",
    "ort/function_with_variadics.onnx",
    "ort/if_mul.onnx",
    "ort/input_propagated_to_output.onnx",
    "ort/layout_transform_reshape.qdq.onnx",
    "ort/matmul_integer_to_float_int8.onnx",
    "ort/mobilenet_v3_small_excerpt.onnx",
    "ort/model_with_metadata.onnx",
    "ort/multi_stream_models__simplified_ssd.onnx",
    "ort/nhwc_resize_sizes_opset18.quant.onnx",
    "ort/optional_inputs_ir3.onnx",
    "ort/ort_minimal_e2e_test_data__test_voice_commands__model.onnx",
    "ort/qdq_with_multi_consumer_dq_nodes.onnx",
    "ort/relu_with_optional.onnx",
    "ort/scan_mul.onnx",
    "ort/sklearn_bin_voting_classifier_soft.onnx",
    "ort/subgraph_implicit_input_from_initializer.onnx",
    "ort/transform__fp16model_loop.onnx",
    "ort/tree_ensemble_as_tensor.onnx",
    "polygraphy_unbounded_dds.onnx",
    "tract_qlstm.onnx",
]
"""Built, and verified afterwards."""

LONG = {
    "deeploy_cct2_opset20.onnx",
    "light/light_densenet121.onnx",
    "light/light_inception_v2.onnx",
    "light/light_shufflenet.onnx",
    "ort/multi_stream_models__simplified_ssd.onnx",
}
"""Those that take many seconds."""

OTHER_VARIANTS = {
    "deeploy_cct2_opset20.onnx": ["cpu-fp32", "cpu-int8-dynamic"],
    "ort/nhwc_resize_sizes_opset18.quant.onnx": ["cpu-int8-static"],
}
"""Those of a model of matrix products, and of one that speaks the host's int8 dialect."""

INSPECTED = [
    "external_resnet_fp32/model.onnx",
    "ort/conv_qdq_s8s8_perchannel.onnx",
    "ort/if_mul.onnx",
    "ort/optional_inputs_ir3.onnx",
    "ort/scan_mul.onnx",
    "ort/transform__fp16model_loop.onnx",
]
OTHERS = ("android", "jetson")

LARGE = "light/light_vgg19.onnx"
"""Built too; its constants take 513 MB once they are folded."""

REFUSED = {
    "deeploy_unknown_op_KeywordSpotting.onnx": "no such operator in onnxruntime: RequantShift",
    f"{ONNX_SIMPLE}expand_shape_model2/model.onnx": rf"{NOT_RUN}: node 'test' \(Expand\)",
    f"{ONNX_SIMPLE}expand_shape_model4/model.onnx": rf"{NOT_RUN}: node 'test' \(Expand\)",
    f"{ONNX_SIMPLE}gradient_of_add_and_mul/model.onnx": (
        "no such operator in onnxruntime: ai.onnx.preview.training:Gradient"
    ),
    f"{ONNX_SIMPLE}sequence_model8/model.onnx": rf"{NOT_RUN}: node '' \(SplitToSequence\)",
    f"{ONNX_SIMPLE}strnorm_model_monday_casesensintive_lower/model.onnx": (
        rf"'x' is a string, {CANNOT_CARRY}"
    ),
    f"{ONNX_SIMPLE}strnorm_model_monday_casesensintive_upper/model.onnx": (
        rf"'x' is a string, {CANNOT_CARRY}"
    ),
    f"{ONNX_SIMPLE}strnorm_model_monday_insensintive_upper_twodim/model.onnx": (
        rf"'x' is a string, {CANNOT_CARRY}"
    ),
    "ort/add_opset_314159.onnx": "the model has opset 314159; onnxruntime here",
    "ort/capi_symbolic_dims.onnx": rf"{NOT_RUN}: node 'reshape' \(Reshape\)",
    "ort/custom_op_library__custom_op_test.onnx": r"test.customop:CustomOpOne",
    "ort/custom_op_single_schema_multi_kernel.onnx": r"v2:MulTop",
    "ort/foo_bar_3.onnx": "need a library that registers them: test:FooBar_Attr",
    "ort/mlnet_encoder.onnx": rf"'C1' is a string, {CANNOT_CARRY}",
    "ort/mul_1.noopset.onnx": "does not say which operator set",
    "ort/optional_sequence_tensor.onnx": rf"'sequence' is an optional, {CANNOT_CARRY}",
    "ort/overridable_initializer.onnx": rf"'F2' is a string, {CANNOT_CARRY}",
    "ort/pipeline_vectorize.onnx": rf"'float_input' is a map, {CANNOT_CARRY}",
    "ort/sequence_insert.onnx": rf"'input_seq' is a sequence, {CANNOT_CARRY}",
    "ort/sparse_initializer_as_output.onnx": rf"'values' is a sparse_tensor, {CANNOT_CARRY}",
    "ort/test_types_BFLOAT16.onnx": rf"'input' is a bfloat16, {CANNOT_CARRY}",
    "ort/test_types_STRING.onnx": rf"'input' is a string, {CANNOT_CARRY}",
    "ort/topk_and_multiple_graph_outputs.onnx": rf"{NOT_RUN}: node 'TopK' \(TopK\)",
    "ort/transformers__tiny_gpt2_beamsearch.onnx": rf"{NOT_RUN}: node 'BeamSearch_gpt2'",
    "sklearn_treecl.onnx": rf"{NOT_RUN}: node 'TreeEnsembleClassifier'",
}
"""Inspected, and refused by the build with this reason."""

UNREADABLE = {
    "ort/model_with_external_initializer_come_from_user.onnx": (
        "'Pads_not_on_disk.bin', which is not there"
    ),
    "ort/test_arbitrary_external_file.onnx": "passwd', outside the model's folder",
    "ort/test_evil_weights.onnx": "an address in this process's memory",
    "ort/transform__runtime_optimization__qdq_convs.runtime_optimizations.ort": (
        "is an ORT-format file"
    ),
}
"""Refused by inspect and by the build, both with this reason."""


def test_table_when_compared_with_the_folder_names_every_model(shared_data):
    folder = shared_data / "awkward"
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix in (".onnx", ".ort")
    }
    assert found == {*BUILT, LARGE, *REFUSED, *UNREADABLE}


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW) if name in LONG else name for name in BUILT]
)
def test_awkward_model_when_built_is_a_proven_bundle(shared_data, tmp_path, name):
    model = shared_data / "awkward" / name
    [built] = build(model, targets=["host"], out=tmp_path, jobs=1).bundles
    expected = OTHER_VARIANTS.get(name, ["cpu-fp32"])
    assert [v.id for v in verify(built.bundle.path).manifest.variants] == expected


@pytest.mark.parametrize("name", INSPECTED)
def test_awkward_model_when_inspected_has_an_answer_for_every_variant(shared_data, name):
    found = inspect(shared_data / "awkward" / name, targets=["host", *OTHERS])
    assert found.facts.outputs
    assert len(found.variants) == sum(len(load_profile(t).variants) for t in ("host", *OTHERS))
    assert all(v.nodes or v.findings or v.unused for v in found.variants)


@pytest.mark.parametrize("name", REFUSED)
def test_awkward_model_when_refused_names_node_and_reason(shared_data, tmp_path, name):
    model = shared_data / "awkward" / name
    assert any(found.severity == "blocks" for found in inspect(model).findings)
    with pytest.raises(ModelError, match=REFUSED[name]) as caught:
        build(model, targets=["host"], out=tmp_path, jobs=1)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", UNREADABLE)
def test_awkward_model_when_unreadable_is_one_clear_error(shared_data, tmp_path, name):
    model = shared_data / "awkward" / name
    for attempt in (inspect, lambda m: build(m, targets=["host"], out=tmp_path)):
        with pytest.raises(EdgepackError, match=UNREADABLE[name]):
            attempt(model)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.in_turns
@pytest.mark.slow(reason="takes 513 MB")
def test_model_that_grows_when_built_is_a_proven_bundle(shared_data, tmp_path):
    [built] = build(shared_data / "awkward" / LARGE, targets=["host"], out=tmp_path).bundles
    assert verify(built.bundle.path).manifest.variants
