"""How many broken model files a bundle's goldens catch.

A mutant is a variant's model file with one thing wrong: the largest weight of a large initializer
has the other sign, a channel of one is zero, or two outputs of one shape are swapped. A mutant is
equivalent, and not counted, if on unseen samples each output is as near to the variant's own as
onnxruntime's optimized and unoptimized sessions are to each other, less 6 dB, or is changed by less
than a hundredth of its spread over the samples (R² of 0.9999; integers: 1 in 100).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from tests.proofs.cases import Made
from tests.proofs.net import REFUSED, Array
from tests.proofs.readings import r2
from tests.proofs.running import Collected, collect, single
from tests.proofs.shipped import Bundle, Variant, meets_goldens, sqnr_db

MOST_INITIALIZERS = 6
LEAST_VALUES = 32
SAMPLES = 12
MARGIN_DB = 6.0
SAME_R2 = 0.9999
HARMFUL_BELOW = 0.9


@dataclass
class Caught:
    """What the goldens of one variant caught."""

    count: int = 0
    caught: int = 0
    harmful: int = 0
    harmful_caught: int = 0
    equivalent: int = 0
    missed: list[str] = field(default_factory=list)
    """What was wrong with each mutant that meets all goldens."""
    changed_goldens: list[str] = field(default_factory=list)
    """Why the unchanged file does not meet its goldens, which must not be."""

    def add(self, other: Caught) -> None:
        """Add another's counts."""
        self.count += other.count
        self.caught += other.caught
        self.harmful += other.harmful
        self.harmful_caught += other.harmful_caught
        self.equivalent += other.equivalent
        self.missed += other.missed
        self.changed_goldens += other.changed_goldens


def total(many: Iterable[Caught]) -> Caught:
    """Return the counts of several together."""
    result = Caught()
    for each in many:
        result.add(each)
    return result


def mutate(bundle: Bundle, variant: Variant, made: Made) -> Caught:
    """Make a variant's mutants and hold each against its goldens."""
    goldens = bundle.goldens(variant.entry["id"])
    inputs = [feed for feed, _, _ in goldens]
    unseen = single(made.unseen, made.state, SAMPLES)
    own = collect(variant.model, unseen)
    plain = collect(variant.model, unseen, optimized=False)
    result = Caught()
    if not meets_goldens(goldens, collect(variant.model, inputs)):
        result.changed_goldens.append(f"{variant.id}: its own file does not meet its goldens")
    model = onnx.load(str(variant.model))
    for what, mutant in mutants(model):
        raw = mutant.SerializeToString()
        try:
            outputs, on_goldens = collect(raw, unseen), collect(raw, inputs)
        except REFUSED:
            # A file that does not load is caught at once.
            result.add(Caught(1, 1, 1, 1))
            continue
        if is_equivalent(own, plain, outputs):
            result.equivalent += 1
            continue
        missed = meets_goldens(goldens, on_goldens)
        harmful = is_harmful(own, outputs)
        result.add(Caught(1, not missed, harmful, harmful and not missed))
        if missed:
            result.missed.append(f"{variant.id}: {what}: {_effect(own, outputs)}")
    return result


def is_equivalent(own: Collected, plain: Collected, mutant: Collected) -> bool:
    """Say whether no output of a mutant is changed beyond noise."""
    for name, values in own.items():
        if values[0].dtype.kind != "f":
            if np.mean([np.mean(a == b) for a, b in zip(values, mutant[name], strict=True)]) < 0.99:
                return False
            continue
        near = [
            sqnr_db(a, b) - min(sqnr_db(a, c), 200.0)
            for a, b, c in zip(values, mutant[name], plain[name], strict=True)
        ]
        if min(near) < -MARGIN_DB and _kept(values, mutant[name]) < SAME_R2:
            return False
    return True


def is_harmful(own: Collected, mutant: Collected) -> bool:
    """Say whether some output says less than nine tenths of what it said."""
    return any(_kept(values, mutant[name]) < HARMFUL_BELOW for name, values in own.items())


def _kept(values: list[Array], changed: list[Array]) -> float:
    """Return R², or of integers the share that is equal; 1 where the outputs hardly vary."""
    pairs = list(zip(values, changed, strict=True))
    if values[0].dtype.kind != "f":
        return float(np.mean([a.shape == b.shape and np.mean(a == b) for a, b in pairs]))
    spread = r2(values, changed)
    if spread is not None:
        return spread
    error = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    energy = sum(float(((a - a.mean()) ** 2).sum()) for a in values)
    return 1 - error / energy if energy > 0 else float(error == 0)


def mutants(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield what is wrong and the model, the largest initializers first."""
    weights = [
        (k, numpy_helper.to_array(tensor))
        for k, tensor in enumerate(model.graph.initializer)
        if tensor.data_type in _WEIGHTS
    ]
    large = [(k, values) for k, values in weights if values.size >= LEAST_VALUES and values.any()]
    large.sort(key=lambda each: -each[1].size)
    for k, values in large[:MOST_INITIALIZERS]:
        name = model.graph.initializer[k].name
        middle = _middle(model, name, values)
        yield f"largest weight of {name!r} mirrored", _with(model, k, _mirrored(values, middle))
        yield f"a channel of {name!r} zero", _with(model, k, _without_channel(values, middle))
    for one, other in _of_one_shape(model):
        copy = _copy(model)
        names = {one: other, other: one}
        for node in copy.graph.node:
            node.output[:] = [names.get(name, name) for name in node.output]
            node.input[:] = [names.get(name, name) for name in node.input]
        yield f"outputs {one!r} and {other!r} swapped", copy


_WEIGHTS = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
}


def _middle(model: onnx.ModelProto, name: str, values: Array) -> float:
    """Return what stands for 0: the zero point where a DequantizeLinear has one."""
    if values.dtype.kind != "u":
        return 0
    constants = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] == name and len(node.input) > 2:
            return float(np.median(numpy_helper.to_array(constants[node.input[2]])))
    return 128


def _mirrored(values: Array, middle: float) -> Array:
    changed = values.copy().reshape(-1)
    away = changed.astype(np.float64) - middle
    k = int(np.argmax(np.abs(away)))
    changed[k] = _fitting(middle - away[k], values.dtype)
    return changed.reshape(values.shape)


def _without_channel(values: Array, middle: float) -> Array:
    """Return values whose channel with the most energy is zero: outputs are last in products."""
    axis = values.ndim - 1 if values.ndim <= 2 else 0
    by_channel = np.moveaxis(values.astype(np.float64) - middle, axis, 0)
    energy = (by_channel.reshape(by_channel.shape[0], -1) ** 2).sum(1)
    changed = np.moveaxis(values.copy(), axis, 0)
    changed[int(np.argmax(energy))] = _fitting(middle, values.dtype)
    return np.ascontiguousarray(np.moveaxis(changed, 0, axis))


def _fitting(value: float, dtype: np.dtype) -> float:
    if dtype.kind == "f":
        return value
    ends = np.iinfo(dtype)
    return int(np.clip(round(value), ends.min, ends.max))


def _of_one_shape(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    found = [(o.name, o.type.SerializeToString()) for o in model.graph.output]
    for k, (one, kind) in enumerate(found):
        yield from ((one, other) for other, same in found[k + 1 :] if kind == same)


def _with(model: onnx.ModelProto, k: int, values: Array) -> onnx.ModelProto:
    copy = _copy(model)
    copy.graph.initializer[k].CopyFrom(
        numpy_helper.from_array(values, model.graph.initializer[k].name)
    )
    return copy


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _effect(own: Collected, mutant: Collected) -> str:
    return ", ".join(
        f"{_kept(values, mutant[name]):.3f} of {name} kept" for name, values in own.items()
    )
