"""Runs models with onnxruntime on this machine's CPU, as the reference for everything else.

Everything here loads onnxruntime: call it in worker processes only.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgepack.base.machine import find_processor, has_vnni
from edgepack.errors import ModelError, UsageError
from edgepack.model.custom_ops import explain_not_loading, find_registered
from edgepack.model.facts import EXTENSION_DOMAINS, STANDARD, TensorSpec
from edgepack.model.refusals import UNREGISTERED, explain_refusal

if TYPE_CHECKING:
    import onnxruntime

Arrays = dict[str, np.ndarray[Any, Any]]

# In Node, ("name", OpType, "domain", -1)
_IN_NODE = re.compile(r'In Node, \("([^"]*)", (\w+), "([^"]*)"')
# while running Reshape node. Name:'r1'
_RUNNING_NODE = re.compile(r"while running (\w+) node\. Name:'([^']*)'")

# /onnxruntime_src/onnxruntime/core/graph/model.cc:245 void Model::Load(int, char*)
_SOURCE_PLACE = re.compile(r"/onnxruntime_src/\S+:\d+ [^()]*\([^()]*\)(?: const)? ?")


# onnxruntime_session_options_config_keys.h
_NOT_SPINNING = {"session.intra_op.allow_spinning": "0"}


def _read_threads() -> int:
    given = os.environ.get("EDGEPACK_THREADS", "0")
    if not given.isdecimal():
        raise UsageError(
            f"EDGEPACK_THREADS is {given!r}, not a number of threads",
            hint="set it to how many threads may share an operator, or unset it",
        )
    return int(given)


def make_session(
    model: Path,
    *,
    optimized: bool = True,
    save_basic: Path | None = None,
    config: Mapping[str, str] | None = None,
    threads: int = 0,
    as_on_device: bool = False,
) -> onnxruntime.InferenceSession:
    """Return a CPU session.

    With ``save_basic`` onnxruntime does only the basic optimizations, before it gives nodes to
    providers, and writes the resulting graph there. ``config`` adds session config entries.
    ``threads`` share an operator; 0 leaves their number to the environment's ``EDGEPACK_THREADS``,
    and without that to onnxruntime. On x86-64 without VNNI, int8 kernels saturate unless
    ``session.x64quantprecision`` is set (onnxruntime_session_options_config_keys.h), so it is set
    there.

    ``as_on_device`` is for measuring latency. The session then has an arena, which keeps the memory
    of the largest run while the session lives, in blocks of powers of two (400 MB where 150 are in
    use, onnxruntime 1.31.1), and its threads wait busily for the next operator. In other sessions
    they sleep, because waiting takes time from other workers: int8-static of squeezenet1.1 took
    25 processor seconds instead of 34 (2 cores, onnxruntime 1.31.1, x86-64, 2026-11-27).

    The session has the operators of :func:`~edgepack.model.custom_ops.registered`.

    Raises:
        ModelError: onnxruntime refuses the model, or the library of its custom operators; the error
            names the node if known.
        UsageError: ``EDGEPACK_THREADS`` is not a number.
    """
    given = {**({} if as_on_device else _NOT_SPINNING), **(config or {})}
    saturates = find_processor() == "x86-64" and not has_vnni()
    # With the key onnxruntime 1.31.1 fails at models whose nodes share an int8 constant. Without it
    # these may saturate, which the golden outputs show: they are compared with plain kernels' ones.
    configs = [{_PRECISE: "1", **given}, given] if saturates else [given]
    options = [_make_session_options(e, save_basic, optimized=optimized) for e in configs]
    for each in options:
        each.intra_op_num_threads = threads or _read_threads()
        each.enable_cpu_mem_arena = as_on_device
    if library := find_registered():
        for each in options:
            register_library(library, each)
    try:
        return _open_session(model, options)
    except ModelError as error:
        if not any(domain in error.problem for domain in EXTENSION_DOMAINS):
            raise
    for each in options:
        # Without one a gray JPEG ends the process (onnxruntime-extensions 0.15.2, observed).
        each.enable_cpu_mem_arena = True
        each.register_custom_ops_library(_find_extensions_library(model))
    return _open_session(model, options)


def _open_session(
    model: Path, options: Sequence[onnxruntime.SessionOptions]
) -> onnxruntime.InferenceSession:
    """Return a session with the first options that work; the error is that of the last."""
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    try:
        for each in options[:-1]:
            with contextlib.suppress(*list_runtime_errors()):
                return onnxruntime.InferenceSession(str(model), each, providers=providers)
        return onnxruntime.InferenceSession(str(model), options[-1], providers=providers)
    except list_runtime_errors() as error:
        if told := explain_refusal(model, str(error), find_registered()):
            raise told from error
        raise ModelError(
            f"onnxruntime {onnxruntime.__version__} does not load the model:"
            f" {format_runtime_error(error)}",
            hint="export the model with operators that onnxruntime has",
            where=model.name,
        ) from error


def register_library(library: Path, options: onnxruntime.SessionOptions) -> None:
    """Let sessions with these options run the operators of a shared library.

    Raises:
        ModelError: It does not load, or onnxruntime does not take its operators.
    """
    try:
        options.register_custom_ops_library(str(library))
    except list_runtime_errors() as error:
        why, hint = explain_not_loading(format_runtime_error(error))
        raise ModelError(
            f"the library of custom operators does not load here: {why}",
            hint=hint,
            where=library.name,
        ) from error


def load_library(library: Path) -> None:
    """Load a library as a session does; called in a worker, whose process it may end.

    Raises:
        ModelError: As :func:`register_library`.
    """
    import onnxruntime

    register_library(library, onnxruntime.SessionOptions())


_PROTOBUF = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"


def _find_extensions_library(model: Path) -> str:
    before = os.environ.get(_PROTOBUF)
    try:
        import onnxruntime_extensions
    except ImportError as error:
        raise ModelError(
            "the model has operators of onnxruntime-extensions, which is not installed",
            hint="install it: python -m pip install 'edgepack[extensions]'",
            where=model.name,
        ) from error
    finally:
        # It asks for protobuf in Python (its cvt.py, 0.15.2), in which the processes that are
        # started later would read models many times slower.
        if before is None:
            os.environ.pop(_PROTOBUF, None)
        else:
            os.environ[_PROTOBUF] = before
    return str(onnxruntime_extensions.get_library_path())


_PRECISE = "session.x64quantprecision"


def is_saturating(recipe: str, platform: str | None, processor: str) -> bool:
    """Return whether a file's int8 operators cannot be exact on a processor.

    An ``.onnx`` gets exact ones from a session setting; an ``.ort`` file for Arm has its operators
    written down, and their products saturate on x86-64 without VNNI.

    Args:
        recipe: The variant's.
        platform: That of an ``.ort`` file, None for an ``.onnx``.
        processor: As :func:`~edgepack.base.machine.find_processor` names it.
    """
    return platform == "arm" and recipe.startswith("int8") and processor == "x86-64"


def _make_session_options(
    config: Mapping[str, str], save_basic: Path | None, *, optimized: bool
) -> onnxruntime.SessionOptions:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if save_basic is not None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(save_basic)
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    return options


class Port(Protocol):
    """An input or output of a session."""

    @property
    def name(self) -> str:
        """Its name."""


class Session(Protocol):
    """What runs a model: onnxruntime's session, or one in another process."""

    def get_outputs(self) -> Sequence[Port]:
        """Return the model's outputs."""

    def run(self, names: Sequence[str], feed: dict[str, Any], /) -> Sequence[Any]:
        """Return the outputs of those names."""


def run_session(
    session: Session,
    feed: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
) -> Arrays:
    """Return the requested outputs, or all, by name.

    Raises:
        ModelError: The run fails; the error names the node if known.
    """
    names = outputs or [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, dict(feed)), strict=True))
    except list_runtime_errors() as error:
        raise ModelError(
            f"onnxruntime does not run the model: {format_runtime_error(error)}",
            hint="check the samples' shapes and values, and 'dims' in edgepack.yaml",
        ) from error


def list_runtime_errors() -> tuple[type[Exception], ...]:
    """Return what a session raises: onnxruntime's own classes have only Exception in common."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = tuple(
        kind
        for kind in vars(state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    )
    return (*own, RuntimeError, ValueError, NotImplementedError)


def format_runtime_error(error: Exception) -> str:
    """Return onnxruntime's message as one line that begins with the node it is about."""
    text = " ".join(str(error).split())
    short = _SOURCE_PLACE.sub("", text)
    short = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", short)
    short = re.sub(r"Load model from \S+ failed:", "", short)
    if found := _IN_NODE.search(text):
        name, op, domain = found.groups()
        return f"node {name!r} ({_format_operator(domain, op)}): {short}"
    if found := _RUNNING_NODE.search(text):
        return f"node {found[2]!r} ({found[1]}): {short}"
    if found := UNREGISTERED.search(text):
        return f"operator {_format_operator(found[1], found[2])}: {short}"
    return short


def _format_operator(domain: str, op: str) -> str:
    return f"{domain}:{op}" if domain not in STANDARD else op


def make_random_inputs(inputs: Sequence[TensorSpec], *, seed: int) -> Arrays:
    """Return seeded random inputs; symbolic and unknown dimensions become 1.

    Floats are standard normal, integers 0 or 1 (they may be indices), bools either.

    Raises:
        ModelError: An input has no rank, so there is no shape to fill.
    """
    generator = np.random.default_rng(seed)
    arrays: Arrays = {}
    for spec in inputs:
        if spec.shape is None:
            raise ModelError(
                f"the input {spec.name!r} has no shape",
                hint="give samples in edgepack.yaml: they show the shape",
            )
        shape = [size if isinstance(size, int) else 1 for size in spec.shape]
        if spec.dtype.startswith("float"):
            arrays[spec.name] = generator.standard_normal(shape).astype(spec.dtype)
        else:
            arrays[spec.name] = generator.integers(0, 2, shape).astype(spec.dtype)
    return arrays
