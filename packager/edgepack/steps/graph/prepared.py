"""The model as the target will take it, before numbers change: weights constant, shapes fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from edgepack.errors import BugError, ModelError, ProfileError, suggest_nearest
from edgepack.model.branches import inline_known_branches
from edgepack.model.checking import run_checker
from edgepack.model.facts import TensorSpec, read_signature
from edgepack.model.files import MODEL
from edgepack.model.inferring import infer_graph
from edgepack.model.ir import find_highest_ir, loadable, lower_ir
from edgepack.model.reading import read_model, read_outline, write_model
from edgepack.model.running import make_session
from edgepack.samples.constants import Constant, make_constant_arrays
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import make_probe_inputs, measure_worst_sqnr

if TYPE_CHECKING:
    import onnx

# Initializers need not be graph inputs from IR 4 on (onnx/docs/Versioning.md, IR version 4).
_MIN_IR = 4
_SAME_DB = 60.0


@dataclass(frozen=True)
class Prepared:
    """Weights that are also inputs become constants, symbolic dimensions get their values.

    Inputs with one fixed value become constants, too. Where constants and fixed shapes decide an
    ``If``, the branch that runs replaces it.

    Inputs: ``source``, the model file; ``samples``, optionally.
    """

    name: ClassVar[str] = "prepared"
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")
    cacheable = True
    dims: tuple[tuple[str, int], ...]
    """Symbolic dimension and its value."""
    constants: tuple[Constant, ...] = ()
    """Inputs that become part of the model."""

    def check(self, inputs: Inputs) -> None:
        """Check that onnxruntime runs the model as it is.

        Raises:
            ModelError: It does not; the error names the node if known.
        """
        with loadable(inputs["source"]) as source:
            make_session(source)

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``."""
        # Before the model is read: the checker keeps it in memory twice.
        refused = [finding.reason for finding in run_checker(inputs["source"])]
        model = read_model(inputs["source"])
        lowered = lower_ir(model, find_highest_ir())
        done = [lowered, *refused] if lowered else refused
        done += [*_drop_weight_inputs(model), *_make_weights(model, self.constants)]
        done += fix_dims(model, dict(self.dims))
        if branches := inline_known_branches(model):
            done.append(f"{branches} If decided by constants and shapes")
        write_model(model, out / MODEL)
        return Notes("; ".join(done) or "taken as it is")

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that it computes what the source computes.

        Raises:
            ModelError: The model does not run on the samples.
            StepError: Its outputs differ from the source's.
        """
        samples = inputs.get("samples")
        fixed = make_constant_arrays(self.constants)
        _require_repeatable(out / MODEL, samples)
        # In this order, because the source accepts what the fixed model does, not the reverse.
        with loadable(inputs["source"]) as source, _said_of(out / MODEL, samples):
            sqnr = measure_worst_sqnr(out / MODEL, source, samples, fixed)
        if sqnr < _SAME_DB:
            raise BugError(f"the prepared model's outputs are {sqnr:.0f} dB from the source's")


@contextmanager
def _said_of(model: Path, samples: Path | None) -> Iterator[None]:
    """Make the hint of a model that does not run describe the inputs of that run."""
    try:
        yield
    except ModelError as error:
        if samples is None:
            error.hint = _make_random_hint(model)
        raise


def _make_random_hint(model: Path) -> str:
    inputs, _ = read_signature(read_outline(model))
    free = {size for spec in inputs for size in spec.shape or () if isinstance(size, str)}
    names = ", ".join(sorted(free - {"?"}))
    return (
        f"random inputs were tried, with 1 for {names or 'every unknown dimension'}: write an"
        " edgepack.yaml (edgepack init MODEL) with"
        + (" sizes in 'dims', or with" if names else "")
        + " 'samples' that the model takes"
    )


def _require_repeatable(model: Path, samples: Path | None) -> None:
    from edgepack.metrics.accuracy import min_sqnr_db
    from edgepack.model.running import run_session

    session = make_session(model)
    for feed in make_probe_inputs(model, samples, 1):
        with _said_of(model, samples):
            outputs = run_session(session, feed)
        if min_sqnr_db(outputs, run_session(session, feed)) < _SAME_DB:
            raise ModelError(
                "the same inputs give other outputs each time, so nothing can be proven about it",
                hint="remove random operators (RandomNormal, Multinomial, Dropout in training"
                " mode), or give them a seed",
            )


def _drop_weight_inputs(model: onnx.ModelProto) -> list[str]:
    """Drop graph inputs that have an initializer: nothing may override a weight in a bundle."""
    constants = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in constants]
    dropped = len(model.graph.input) - len(kept)
    if not dropped:
        return []
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, _MIN_IR)
    return [f"{dropped} weights that were also inputs made constant"]


def _make_weights(model: onnx.ModelProto, constants: Sequence[Constant]) -> list[str]:
    """Turn inputs into weights."""
    from onnx import numpy_helper

    for constant in constants:
        name = constant.spec.name
        model.graph.input.remove(next(v for v in model.graph.input if v.name == name))
        model.graph.initializer.append(numpy_helper.from_array(constant.array, name))
        model.ir_version = max(model.ir_version, _MIN_IR)
    return [f"{each.spec.name} = {each.value}" for each in constants]


def fix_dims(model: onnx.ModelProto, dims: Mapping[str, int]) -> list[str]:
    """Replace symbolic dimensions with their values, and infer the shapes that follow.

    An output whose rank cannot be inferred keeps the shape that it was declared with, with the
    values put in: a name stands for the same size wherever it is. So do all where onnx infers
    nothing, as it does not know an operator that onnxruntime knows.
    """
    import onnx
    from onnx.shape_inference import InferenceError

    if not dims:
        return []
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
    declared = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in model.graph.output]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    try:
        outputs = infer_graph(model).output
    except InferenceError:
        outputs = model.graph.output
    for value, found, said in zip(model.graph.output, outputs, declared, strict=True):
        value.CopyFrom(found if found.type.tensor_type.HasField("shape") else said)
    return [f"{name} = {size}" for name, size in dims.items()]


def fix_signature(
    inputs: tuple[TensorSpec, ...], dims: Mapping[str, int], where: str
) -> tuple[TensorSpec, ...]:
    """Return the inputs as they are once the symbolic dimensions have their values.

    Raises:
        ProfileError: A name in ``dims`` is not a symbolic dimension of any input.
    """
    symbolic = {
        size
        for spec in inputs
        for size in spec.shape or ()
        if isinstance(size, str) and size != "?"
    }
    for name in dims:
        if name not in symbolic:
            raise ProfileError(
                f"no input has a symbolic dimension {name!r}",
                hint=suggest_nearest(name, symbolic),
                where=where,
            )
    return fix_sizes(inputs, dims)


def fix_sizes(inputs: Sequence[TensorSpec], dims: Mapping[str, int]) -> tuple[TensorSpec, ...]:
    """Return inputs with values for symbolic dimensions; names that no input has are skipped."""
    return tuple(
        TensorSpec(
            spec.name,
            spec.dtype,
            None
            if spec.shape is None
            else tuple(dims.get(s, s) if isinstance(s, str) else s for s in spec.shape),
        )
        for spec in inputs
    )
