"""The settings that edgepack takes for onnxruntime's, and how it says that one is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest
from edgepack.ondevice.runtime.edgepack_names import (
    EFFECTLESS,
    OPENVINO_PRECISIONS,
    OPENVINO_PROPERTIES,
    PROVIDER_OPTIONS,
    SESSION_KEYS,
    find_provider_option_problem,
    find_session_key_problem,
)
from hypothesis import given
from hypothesis import strategies as st

CHECKED_VERSION = "1.31.1"
NOT_IN_THE_WHEEL = {
    "ep.context_node_name_prefix",
    "ep.nnapi.partitioning_stop_ops",
    "ep.share_ep_contexts",
    "ep.stop_share_ep_contexts",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
    "session.model_external_initializers_file_folder_path",
}
"""Split by the compiler, or for other processors and systems."""


def test_session_keys_when_looked_up_in_onnxruntime_are_there():
    if importlib.metadata.version("onnxruntime") != CHECKED_VERSION:
        pytest.skip(f"the names are those of onnxruntime {CHECKED_VERSION}")
    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    [library] = (Path(spec.origin).parent / "capi").glob("onnxruntime_pybind11_state*.so")
    content = library.read_bytes()
    known = {*SESSION_KEYS, *EFFECTLESS} - NOT_IN_THE_WHEEL
    assert [key for key in sorted(known) if key.encode() not in content] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.intra_op.allow_spinning", "0"),
        ("session.enable_saved_runtime_optimizations", "1"),
        ("session.load_model_format", "ORT"),
        ("session.intra_op_thread_affinities", "1-2;3,4"),
        ("session.dynamic_block_base", "4"),
        ("optimization.minimal_build_optimizations", ""),
        ("optimization.disable_specified_optimizers", "GeluFusion,ConvActivationFusion"),
        ("ep.nnapi.partitioning_stop_ops", ""),
        ("ep.context_file_path", "{cache}/model_ctx.onnx"),
    ],
)
def test_session_key_when_known_has_no_problem(key: str, value: str):
    assert find_session_key_problem(key, value) == ""


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("session.intra_op.allow_spining", "0", "is it 'session.intra_op.allow_spinning'?"),
        ("Session.X64QuantPrecision", "1", "is it 'session.x64quantprecision'?"),
        ("graph_optimization_level", "99", "knows no session config key"),
        ("session.graph_optimization_level", "99", "it has no effect"),
        ("session.enable_profiling", "1", "it has no effect"),
        ("session.intra_op_num_threads", "4", "set intra_op_num_threads beside the config"),
        ("session.disable_cpu_ep_fallback", "true", "is 'true': it takes 0 or 1"),
        ("session.load_model_format", "ort", "is 'ort': it takes ONNX or ORT"),
        ("session.dynamic_block_base", "-1", "it takes a whole number"),
        ("session.dynamic_block_base", "4\n", "it takes a whole number"),
        ("session.disable_prepacking", "", "it takes 0 or 1"),
    ],
)
def test_session_key_when_wrong_is_explained(key: str, value: str, said: str):
    assert said in find_session_key_problem(key, value)


@pytest.mark.parametrize(
    ("provider", "key", "value"),
    [
        ("TensorrtExecutionProvider", "trt_fp16_enable", "True"),
        ("TensorrtExecutionProvider", "trt_engine_cache_path", "{cache}"),
        ("TensorrtExecutionProvider", "trt_profile_min_shapes", "a:1x3x8x8,b:1"),
        ("TensorrtExecutionProvider", "trt_tactic_sources", "-CUDNN,+CUBLAS"),
        ("CUDAExecutionProvider", "cudnn_conv_algo_search", "HEURISTIC"),
        ("CUDAExecutionProvider", "use_tf32", "0"),
        ("OpenVINOExecutionProvider", "device_type", "GPU.1"),
        ("OpenVINOExecutionProvider", "device_type", "AUTO:GPU,CPU"),
        ("OpenVINOExecutionProvider", "load_config", '{"CPU": {"CACHE_DIR": "{cache}"}}'),
        ("QNNExecutionProvider", "htp_performance_mode", "burst"),
        ("CoreMLExecutionProvider", "MLComputeUnits", "ALL"),
        ("NnapiExecutionProvider", "USE_FP16", "1"),
        ("XnnpackExecutionProvider", "intra_op_num_threads", "4"),
        ("ACLExecutionProvider", "enable_fast_math", "false"),
    ],
)
def test_provider_option_when_known_has_no_problem(provider: str, key: str, value: str):
    assert find_provider_option_problem(provider, key, value) == ""


@pytest.mark.parametrize(
    ("provider", "key", "value", "said"),
    [
        ("TensorrtExecutionProvider", "trt_fp16_enable", "1", "it takes True or False"),
        ("TensorrtExecutionProvider", "trt_fp16", "True", "is it 'trt_fp16_enable'?"),
        ("TensorrtExecutionProvider", "zzz", "True", "has no option 'zzz'"),
        ("TensorRTExecutionProvider", "device_id", "0", "is it 'TensorrtExecutionProvider'?"),
        ("CPUExecutionProvider", "threads", "4", "has no options: remove 'threads'"),
        ("XnnpackExecutionProvider", "nthr", "4", "there are intra_op_num_threads"),
        ("OpenVINOExecutionProvider", "load_config", "/etc/ov.json", "a JSON object of objects"),
        ("OpenVINOExecutionProvider", "load_config", "{CPU: {}}", "a JSON object of objects"),
        ("OpenVINOExecutionProvider", "load_config", '{"NUM_STREAMS": "1"}', "object of objects"),
        ("OpenVINOExecutionProvider", "enable_qdq_optimizer", "1", "it takes True or False"),
        ("CoreMLExecutionProvider", "MLComputeUnits", "All", "it takes ALL or CPUOnly"),
        ("CoreMLExecutionProvider", "modelformat", "MLProgram", "is it 'ModelFormat'?"),
        ("QNNExecutionProvider", "backend_type", "npu", "it takes cpu or gpu or htp"),
    ],
)
def test_provider_option_when_wrong_is_explained(provider: str, key: str, value: str, said: str):
    assert said in find_provider_option_problem(provider, key, value)


@given(st.sampled_from(sorted(SESSION_KEYS)), st.integers(0, 200))
def test_session_key_when_a_letter_is_doubled_is_a_problem_that_names_it(key: str, place: int):
    place %= len(key)
    misspelt = key[:place] + key[place] + key[place:]
    problem = find_session_key_problem(misspelt, "1")
    assert problem.startswith("onnxruntime knows no session config key")
    assert "is it " in problem


def test_openvino_options_that_the_plugin_has_as_properties_are_options():
    options = PROVIDER_OPTIONS["OpenVINOExecutionProvider"]
    assert set(OPENVINO_PROPERTIES) < set(options)
    for precision in OPENVINO_PRECISIONS:
        assert (
            find_provider_option_problem("OpenVINOExecutionProvider", "precision", precision) == ""
        )
