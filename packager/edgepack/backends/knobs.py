"""The options of execution providers that change how fast they are, and not what they compute.

``edgepack tune`` tries their values on a device. An option is here only if the golden outputs can
tell whether a value is right: those that trade accuracy away (``use_tf32``, ``trt_fp16_enable``,
``precision``, ``enable_fast_math``) are the variant's business and not tuned.

Names and values are held against :mod:`~edgepack.ondevice.runtime.edgepack_names`, which has their
sources. Not tried on hardware: all but the CPU's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgepack.project.profile import BackendName


@dataclass(frozen=True)
class Knob:
    """One option of a backend's provider."""

    key: str
    values: tuple[str, ...]
    """What is tried beside the default. :data:`THREADS` stands for each number of threads."""
    source: str
    """What it does and where that is written."""
    device_type: str = ""
    """The only one with which the option does anything, where the provider has several."""


THREADS = "{threads}"

KNOBS: Mapping[BackendName, tuple[Knob, ...]] = {
    "acl": (),
    "coreml": (
        Knob(
            "SpecializationStrategy",
            ("FastPrediction",),
            "compiles for low latency at the cost of a slower load:"
            " onnxruntime.ai/docs/execution-providers/CoreML-ExecutionProvider.html",
        ),
    ),
    "cpu": (),
    "cuda": (
        Knob(
            "cudnn_conv_algo_search",
            ("HEURISTIC", "DEFAULT"),
            "how convolution algorithms are chosen; EXHAUSTIVE is the default:"
            " onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html",
        ),
        Knob(
            "prefer_nhwc",
            ("1",),
            "convolutions in NHWC; 0 is the default: the same page",
        ),
    ),
    "nnapi": (),
    "openvino": (
        Knob(
            "num_of_threads",
            (THREADS,),
            "limits inference threads on the CPU:"
            " onnxruntime.ai/docs/execution-providers/OpenVINO-ExecutionProvider.html",
            device_type="CPU",
        ),
    ),
    "qnn": (
        Knob(
            "htp_performance_mode",
            ("burst", "sustained_high_performance", "high_performance", "balanced"),
            "clocks and voltages of the HTP:"
            " onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html",
        ),
        Knob(
            "htp_graph_finalization_optimization_mode",
            ("2", "3"),
            "longer preparation for a better graph; 0 is the default, and 1 prepares faster for a"
            " worse one: the same page",
        ),
    ),
    "tensorrt": (
        Knob(
            "trt_builder_optimization_level",
            ("4", "5"),
            "how long the builder looks for tactics; 3 is the default, and less is for faster"
            " builds:"
            " onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html",
        ),
        Knob(
            "trt_auxiliary_streams",
            ("0",),
            "streams beside the main one; -1, the default, leaves it to heuristics: the same page",
        ),
    ),
    "xnnpack": (
        Knob(
            "intra_op_num_threads",
            (THREADS,),
            "threads of its own pool; 0, the default, takes as many as the session has:"
            " xnnpack_execution_provider.cc and .h in onnxruntime (the documentation says 1)",
        ),
    ),
}
"""By backend; every combination of their values is tried, each option's absence included."""
