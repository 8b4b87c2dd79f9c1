"""The settings that onnxruntime and its execution providers know, with the values they take.

onnxruntime silently accepts a misspelt session config key. Several providers silently accept a
misspelt option, and others then leave the session to the CPU. So only edgepack can report the
error. The names are compared on the host, where profiles are read, and by the loader on the device.

Sources, all checked 2026-11-21:

- Session config keys: every name is a string in the onnxruntime 1.31.1 wheel for x86-64 Linux,
  those apart that its compiler split (they are marked). Values: the stored
  ``onnxruntime_session_options_config_keys.h`` of about 1.23, and trials with 1.31.1.
- ``TensorrtExecutionProvider``, ``CUDAExecutionProvider``: strings of the onnxruntime-gpu 1.31.1
  wheel; values of the former are what its Python module demands in its error messages, and those
  of the latter from ``cuda_execution_provider_info.cc`` (about 1.20). Not tried on hardware.
- ``CoreMLExecutionProvider``: strings of the onnxruntime 1.31.1 wheel for macOS; values from the
  header of 1.24. Not tried on hardware.
- ``OpenVINOExecutionProvider``: strings of onnxruntime-openvino 1.24.1 and trials with it on a CPU;
  the plugin's properties are what onnxruntime-ep-openvino 1.8.1 says in its warnings.
- ``QNNExecutionProvider``: strings of the onnxruntime-qnn 2.7.0 wheel for aarch64 Linux; values
  from onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html. Not tried on hardware.
- ``NnapiExecutionProvider`` (flags of ``nnapi_provider_factory.h``), ``XnnpackExecutionProvider``,
  ``ACLExecutionProvider``: source of onnxruntime 1.24. Not tried on hardware.
- ``WebGpuExecutionProvider``: bundles give it no options.

Needs Python 3.8 or newer, and nothing else.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Dict, Iterable, NamedTuple


class Values(NamedTuple):
    """The values that a name takes."""

    pattern: str
    """A regular expression for the whole value."""
    words: str
    """The same in words, after "it takes"."""


def _one_of(*values: str) -> Values:
    return Values("|".join(re.escape(value) for value in values), " or ".join(values))


AFFINITIES = "session.intra_op_thread_affinities"
"""The session config key with the processors of each thread but the calling one, counted from 1,
behind a ``;`` each. With 0 threads, the default, onnxruntime binds one thread to each physical
core; with a number it binds none. Source:
onnxruntime.ai/docs/performance/tune-performance/threading.html; a processor that is not there
leaves the thread unbound (1.31.1, tried)."""
FLAG = _one_of("0", "1")
SPELT_FLAG = Values("True|true|False|false", "True or False")
ANY_FLAG = Values("0|1|True|true|False|false", "0 or 1")
COUNT = Values(r"\d+", "a whole number")
NUMBER = Values(r"-?\d+", "a whole number, which may be negative")
TEXT = Values(r"[\s\S]+", "some text")
FOLDER = Values(r"[\s\S]+", "a folder")
FILE = Values(r"[\s\S]+", "a file")
JSON_OBJECT = Values(
    r"\s*\{[\s\S]*\}\s*", "the text of a JSON object of objects, not a file's path"
)
SHAPES = Values(r"[^:,\s]+:\d+(x\d+)*(,[^:,\s]+:\d+(x\d+)*)*", "name:1x3x224x224, joined by commas")

_FLAG_KEYS = [
    "ep.context_embed_mode",
    "ep.context_enable",
    "ep.cuda.fpa_intb_gemm",
    "ep.enable_weightless",
    "mlas.disable_kleidiai",
    "mlas.qnbit.force_fp32",
    "mlas.use_lut_gemm",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "session.allow_released_opsets_only",
    "session.compile_only",
    "session.debug_layout_transformation",
    "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback",
    "session.disable_double_qdq_remover",
    "session.disable_model_compile",
    "session.disable_prepacking",
    "session.disable_qdq_constant_folding",
    "session.disable_quant_qdq",
    "session.enable_dq_matmulnbits_fusion",
    "session.enable_moe_expert_counting",
    "session.enable_moe_expert_statistics",
    "session.enable_quant_qdq_cleanup",
    "session.enable_saved_runtime_optimizations",
    "session.fail_on_suboptimal_compiled_model",
    "session.force_spinning_stop",
    "session.inter_op.allow_spinning",
    "session.intra_op.allow_spinning",
    "session.prepack.enable_parallel",
    "session.qdqisint8allowed",
    "session.record_ep_graph_assignment_info",
    "session.set_denormal_as_zero",
    "session.strict_shape_type_inference",
    "session.strict_workspace_verification",
    "session.use_device_allocator_for_initializers",
    "session.use_external_initializer_file_buffers_directly",
    "session.use_memory_mapped_ort_model",
    "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers",
    "session.x64quantprecision",
]

# In the header, but the wheel for x86-64 Linux has no such string: the compiler split it, or the
# key is for other processors or systems.
_FLAG_KEYS_ELSEWHERE = [
    "ep.share_ep_contexts",
    "ep.stop_share_ep_contexts",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
]

SESSION_KEYS: Dict[str, Values] = {
    **dict.fromkeys(_FLAG_KEYS, FLAG),
    **dict.fromkeys(_FLAG_KEYS_ELSEWHERE, FLAG),
    "ep.context_file_path": FILE,
    "ep.context_model_external_initializers_file_name": FILE,
    "ep.context_node_name_prefix": TEXT,  # split by the compiler
    "ep.cuda.fpa_intb_profile_m": TEXT,
    "ep.cuda.gqa_workspace_max_total_sequence_length": COUNT,
    "ep.nnapi.partitioning_stop_ops": Values(r"[\w,]*", "operators, joined by commas"),  # Android
    "mlas.kleidiai.conv_igemm_max_work": COUNT,
    "mlas.nchwc_depthwise_sliding": TEXT,
    "mlas.nchwc_pointwise_conv_max_input_channel_batch": COUNT,
    "optimization.constant_folding_max_output_size_in_bytes": COUNT,
    "optimization.disable_specified_optimizers": TEXT,
    "optimization.minimal_build_optimizations": Values("|save|apply", "save or apply"),
    "session.collect_node_memory_stats_to_file": FILE,
    "session.dynamic_block_base": COUNT,
    "session.function_expansion_byte_limit": COUNT,
    "session.function_expansion_node_limit": COUNT,
    "session.gqa_value_layout": _one_of("BNSH", "BNHS"),
    "session.graph_optimizations_loop_level": _one_of("0", "1", "2"),
    "session.inter_op.spin_backoff_max": COUNT,
    "session.inter_op.spin_duration_us": COUNT,
    "session.intra_op.spin_backoff_max": COUNT,
    "session.intra_op.spin_duration_us": COUNT,
    AFFINITIES: Values(r"[\d,;-]+", "processor numbers from 1, those of each thread behind a ';'"),
    "session.layer_assignment_settings": TEXT,
    # Any other text, "ort" for one, is silently read as ONNX (1.31.1, tried).
    "session.load_model_format": _one_of("ONNX", "ORT"),
    "session.max_shape_override": TEXT,
    "session.model_external_initializers_file_folder_path": FOLDER,  # split by the compiler
    "session.moe_expert_counter_alpha": TEXT,
    "session.moe_expert_counter_beta": TEXT,
    "session.moe_expert_counter_state_file": FILE,
    "session.name_based_layer_assignment": TEXT,
    "session.node_partition_config_file": FILE,
    "session.qdq_matmulnbits_accuracy_level": NUMBER,
    "session.qdq_matmulnbits_block_size": NUMBER,
    "session.resource_cuda_partitioning_settings": TEXT,
}
"""Session config keys with what they take."""

_PACKAGE_ONLY = "onnxruntime reads it in its model packages only; as a session config key"
_EFFECTLESS_KEYS = [
    "session.enable_profiling",
    "session.log_id",
    "session.log_verbosity_level",
    "session.optimized_model_filepath",
    "session.use_deterministic_compute",
    "session.use_per_session_threads",
]
_SETTINGS = [
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "execution_mode",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
]
_SAVING_KEYS = [
    "session.optimized_model_external_initializers_file_name",
    "session.optimized_model_external_initializers_min_size_in_bytes",
    "session.save_external_prepacked_constant_initializers",
    "session.save_model_format",
]
EFFECTLESS: Dict[str, str] = {
    **dict.fromkeys(_EFFECTLESS_KEYS, f"{_PACKAGE_ONLY} it has no effect"),
    **{
        f"session.{name}": f"{_PACKAGE_ONLY} it has no effect: set {name} beside the config"
        for name in _SETTINGS
    },
    **dict.fromkeys(_SAVING_KEYS, "it is for sessions that save their model, which no loader does"),
    "session.use_env_allocators": "no loader registers an allocator that sessions could share",
    "memory.enable_memory_arena_shrinkage": "it is a run option; in a session it has no effect",
}
"""Strings of onnxruntime that look like session config keys, and why they do nothing in a bundle.

Source: with enable_profiling, optimized_model_filepath, intra_op_num_threads or log_severity_level
set so, nothing changes (1.31.1, tried 2026-11-21); README.md of
onnxruntime/core/session/model_package says where they are read. The comments of
onnxruntime_session_options_config_keys.h say what is for saving, and for shared allocators.
"""

_TENSORRT_FLAGS = [
    "trt_bf16_enable",
    "trt_build_heuristics_enable",
    "trt_context_memory_sharing_enable",
    "trt_cuda_graph_enable",
    "trt_detailed_build_log",
    "trt_dla_enable",
    "trt_dump_ep_context_model",
    "trt_dump_subgraphs",
    "trt_engine_cache_enable",
    "trt_engine_decryption_enable",
    "trt_engine_hw_compatible",
    "trt_force_sequential_engine_build",
    "trt_force_timing_cache",
    "trt_fp16_enable",
    "trt_int8_enable",
    "trt_int8_use_native_calibration_table",
    "trt_layer_norm_fp32_fallback",
    "trt_load_user_initializer",
    "trt_sparsity_enable",
    "trt_timing_cache_enable",
    "trt_weight_stripped_engine_enable",
]

# Python's module throws at "1": "should be 'True' or 'False'" (1.23.2 and 1.31.1 alike); C++ takes
# both.
_TENSORRT_FLAG = Values(SPELT_FLAG.pattern, "True or False (Python refuses 1 and 0)")

_CUDA_FLAGS = [
    "cudnn_conv1d_pad_to_nc1d",
    "cudnn_conv_use_max_workspace",
    "do_copy_in_default_stream",
    "enable_cuda_graph",
    "enable_cudnn",
    "enable_skip_layer_norm_strict_mode",
    "fuse_conv_bias",
    "prefer_nhwc",
    "tunable_op_enable",
    "tunable_op_tuning_enable",
    "use_ep_level_unified_stream",
    "use_tf32",
]

_QNN_FLAGS = [
    "disable_file_mapped_weights",
    "dump_json_qnn_graph",
    "dump_qnn_ep_input_graph",
    "dump_qnn_ir_dlc",
    "enable_block_quant_weight_optimization",
    "enable_framework_op_trace",
    "enable_htp_fp16_clamp_overflow",
    "enable_htp_fp16_precision",
    "enable_htp_graph_splitting",
    "enable_htp_monolithic_lstm",
    "enable_htp_prepare_and_load",
    "enable_htp_prepare_only",
    "enable_htp_shared_memory_allocator",
    "enable_htp_spill_fill_buffer",
    "enable_vtcm_backup_buffer_sharing",
    "extended_udma",
    "htp_bf16_enable",
    "offload_graph_io_quantization",
    "skip_backend_op_validation",
    "skip_qnn_version_check",
]

_OPENVINO_FLAGS = [
    "disable_dynamic_shapes",
    "enable_causallm",
    "enable_opencl_throttling",
    "enable_qdq_optimizer",
]

PROVIDER_OPTIONS: Dict[str, Dict[str, Values]] = {
    "CPUExecutionProvider": {},
    "WebGpuExecutionProvider": {},
    "TensorrtExecutionProvider": {
        **dict.fromkeys(_TENSORRT_FLAGS, _TENSORRT_FLAG),
        "device_id": COUNT,
        "trt_auxiliary_streams": NUMBER,
        "trt_builder_optimization_level": Values("[0-5]", "a number from 0 to 5"),
        "trt_dla_core": COUNT,
        "trt_engine_cache_path": FOLDER,
        "trt_engine_cache_prefix": TEXT,
        "trt_engine_decryption_lib_path": FILE,
        "trt_ep_context_embed_mode": FLAG,
        "trt_ep_context_file_path": FILE,
        "trt_extra_plugin_lib_paths": FILE,
        "trt_int8_calibration_table_name": FILE,
        "trt_max_partition_iterations": COUNT,
        "trt_max_workspace_size": COUNT,
        "trt_min_subgraph_size": COUNT,
        "trt_onnx_model_folder_path": FOLDER,
        "trt_op_types_to_exclude": TEXT,
        "trt_preview_features": TEXT,
        "trt_profile_max_shapes": SHAPES,
        "trt_profile_min_shapes": SHAPES,
        "trt_profile_opt_shapes": SHAPES,
        "trt_tactic_sources": Values(r"[+-][A-Z_]+(,[+-][A-Z_]+)*", "such as -CUDNN,+CUBLAS"),
        "trt_timing_cache_path": FOLDER,
    },
    "CUDAExecutionProvider": {
        **dict.fromkeys(_CUDA_FLAGS, ANY_FLAG),
        "arena_extend_strategy": _one_of("kNextPowerOfTwo", "kSameAsRequested"),
        "cudnn_conv_algo_search": _one_of("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
        "device_id": COUNT,
        "gpu_mem_limit": COUNT,
        "sdpa_kernel": COUNT,
        "tunable_op_max_tuning_duration_ms": COUNT,
    },
    "OpenVINOExecutionProvider": {
        # At "1" the provider leaves the session to the CPU (1.24.1, tried).
        **dict.fromkeys(_OPENVINO_FLAGS, SPELT_FLAG),
        "cache_dir": FOLDER,
        "device_id": TEXT,
        "device_luid": TEXT,
        "device_type": Values(
            r"(CPU|GPU|NPU)(\.\d+)?|(AUTO|HETERO|MULTI|BATCH)(:\S+)?",
            "CPU, GPU, GPU.0, NPU, or AUTO:, HETERO: or MULTI: with a list",
        ),
        "layout": TEXT,
        "load_config": JSON_OBJECT,
        "model_priority": _one_of("LOW", "MEDIUM", "HIGH", "DEFAULT"),
        "num_of_threads": COUNT,
        "num_streams": Values("[1-8]", "a number from 1 to 8"),
        "precision": _one_of("FP32", "FP16", "ACCURACY"),
        "reshape_input": TEXT,
    },
    "QNNExecutionProvider": {
        **dict.fromkeys(_QNN_FLAGS, FLAG),
        "backend_path": FILE,
        "backend_type": _one_of("cpu", "gpu", "htp", "saver", "ir"),
        "device_id": COUNT,
        "dump_qnn_ep_input_graph_dir": FOLDER,
        "dump_qnn_ir_dlc_dir": FOLDER,
        "framework_op_trace_dir": FOLDER,
        "htp_arch": COUNT,
        "htp_graph_finalization_optimization_mode": Values("[0-3]", "a number from 0 to 3"),
        "htp_graph_splitting_num_prepare_threads": COUNT,
        "htp_performance_mode": _one_of(
            "default",
            "burst",
            "balanced",
            "high_performance",
            "high_power_saver",
            "low_balanced",
            "low_power_saver",
            "power_saver",
            "extreme_power_saver",
            "sustained_high_performance",
        ),
        "htp_reused_io_limit_mb": COUNT,
        "htp_share_resource_optimization": TEXT,
        "json_qnn_graph_dir": FOLDER,
        "num_graph_prepare_threads": COUNT,
        "op_packages": TEXT,
        "profiling_file_path": FILE,
        "profiling_level": _one_of("off", "basic", "detailed", "optrace"),
        "qnn_context_priority": _one_of("low", "normal", "normal_high", "high"),
        "qnn_ir_backend_path": FILE,
        "qnn_saver_path": FILE,
        "rpc_control_latency": COUNT,
        "soc_model": COUNT,
        "vtcm_mb": COUNT,
    },
    "CoreMLExecutionProvider": {
        "AllowLowPrecisionAccumulationOnGPU": FLAG,
        "EnableOnSubgraphs": FLAG,
        "MLComputeUnits": _one_of("ALL", "CPUOnly", "CPUAndGPU", "CPUAndNeuralEngine"),
        "ModelCacheDirectory": FOLDER,
        "ModelFormat": _one_of("MLProgram", "NeuralNetwork"),
        "ProfileComputePlan": FLAG,
        "RequireStaticInputShapes": FLAG,
        "SpecializationStrategy": _one_of("Default", "FastPrediction"),
    },
    # NNAPI has flags instead of options: these are edgepack's words for them. Python sets none.
    "NnapiExecutionProvider": {
        "CPU_DISABLED": FLAG,
        "CPU_ONLY": FLAG,
        "USE_FP16": FLAG,
        "USE_NCHW": FLAG,
    },
    "XnnpackExecutionProvider": {"intra_op_num_threads": COUNT},
    "ACLExecutionProvider": {"enable_fast_math": SPELT_FLAG},
}
"""By execution provider, its options with what they take; without those that take a pointer."""

PLUGINS: Dict[str, str] = {
    "OpenVINOExecutionProvider": "onnxruntime_ep_openvino",
    "QNNExecutionProvider": "onnxruntime_qnn",
}
"""By execution provider, the Python package that brings it as a library beside onnxruntime.

Both have ``get_library_path()`` and ``get_ep_name()`` (onnxruntime-ep-openvino 1.8.1,
onnxruntime-qnn 2.7.0). onnxruntime itself may hold the provider instead: the classic
onnxruntime-openvino, or a user's own build.
"""

OPENVINO_PROPERTIES: Dict[str, str] = {
    "cache_dir": "CACHE_DIR",
    "num_of_threads": "INFERENCE_NUM_THREADS",
    "num_streams": "NUM_STREAMS",
    "model_priority": "MODEL_PRIORITY",
}
"""The classic provider's options that the plugin takes as a property of the device.

Source: the plugin warns of each "set it via the load_config as ..."; the CPU takes CACHE_DIR,
INFERENCE_NUM_THREADS and NUM_STREAMS, and refuses MODEL_PRIORITY (onnxruntime-ep-openvino 1.8.1,
tried under emulation 2026-11-21).
"""

OPENVINO_PRECISIONS: Dict[str, Dict[str, str]] = {
    "FP32": {"INFERENCE_PRECISION_HINT": "f32"},
    "FP16": {"INFERENCE_PRECISION_HINT": "f16"},
    "ACCURACY": {"EXECUTION_MODE_HINT": "ACCURACY"},
}
"""The same for the values of the classic provider's ``precision``; the CPU takes all three."""


def find_session_key_problem(key: str, value: str) -> str:
    """Return what is wrong with a session config entry, or nothing if it is fine."""
    if key in EFFECTLESS:
        return f"{key!r} does nothing as a session config key: {EFFECTLESS[key]}"
    if key not in SESSION_KEYS:
        known = _suggest_nearest(key, SESSION_KEYS)
        return f"onnxruntime knows no session config key {key!r}{known}"
    return _find_value_problem(f"the session config key {key!r}", SESSION_KEYS[key], value)


def find_provider_option_problem(provider: str, key: str, value: str) -> str:
    """Return what is wrong with an option of an execution provider, or nothing if it is fine.

    OpenVINO's options are the classic provider's; the loader translates them for the plugin.
    """
    if provider not in PROVIDER_OPTIONS:
        known = _suggest_nearest(provider, PROVIDER_OPTIONS)
        return f"edgepack knows no execution provider {provider!r}, so no options of it{known}"
    options = PROVIDER_OPTIONS[provider]
    if not options:
        return f"{provider} has no options: remove {key!r}"
    if key not in options:
        return f"{provider} has no option {key!r}{_suggest_nearest(key, options)}"
    return _find_value_problem(f"{provider}'s option {key!r}", options[key], value)


def _find_value_problem(subject: str, values: Values, value: str) -> str:
    fits = re.fullmatch(values.pattern, value) and (
        values is not JSON_OBJECT or _is_object_of_objects(value)
    )
    return "" if fits else f"{subject} is {value!r}: it takes {values.words}"


def _is_object_of_objects(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and all(isinstance(value, dict) for value in found.values())


def _suggest_nearest(name: str, known: Iterable[str]) -> str:
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    if near:
        return f": is it {by_lower[near[0]]!r}?"
    few = sorted(by_lower.values())
    return f": there are {', '.join(few)}" if len(few) <= 12 else ""
