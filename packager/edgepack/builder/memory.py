"""Estimates a build's memory before it begins: good enough to tell 1 GB from 4 GB apart."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.machine import count_cores, read_available_memory
from edgepack.model.workload import ActivationSizes
from edgepack.steps.recipes.kind import MODEL_COPIES
from edgepack.steps.recipes.recipes import RECIPES

MAIN_BYTES = 65_000_000
"""Memory of the process that plans, starts workers and writes bundles."""
WORKER_BYTES = 85_000_000
"""Memory of a worker with numpy, onnx and onnxruntime, before it loads a model."""
_CALIBRATING = 4
"""Processes of one calibration, at most (``quantization/ranges/collecting.py``)."""
_SHARED_BYTES = 5_000_000
"""Bytes of a sample's activations above which several processes calibrate, with a hundred
samples."""


@dataclass(frozen=True)
class Subject:
    """The model that a build is about."""

    path: Path
    sizes: Mapping[str, int]
    """The sizes of its symbolic dimensions, as far as the project sets them; the largest of
    several."""
    weights: int
    """Bytes."""
    steps: frozenset[str]
    """Names of the steps that the build has."""


def estimate_step_bytes(name: str, models: int, activations: ActivationSizes) -> int:
    """Return about how many bytes the processes of one step take.

    Measured with onnxruntime 1.31.1 on x86-64, 2026-11-23: a plain run of a network whose live
    activations are 151 MB took 150 MB besides the worker, its calibration, of 528 MB in all, 500 MB
    in each process, for a sample is counted while the next one is run. Rounding its weights took
    570 MB; int8-dynamic of 340 MB of weights took 1.6 GB, int8-static of 101 MB (six Gemm of
    2048 x 2048) up to 2.0 GB. The errors of layers are found from all tensors of two models.

    Args:
        name: The step's name.
        models: Size of the models that it takes.
        activations: Bytes of one sample's activations.
    """
    kind = RECIPES.get(name)
    held = WORKER_BYTES + (kind.weight_copies if kind else MODEL_COPIES) * models
    if name == "calibration":
        shared = activations.total_bytes >= _SHARED_BYTES
        processes = min(count_cores(), _CALIBRATING) if shared else 1
        return processes * (held + activations.total_bytes)
    if kind and kind.holds_activations:
        return held + activations.total_bytes
    if name == "layer-errors":
        return held + 2 * activations.total_bytes
    return held + activations.live_bytes


def estimate_bytes(subject: Subject, activations: ActivationSizes, jobs: int) -> int:
    """Return about how many bytes a build takes at its peak, all its processes together.

    The estimate assumes that the largest step runs beside as many plain ones as ``jobs`` allows.

    Args:
        subject: What is built.
        activations: Bytes of one sample's activations.
        jobs: How many steps run at the same time.
    """
    plain = estimate_step_bytes("", subject.weights, activations)
    largest = max(estimate_step_bytes(name, subject.weights, activations) for name in subject.steps)
    return MAIN_BYTES + largest + (jobs - 1) * plain


def count_default_jobs() -> int:
    """Return how many steps of a build run at the same time by default."""
    return min(os.cpu_count() or 1, 4)


def format_memory(needed: int) -> str:
    """Return in a line what a build needs, with what to do where the machine has less."""
    text = f"a build needs about {format_gigabytes(needed)} of memory"
    free = read_available_memory()
    if needed <= free:
        return text
    return (
        f"{text}, and {format_gigabytes(free)} are available: try --jobs 1, smaller sizes"
        " in 'dims' of"
        " edgepack.yaml, or another machine"
    )


def format_gigabytes(size: int) -> str:
    """Return a size in GB with one digit behind the point, rounded up."""
    return f"{-(-size // 100_000_000) / 10:.1f} GB"
