"""The model in onnxruntime's own format, for builds of onnxruntime with only its operators."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from edgepack.base.machine import find_processor
from edgepack.errors import BugError, ModelError, StepError
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.model.files import MODEL, ORT_MODEL
from edgepack.model.reading import read_structure
from edgepack.model.running import (
    format_runtime_error,
    list_runtime_errors,
    make_session,
    run_session,
)
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import make_probe_inputs
from edgepack.steps.graph.ort_file import (
    Operator,
    count_saved_optimizations,
    find_kernels,
    find_operators,
    normalize_file,
    read_config,
    write_config,
)

if TYPE_CHECKING:
    import onnxruntime

OPERATORS = "required_operators.config"

REPLAY = {"session.enable_saved_runtime_optimizations": "1"}
"""Session config that a ``runtime`` file needs; without it all its int8 operators run in float
(measured with onnxruntime 1.31.1, 2026-11-21; the key came with its PR #32077)."""

LIMIT_BYTES = 1 << 31
"""Flatbuffers end here (https://github.com/microsoft/onnxruntime/issues/16573)."""

_PROBES = 8
_SAME_DB = 60.0
# Where quantized and float operators meet, another float kernel moves a value by one step now and
# then. One step of a coarse output is much: 16 dB in one of eight photographs of a network with a
# quantized softmax, none in the others. So the median counts, not the worst.
_SAME_INT8_DB = 40.0

# Its layout has the converting processor's vector width, and its order changes from run to run.
# A file with blocks of 16 (AVX-512) is wrong where they have 8: on AVX2, and in every minimal
# build (https://github.com/microsoft/onnxruntime/issues/26174, pull request 26306, both open).
_LEFT_OUT = "NchwcTransformer"
_BIAS_OPTIMIZER = "WeightBiasQuantization"
_BIAS_FAULT = "sum of input arg count is not equal to size of input defs"

_AS_ONNX = "ship the model as .onnx: model_format: onnx in the target's variant"
_SATURATION = (
    "on x86-64 without VNNI, products of uint8 and int8 saturate: take the fixed style, or a"
    " dialect with uint8 weights; otherwise " + _AS_ONNX
)


@dataclass(frozen=True)
class AsOrt:
    """A model as ``model.ort`` with ``required_operators.config``, which a reduced build takes.

    It does what onnxruntime 1.31.1's ``tools/convert_onnx_models_to_ort.py`` does: a session
    that saves its graph. ``fixed`` has all optimizations applied; ``runtime`` has the basic ones
    applied and the others noted for the session, which leaves operators whole for providers that
    compile (set :data:`REPLAY`). ``arm`` allows int8 activations in integer operators, as
    onnxruntime does there; ``amd64`` guards against 8-bit products that saturate, if this
    processor is one where they do.

    Unlike that tool it never applies ``NchwcTransformer``: the file runs on every processor of
    its platform, and float convolutions on x86-64 are slower than from the ``.onnx``.

    Inputs: ``model``; ``samples``, optionally, to compare on.
    """

    name: ClassVar[str] = "ort-format"
    libraries: ClassVar[tuple[str, ...]] = ("flatbuffers", "onnxruntime")
    cacheable = True
    style: Literal["fixed", "runtime"]
    platform: Literal["arm", "amd64"]
    processor: str = field(default_factory=find_processor)
    """The kind of processor that this runs on: which kernels onnxruntime has decides the graph."""

    def check(self, inputs: Inputs) -> None:
        """Make sure that the model is small enough for the format.

        Raises:
            StepError: The model and its external data have 2 GiB or more.
        """
        size = sum(file.stat().st_size for file in inputs["model"].glob(f"{MODEL}*"))
        if size >= LIMIT_BYTES:
            raise StepError(
                f"the model has {size} bytes, and ORT format ends at 2 GiB", hint=_AS_ONNX
            )

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.ort`` and ``required_operators.config``.

        Raises:
            StepError: onnxruntime cannot write the model in its format.
        """
        source = inputs["model"] / MODEL
        with tempfile.TemporaryDirectory(dir=out) as name:
            raw, again, applied = (Path(name) / f"{n}.ort" for n in ("raw", "again", "applied"))
            plain_bias = self._convert(source, raw)
            self._convert(source, again)
            data = normalize_file(raw.read_bytes())
            (out / ORT_MODEL).write_bytes(data)
            same = normalize_file(again.read_bytes()) == data
            files = [out / ORT_MODEL]
            if self.style == "runtime":
                _save(source, applied, self._make_config(style="apply", plain_bias=plain_bias))
                files.append(applied)
            needed = find_operators(files)
        needed = dict.fromkeys(find_kernels(data), "") | needed
        write_config(needed, out / OPERATORS)
        facts = {
            "bytes": len(data),
            "operators": len({(domain, name) for domain, _, name in needed}),
            "style": self.style,
            "platform": self.platform,
            "repeatable": same,
        }
        return Notes(_format_done(facts, plain_bias=plain_bias), facts)

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the file computes what the model does, and that the config covers it.

        The outputs are compared with those of the ``.onnx`` under the same rules for integer
        operators, or else without any optimization: the same within 60 dB, or, of a quantized
        model, within 40 dB for half of the samples. An ``arm`` file is run here with the same
        integer kernels as the ``.onnx``; whether they saturate here is not its fault.

        Raises:
            StepError: The file does not load, differs, has the wrong style, or a path of this
                machine is in it; or the config cannot be read or lacks an operator or type.
        """
        data = (out / ORT_MODEL).read_bytes()
        self._require_same(inputs, out / ORT_MODEL)
        self._require_style(data)
        _require_no_paths(inputs["model"], out)
        _require_covered(data, out)

    def _convert(self, source: Path, target: Path) -> bool:
        """Write the model; return whether float biases had to stay so."""
        style = "save" if self.style == "runtime" else ""
        try:
            _save(source, target, self._make_config(style=style, plain_bias=False))
        except StepError as error:
            if not style or _BIAS_FAULT not in error.problem:
                raise
            _save(source, target, self._make_config(style=style, plain_bias=True))
            return True
        return False

    def _make_config(self, *, style: str, plain_bias: bool) -> dict[str, str]:
        """Return session config; the keys are those of convert_onnx_models_to_ort.py."""
        entries = {
            **self._make_rules(),
            "session.save_model_format": "ORT",
            "optimization.disable_specified_optimizers": (
                f"{_LEFT_OUT};{_BIAS_OPTIMIZER}" if plain_bias else _LEFT_OUT
            ),
        }
        if style:
            entries["optimization.minimal_build_optimizations"] = style
        return entries

    def _make_rules(self) -> dict[str, str]:
        """Return the session config that decides which integer operators there are."""
        arm = self.platform == "arm"
        return {
            "session.qdqisint8allowed": "1" if arm else "0",
            # Only for x86-64; with int8 activations onnxruntime 1.31.1 then lacks kernels.
            "session.x64quantprecision": "0" if arm else "1",
        }

    def _require_style(self, data: bytes) -> None:
        if self.style == "fixed" and count_saved_optimizations(data):
            raise BugError("the file leaves optimizations to the session")
        layout = sorted(name for domain, _, name in find_kernels(data) if "nchwc" in domain)
        if layout:
            raise BugError(
                f"the file has operators for one processor's vector width: {', '.join(layout)}"
            )
        if normalize_file(data) != data:
            raise BugError("the file's layout would differ the next time")

    def _require_same(self, inputs: Inputs, file: Path) -> None:
        model = inputs["model"] / MODEL
        new = _load(file, REPLAY if self.style == "runtime" else {})
        config = {**self._make_rules(), "optimization.disable_specified_optimizers": _LEFT_OUT}
        old = [make_session(model, config=config), make_session(model, optimized=False)]
        closeness: list[list[float]] = [[], []]
        for feed in make_probe_inputs(model, inputs.get("samples"), _PROBES):
            outputs = run_session(new, feed)
            for session, found in zip(old, closeness, strict=True):
                found.append(min_sqnr_db(run_session(session, feed), outputs))
        quantized = _is_quantized(model)
        limit = _SAME_INT8_DB if quantized else _SAME_DB
        best = max(median_low(found) if quantized else min(found) for found in closeness)
        if not best >= limit:
            raise StepError(
                f"the file's outputs are {best:.0f} dB from the model's, and {limit:.0f} dB is the"
                " least that counts as the same",
                hint=_SATURATION if quantized and self.platform == "amd64" else _AS_ONNX,
            )


def _save(source: Path, target: Path, entries: Mapping[str, str]) -> None:
    """Let a session optimize a model and save it.

    Raises:
        StepError: onnxruntime cannot.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(target)
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    try:
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    except list_runtime_errors() as error:
        raise StepError(
            f"onnxruntime {onnxruntime.__version__} does not write the model in ORT format:"
            f" {format_runtime_error(error)[:300]}",
            hint=_AS_ONNX,
        ) from error


def _load(file: Path, config: Mapping[str, str]) -> onnxruntime.InferenceSession:
    try:
        return make_session(file, config=config)
    except ModelError as error:
        raise StepError(
            f"onnxruntime does not load what it wrote: {error.problem}", hint=_AS_ONNX
        ) from error


def _format_done(facts: Mapping[str, object], *, plain_bias: bool) -> str:
    done = (
        f"ORT format, {facts['style']} style for {facts['platform']}:"
        f" {facts['operators']} kinds of operators, {facts['bytes']} bytes"
    )
    if plain_bias:
        done += (
            "; biases stayed float, because onnxruntime's converter fails otherwise, so their"
            " convolutions run in float"
        )
    return done if facts["repeatable"] else f"{done}; a second conversion gave other bytes"


def _is_quantized(model: Path) -> bool:
    names = {node.op_type for node in read_structure(model).graph.node}
    return any("Quantize" in name or "QLinear" in name or "Integer" in name for name in names)


def _require_covered(data: bytes, out: Path) -> None:
    listed = read_config(out / OPERATORS)
    needed: dict[Operator, dict[str, Any]] = {operator: {} for operator in find_kernels(data)}
    with tempfile.TemporaryDirectory() as name:
        write_config(find_operators([out / ORT_MODEL]), Path(name) / OPERATORS)
        needed |= read_config(Path(name) / OPERATORS)
    for operator, types in sorted(needed.items()):
        if operator not in listed:
            raise _make_missing_error(operator)
        if listed[operator] and not _has_all(listed[operator], types):
            raise _make_missing_error(operator, f" for {types}")


def _has_all(listed: Any, needed: Any) -> bool:  # noqa: ANN401  (JSON)
    """Return whether types that a config lists contain those that are needed."""
    if isinstance(needed, dict):
        return all(key in listed and _has_all(listed[key], types) for key, types in needed.items())
    return all(entry in listed for entry in needed)


def _make_missing_error(operator: Operator, types: str = "") -> BugError:
    domain, version, name = operator
    return BugError(f"{OPERATORS} lacks {domain}:{name} of version {version}{types}")


def _require_no_paths(model: Path, out: Path) -> None:
    known = (model / MODEL).read_bytes()
    places = [model, out, Path.home(), Path.cwd(), Path(tempfile.gettempdir())]
    for name in (ORT_MODEL, OPERATORS):
        data = (out / name).read_bytes()
        for place in {str(p) for p in (*places, *(p.resolve() for p in places))}:
            if len(place) > 1 and place.encode() in data and place.encode() not in known:
                raise BugError(f"{name} names a path of this machine: {place}")
