"""The ``fp16`` recipe: float32 becomes float16 wherever that is safe, and nowhere else.

The inputs and outputs of the model stay float32, so one signature serves all variants. A node
computes in float16 if it takes float32 tensors, if its operator is defined for float16, and if
nothing speaks against it: the operator is one that the target leaves in float32, a constant does
not fit, or a value that was seen on the samples does not.

Why not ``onnxruntime.transformers.float16.convert_float_to_float16``: in 1.31.1 (tried
2026-11-21) its result does not load if two float32 nodes read one tensor, rounds tensors between
two float32 nodes to float16, clamps constants beyond 65504 silently, rounds constants that
float32 nodes share with others, fails on If with branches that name constants alike and puts the
Casts of float32 nodes inside a branch into the main graph. Its list of operators to leave in
float32 is used here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgepack.backends.registry import find_backend
from edgepack.errors import BugError, StepError, format_list, suggest_nearest
from edgepack.metrics.accuracy import EQUAL_SQNR_DB, array_sqnr_db
from edgepack.model.facts import read_signature
from edgepack.model.files import MODEL
from edgepack.model.ir import limit_ir, lower_ir
from edgepack.model.quantized import keep_present
from edgepack.model.reading import read_model, read_outline, write_model
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import EMBEDDING_PROBES, NEARER_EMBEDDINGS, compare, make_probe_inputs
from edgepack.steps.graph.half import (
    SUFFIX,
    Half,
    Tracer,
    convert,
    emulate_half,
    name_nodes,
    open_all_outputs_session,
    read_float32_constants,
    round_half,
    run_some,
)
from edgepack.steps.quantized import is_finite_as, require_unquantized
from edgepack.steps.recipes.fp32 import require_ir
from edgepack.steps.recipes.kind import Asked, RecipeKind

if TYPE_CHECKING:
    import onnx

LARGEST = 65504.0
"""The largest finite float16 (IEEE 754 binary16)."""

# Other inputs than the samples may make tensors larger: twice as large they still have to fit.
_HEADROOM = 2
# What overflows within an operator, by the largest value that comes out: TensorRT makes several
# layers of these (onnx-tensorrt, builtin_op_importers.cpp, read): the sum of squares before a
# square root, exponentials before a logarithm.
_INSIDE: Mapping[str, Callable[[float], float]] = {
    "ReduceL2": np.square,
    "ReduceLogSumExp": np.exp,
}
_ROUNDS = 8
# Samples on which tensors are compared one by one.
_PROBES = 4
# Samples on which nothing may overflow: at least those that a comparison takes.
_RANGE_PROBES = EMBEDDING_PROBES
_NAMED = 5
# An output nearer than this is accepted as it is; fp16 variants count as equal from 30 dB on.
_FAR_DB = 20.0
# A tensor with a third of its amplitude in noise.
_NOISE_DB = 10.0
_REMEDY = (
    "name the operators in the profile's float32 operators, or build without fp16:"
    " --variant cpu-fp32"
)


@dataclass(frozen=True)
class Fp16:
    """Weights and arithmetic in float16, inputs and outputs in float32.

    Inputs: ``model``; ``samples``, optionally: without them seeded random inputs are tried.
    """

    name: ClassVar[str] = "fp16"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    max_ir: int
    float32_ops: tuple[str, ...]
    """Operators that stay float32, besides those that onnxruntime's converter leaves so."""
    float32_nodes: tuple[str, ...] = ()
    """Names of nodes that stay float32."""

    def narrow(self, inputs: Inputs) -> Fp16:
        """Leave out operators that the model lacks, and an IR version above its own."""
        model = read_outline(inputs["model"] / MODEL)
        return replace(
            self,
            max_ir=limit_ir(self.max_ir, model),
            float32_ops=keep_present(self.float32_ops, model),
        )

    def check(self, inputs: Inputs) -> None:
        """Make sure that the model is a float32 one that has the named nodes.

        Raises:
            StepError: It is quantized, or has no node of a name in ``float32_nodes``.
            ModelError: It does not run.
        """
        model = read_model(inputs["model"] / MODEL)
        require_unquantized(model)
        name_nodes(model)
        missing = sorted(set(self.float32_nodes) - {node.name for node in model.graph.node})
        if missing:
            raise StepError(
                f"the model has no node {missing[0]!r} that could stay float32",
                hint=suggest_nearest(missing[0], [node.name for node in model.graph.node]),
            )
        session = make_session(inputs["model"] / MODEL)
        for feed in make_probe_inputs(inputs["model"] / MODEL, inputs.get("samples"), 1):
            run_session(session, feed)

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``.

        Nodes whose tensors leave half of float16's range on up to 32 samples, and nodes that then
        still make NaN or infinity of finite values, stay float32. For that and for the SQNR
        float16 is emulated: every result rounded to float16 from float32 arithmetic, which is what
        a device with float32 accumulators does. (onnxruntime's CPU provider does not round between
        most nodes: it has no float16 kernels for them.)

        Raises:
            StepError: Nothing can be float16, or NaN or infinity remains; the error names the
                nodes.
        """
        model = read_model(inputs["model"] / MODEL)
        lower_ir(model, self.max_ir)
        tracer = Tracer.of(model)
        probes = partial(make_probe_inputs, inputs["model"] / MODEL, inputs.get("samples"))
        reasons = _find_out_of_range(tracer, probes(_RANGE_PROBES)) | self._keep_by_rule(tracer)
        reasons |= dict.fromkeys(self.float32_nodes, "as was asked for")
        real = "samples" in inputs
        feeds = list(probes(_PROBES))
        while True:
            half, reasons, sqnr_db = _convert_in_rounds(tracer, feeds, reasons, reduce_noise=real)
            # The model is sound on each of the feeds, so this feed is a new one, and the loop ends.
            broken = _find_broken_feed(tracer, half, probes(_RANGE_PROBES))
            if broken is None:
                break
            feeds.append(broken)
        if not half.nodes:
            told = _format_kept(_find_kept_nodes(tracer, reasons))
            why = f": {told}" if told else ""
            raise StepError(f"nothing in the model can be float16{why}", hint=_REMEDY)
        write_model(half.model, out / MODEL)
        tried = "the samples" if real else "seeded random inputs"
        return _make_notes(tracer, half, reasons, sqnr_db, tried)

    def _keep_by_rule(self, tracer: Tracer) -> dict[str, str]:
        from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

        ops = {*DEFAULT_OP_BLOCK_LIST, *self.float32_ops}
        reasons = _find_bad_constants(tracer)
        for node in tracer.model.graph.node:
            if node.op_type in ops:
                reasons.setdefault(node.name, f"{node.op_type} stays float32")
        return reasons

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the file is the same network in float16.

        It loads, its inputs and outputs are those of the model, float16 constants are the model's
        rounded and not clamped, there are float16 nodes, its outputs are numbers, and its
        embeddings are near the model's.

        Raises:
            StepError: One of these is not true.
        """
        require_ir(out / MODEL, self.max_ir)
        before, after = read_model(inputs["model"] / MODEL), read_model(out / MODEL)
        if read_signature(before) != read_signature(after):
            raise _make_error("its inputs or outputs are not the model's")
        _require_rounded_constants(before, after)
        found = compare(inputs["model"] / MODEL, out / MODEL, inputs.get("samples"))
        found.require_finite()
        found.require_close_embeddings(NEARER_EMBEDDINGS)


def _make_notes(
    tracer: Tracer, half: Half, reasons: dict[str, str], sqnr_db: float, tried: str
) -> Notes:
    """Return what was done, and which nodes are float32 that could be float16."""
    kept = _find_kept_nodes(tracer, reasons)
    done = f"fp16: {len(half.nodes)} nodes, SQNR {sqnr_db:.1f} dB on {tried}"
    if kept:
        done += f"; {len(kept)} stay float32: {_format_kept(kept)}"
    if half.flushed:
        done += f"; {half.flushed} weights are too small for float16 and become 0"
    facts: dict[str, Any] = {
        "float16_nodes": len(half.nodes),
        "float32_nodes": sorted(kept),
        "float32_reasons": dict(sorted(kept.items())),
        "flushed_weights": half.flushed,
        "sqnr_db": sqnr_db,
    }
    return Notes(done, facts)


def _find_kept_nodes(tracer: Tracer, reasons: Mapping[str, str]) -> dict[str, str]:
    """Return the nodes that could be float16 but for a reason, with it, in the reasons' order."""
    could = set(convert(tracer, ()).nodes)
    return {name: reason for name, reason in reasons.items() if name in could}


def _format_kept(kept: Mapping[str, str]) -> str:
    return format_list([f"{name!r} ({reason})" for name, reason in kept.items()], _NAMED, "; ")


def _make_error(problem: str) -> BugError:
    return BugError(f"the fp16 model is wrong: {problem}")


def _require_rounded_constants(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Prove that there is float16 in a model, and that all its constants are another's, rounded.

    Raises:
        StepError: There is none, or one is clamped or has other values.
    """
    from onnx import TensorProto, numpy_helper

    originals = read_float32_constants(before)
    known = {t.name for t in before.graph.initializer}
    halves = [
        t
        for t in after.graph.initializer
        if t.data_type == TensorProto.FLOAT16 and t.name not in known
    ]
    if not halves and not any(SUFFIX in name for node in after.graph.node for name in node.output):
        raise _make_error("nothing in it is float16")
    for tensor in halves:
        original = originals.get(tensor.name.rstrip("_").removesuffix(SUFFIX))
        if original is None or _is_too_large(original):
            raise _make_error(f"the constant {tensor.name!r} is none that float16 could hold")
        values = numpy_helper.to_array(tensor)
        if not np.array_equal(round_half(original), values, equal_nan=True):
            raise _make_error(f"the constant {tensor.name!r} is not the model's, rounded")


def _is_too_large(values: np.ndarray[Any, Any]) -> bool:
    return bool(np.any(np.isfinite(values) & (np.abs(values) > LARGEST)))


def _is_vanishing(values: np.ndarray[Any, Any]) -> bool:
    """Return whether there are values and float16 has 0 for all of them, as for an epsilon."""
    return bool(values.any() and not round_half(values).any())


def _find_bad_constants(tracer: Tracer) -> dict[str, str]:
    """Return the nodes that read a constant that float16 cannot represent, with the reason."""
    bad = {}
    for name, values in tracer.constants.items():
        if _is_too_large(values):
            peak = float(np.max(np.abs(values[np.isfinite(values)])))
            bad[name] = f"the constant {name!r} holds {peak:.6g}, float16 ends at {LARGEST:.0f}"
        elif _is_vanishing(values):
            peak = float(np.max(np.abs(values)))
            bad[name] = f"the constant {name!r} ({peak:.3g}) would be 0 in float16"
    return {
        node.name: bad[name]
        for node in tracer.model.graph.node
        for name in node.input
        if name in bad
    }


def _find_out_of_range(tracer: Tracer, feeds: Iterable[Arrays]) -> dict[str, str]:
    """Return the nodes that make or read a tensor that float16 holds with no headroom, or not."""
    peaks: dict[str, float] = {}
    for feed in feeds:
        for tensors in (feed, *tracer.trace(feed)):
            for name, values in tensors.items():
                if tracer.is_float32(name):
                    peaks[name] = max(peaks.get(name, 0.0), _find_peak(values))
    large = {name: peak for name, peak in peaks.items() if peak * _HEADROOM > LARGEST}
    reasons = {
        node.name: f"the tensor {name!r} reaches {large[name]:.6g}, {_explain_limit(large[name])}"
        for node in tracer.model.graph.node
        for name in (*node.input, *node.output)
        if name in large
    }
    for node in tracer.model.graph.node:
        if node.op_type in _INSIDE and (peak := peaks.get(node.output[0])):
            with np.errstate(over="ignore"):
                inside = _INSIDE[node.op_type](peak)
            if inside * _HEADROOM > LARGEST:
                told = f"within it values reach {inside:.6g}, {_explain_limit(inside)}"
                reasons.setdefault(node.name, told)
    return reasons


def _explain_limit(peak: float) -> str:
    if peak > LARGEST:
        return f"float16 ends at {LARGEST:.0f}"
    return f"over half of {LARGEST:.0f}, where float16 ends: other inputs may pass it"


def _find_peak(values: np.ndarray[Any, Any]) -> float:
    """Return the largest finite magnitude; 0 where there is none."""
    if not values.size:
        return 0.0
    peak = float(max(values.max(), -values.min()))
    if np.isfinite(peak):
        return peak
    return float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))


def _find_broken_feed(tracer: Tracer, half: Half, feeds: Iterable[Arrays]) -> Arrays | None:
    """Return the first input for which float16 makes NaN or infinity where float32 does not."""
    names = [v.name for v in half.model.graph.output if tracer.is_float32(v.name)]
    # No names at all would be taken for all of them.
    if not names:
        return None
    session = open_all_outputs_session(emulate_half(half))
    for feed in feeds:
        given = run_some(session, names, feed)
        if all(np.isfinite(array).all() for array in given.values()):
            continue
        expected = run_some(tracer.session, names, feed)
        if not all(is_finite_as(given[name], expected[name]) for name in names):
            return feed
    return None


@dataclass(frozen=True)
class _Trial:
    """What float16 does to the tensors of a model on the probe inputs."""

    broken: Mapping[str, str]
    """Nodes that make NaN or infinity, which float32 does not have, of values without; the tensor.
    """
    noisy: Mapping[str, str]
    """Nodes whose results are mostly noise while what they read is not; the tensor."""
    sqnr_db: float
    """The worst over outputs and probe inputs; between -200 and 200."""


def _convert_in_rounds(
    tracer: Tracer, feeds: list[Arrays], reasons: dict[str, str], *, reduce_noise: bool
) -> tuple[Half, dict[str, str], float]:
    """Convert, and give float32 back to the nodes that float16 breaks, in a few rounds.

    With ``reduce_noise``, where the outputs are far from float32's, the same is tried for nodes
    that make noise, a variance as the difference of two large numbers say; what does not help is
    undone. That is for real samples: random inputs may drive a network to where all is noise.

    Returns:
        The model, the nodes that stay float32 with their reasons, and the SQNR in dB.

    Raises:
        StepError: NaN or infinity remains; the error names the nodes.
    """
    reasons = dict(reasons)
    best: tuple[Half, dict[str, str], float] | None = None
    broken: Mapping[str, str] = {}
    for _ in range(_ROUNDS):
        half = convert(tracer, reasons)
        trial = _try(tracer, half, feeds)
        broken = trial.broken
        if not trial.broken and (best is None or trial.sqnr_db > best[2]):
            best = half, dict(reasons), trial.sqnr_db
        if not trial.broken and (trial.sqnr_db >= _FAR_DB or not reduce_noise):
            break
        what = "NaN or infinity" if trial.broken else "mostly noise"
        more = {
            name: f"makes {what} of {tensor!r} in float16, or leads to it"
            for culprit, tensor in sorted((trial.broken or trial.noisy).items())
            for name in sorted(_find_upstream(tracer, {culprit}, reasons))
        }
        if not more:
            break
        reasons |= more
    if best is None:
        names = ", ".join(repr(name) for name in sorted(broken)[:_NAMED])
        raise StepError(f"in float16 these nodes make NaN or infinity: {names}", hint=_REMEDY)
    return best


def _try(tracer: Tracer, half: Half, feeds: list[Arrays]) -> _Trial:
    """Run a converted model in emulation beside the float32 one and compare all tensors."""
    session = open_all_outputs_session(emulate_half(half))
    broken: set[str] = set()
    sqnr: dict[str, float] = {}
    for feed in feeds:
        for reference in tracer.trace(feed):
            names = {form: name for name in reference for form in half.list_forms(name)[-1:]}
            for form, values in run_some(session, list(names), feed).items():
                name = names[form]
                db = array_sqnr_db(reference[name], values)
                sqnr[name] = min(db, sqnr.get(name, EQUAL_SQNR_DB))
                if not is_finite_as(values, reference[name]):
                    broken.add(name)
    noisy = {name for name, db in sqnr.items() if db < _NOISE_DB} - broken
    outputs = [sqnr.get(value.name, EQUAL_SQNR_DB) for value in half.model.graph.output]
    return _Trial(
        _find_origins(tracer.model, broken),
        _find_origins(tracer.model, noisy),
        max(min(outputs), -EQUAL_SQNR_DB),
    )


def _find_origins(model: onnx.ModelProto, bad: set[str]) -> dict[str, str]:
    """Return the nodes that make a bad tensor of none that is bad, and this tensor."""
    return {
        node.name: name
        for node in model.graph.node
        for name in node.output
        if name in bad and not bad.intersection(node.input)
    }


def _find_upstream(tracer: Tracer, culprits: set[str], kept: Collection[str]) -> set[str]:
    """Return the culprits that are not yet float32, or else the nearest nodes before them.

    A node that divides by a value that became 0 is cured only with the node that made it.
    """
    makers = {name: node for node in tracer.model.graph.node for name in node.output if name}
    found: set[str] = set()
    queue = [node for node in tracer.model.graph.node if node.name in culprits]
    seen: set[str] = set()
    while queue:
        node = queue.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        if node.name not in kept:
            found.add(node.name)
        else:
            queue += [makers[name] for name in node.input if name in makers]
    return found


def _make_step(asked: Asked) -> Fp16:
    kept = find_backend(asked.variant).float32_ops
    return Fp16(asked.profile.runtime.max_ir, tuple(sorted(kept)))


KIND = RecipeKind(
    _make_step,
    words="converting to float16",
    cpu_cap_db=30.0,
    other_cap_db=30.0,
    padded_db=40.0,
    given={"samples": "probes"},
)
