"""The ``int4-weight`` recipe: weights of matrix products and tables in 4 bits, all else float32.

For models that are large for what they compute, transformers above all: their files shrink to a
sixth. It is not a way to be fast: compared with float32, weights of 384 x 1536 and 1024 x 1024, one
thread, it took 0.6 to 0.75 times as long with one row of activations, 0.75 to 0.8 with 8 and 1.1 to
1.4 with 32 and more; int8-dynamic took 0.2 to 0.6 (onnxruntime 1.31.1, x86-64 with AVX2 and without
VNNI, a busy machine, 2026-11-21).

Written are MatMulNBits and GatherBlockQuantized (com.microsoft), both as
:mod:`edgepack.quantization.qdq.blockwise` describes. The first loads in onnxruntime 1.17.3 and
newer and not in 1.16.3, the second in 1.23.2 and newer and not in 1.22.1 (wheels of 1.16.3 to
1.31.1 tried, x86-64, 2026-11-21).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import BugError, StepError
from edgepack.model.files import MODEL
from edgepack.model.ir import lower_ir
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.model.running import make_session, run_session
from edgepack.quantization.qdq.blockwise import BLOCK, Blocks, round_compensated
from edgepack.quantization.qdq.blockwise_writer import (
    PRODUCT,
    SMALLEST,
    TABLE,
    BlockwiseWriter,
    Rows,
)
from edgepack.quantization.qdq.preparation import prepare_model
from edgepack.quantization.search.closeness import Chosen, FloatOutputs, HeldOut, split_samples
from edgepack.samples.sample_set import SampleSet
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.comparing import compare, make_probe_inputs, require_signal
from edgepack.steps.graph.half import open_all_outputs_session, run_some
from edgepack.steps.quantized import require_unquantized
from edgepack.steps.recipes.fp32 import require_ir
from edgepack.steps.recipes.kind import Asked, RecipeKind

if TYPE_CHECKING:
    import onnx


_MOST_SAMPLES = 64
_MOST_ROWS = 4096
"""Rows of activations that go into a moment, over all samples."""
_MOMENT_BYTES = 256 << 20
"""What the moments of one pass over the samples take at most."""
_NEARER = (
    "give calibration samples: weights are then rounded by what they are multiplied with; or build"
    " with int8-dynamic, or without this variant"
)


@dataclass(frozen=True)
class Int4Weight:
    """Weights in 4 bits.

    Inputs: ``model``; ``calibration``, optionally: samples to round weights by; ``samples``,
    optionally, for the proof: without them seeded random inputs.
    """

    name: ClassVar[str] = "int4-weight"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    cacheable = True
    max_ir: int

    def check(self, inputs: Inputs) -> None:
        """Make sure that the model is a float one that runs.

        Raises:
            StepError: It is quantized already.
            ModelError: It does not run.
        """
        require_unquantized(read_structure(inputs["model"] / MODEL))
        session = make_session(inputs["model"] / MODEL)
        for feed in make_probe_inputs(inputs["model"] / MODEL, inputs.get("samples"), 1):
            run_session(session, feed)

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``.

        With calibration samples weights are rounded in two ways, and the step keeps the way whose
        outputs are nearer on held-out samples.

        Raises:
            StepError: Nothing can be in 4 bits.
        """
        model = prepare_model(read_model(inputs["model"] / MODEL))
        lower_ir(model, self.max_ir)
        writer = BlockwiseWriter.of(model)
        if not writer.places:
            raise _make_nothing_error()
        write_model(writer.write({}), out / MODEL)
        compensates = "calibration" in inputs and self._compensate(inputs, writer, out)
        near = compare(inputs["model"] / MODEL, out / MODEL, inputs.get("samples"))
        written = Counter(rows.op for rows in writer.places.values())
        how = "by what they are multiplied with" if compensates else "to the nearest"
        done = "int4-weight: " + ", ".join(f"{n} {op}" for op, n in sorted(written.items()))
        sizes = writer.bytes_before, writer.bytes_after
        done += f", {writer.share:.0%} of the weights, {sizes[0] / 1e6:.2f} MB to"
        done += f" {sizes[1] / 1e6:.2f}, rounded {how}; worst cosine {near.worst_cosine:.4f}"
        done += "".join(f"; {name!r} stays float32 ({why})" for name, why in writer.left.items())
        facts: dict[str, Any] = {
            "quantized_nodes": len(writer.places),
            "quantized_share": round(writer.share, 4),
            "float32_bytes": sizes[0],
            "int4_bytes": sizes[1],
            "float32_nodes": sorted(writer.left),
            "compensated": compensates,
            "worst_cosine": near.worst_cosine,
        }
        return Notes(done, facts)

    def _compensate(self, inputs: Inputs, writer: BlockwiseWriter, out: Path) -> bool:
        """Round by the samples; return whether that is nearer and therefore kept."""
        samples = SampleSet.read(inputs["calibration"])
        split = split_samples(len(samples))
        step = -(-len(split.fitted) // _MOST_SAMPLES)
        feeds = Chosen(samples, split.fitted[::step])
        float_model = inputs["model"] / MODEL
        held_out = HeldOut(FloatOutputs(float_model, Chosen(samples, split.held_out)))
        rounded = _round_all_compensated(writer, feeds)
        with tempfile.TemporaryDirectory(prefix="edgepack-int4-") as folder:
            candidate = Path(folder) / MODEL
            model = writer.write(rounded)
            write_model(model, candidate)
            before, after = map(held_out.measure_closeness, (out / MODEL, candidate))
        if after.judge(before).verdict != "closer":
            return False
        write_model(model, out / MODEL)
        return True

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that there are weights in 4 bits, and that the outputs are near.

        Raises:
            StepError: One of these is not true, or the outputs have NaN or infinity.
        """
        require_ir(out / MODEL, self.max_ir)
        require_int4(read_model(out / MODEL))
        found = compare(inputs["model"] / MODEL, out / MODEL, inputs.get("samples"))
        found.require_finite()
        require_signal(inputs["model"] / MODEL, out / MODEL, inputs.get("samples"), _NEARER)
        found.require_close_embeddings(_NEARER)


def _round_all_compensated(writer: BlockwiseWriter, feeds: Chosen) -> dict[Rows, Blocks]:
    """Return the weights of products, rounded by what they are multiplied with on samples."""
    session = open_all_outputs_session(writer.model)
    rounded: dict[Rows, Blocks] = {}
    for group in _group_rows(writer):
        tensors = sorted({name for rows in group for name in writer.activations[rows]})
        moments: dict[str, Array] = {}
        for feed in feeds:
            made = [name for name in tensors if name not in feed]
            found = run_some(session, made, feed) if made else {}
            for name, array in {**feed, **found}.items():
                if name in tensors:
                    moment = _compute_moment(array, _MOST_ROWS // len(feeds))
                    moments[name] = moments.get(name, np.zeros_like(moment)) + moment
        for rows in group:
            whole = np.sum([moments[name] for name in writer.activations[rows]], axis=0)
            if np.isfinite(whole).all():
                rounded[rows] = round_compensated(rows.read_matrix(writer.constants), whole)
    return rounded


def _group_rows(writer: BlockwiseWriter) -> Iterator[list[Rows]]:
    """Yield the weights of products in lots whose moments fit into memory together."""
    group: list[Rows] = []
    room = _MOMENT_BYTES
    for rows in writer.activations:
        columns = rows.read_matrix(writer.constants).shape[1]
        size = 8 * columns**2
        if size > _MOMENT_BYTES:
            continue
        if size > room:
            yield group
            group, room = [], _MOMENT_BYTES
        group.append(rows)
        room -= size
    if group:
        yield group


def _compute_moment(array: Array, most_rows: int) -> Array:
    """Return the sum of x x^T over rows x along the last axis, evenly chosen, as float64."""
    rows = array.reshape(-1, array.shape[-1])
    rows = rows[:: max(1, -(-len(rows) // max(1, most_rows)))].astype(np.float32)
    moment: Array = (rows.T @ rows).astype(np.float64)
    return moment


def require_int4(model: onnx.ModelProto) -> None:
    """Prove that a model has weights in 4 bits, and that what its nodes read fits together.

    Raises:
        StepError: It has none, or names the first node whose constants do not fit.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in (PRODUCT, TABLE)]
    if not nodes:
        raise _make_nothing_error()
    for node in nodes:
        if problem := _explain_misfit(node, constants):
            raise BugError(f"node {node.name!r} is not written as it should be: {problem}")


def _explain_misfit(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> str:
    from onnx import helper, numpy_helper

    given = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    if (given["bits"], given["block_size"]) != (4, BLOCK):
        return f"it has blocks of {given['block_size']} in {given['bits']} bits"
    places = (1, 2, 3) if node.op_type == PRODUCT else (0, 2, 3)
    names = [node.input[place] for place in places]
    if missing := [name for name in names if name not in constants]:
        return f"{missing[0]!r} is no constant"
    codes, scales, zeros = (numpy_helper.to_array(constants[name]) for name in names)
    rows, blocks = scales.shape
    sizes = (codes.nbytes, zeros.nbytes)
    if sizes != (rows * blocks * BLOCK // 2, rows * -(-blocks // 2)):
        return f"{codes.size} bytes of codes and {zeros.size} of zero points for {scales.size}"
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        return "a scale is not a positive number"
    return ""


def _make_nothing_error() -> StepError:
    return StepError(
        "nothing in the model can be in 4 bits: it has no MatMul, Gemm or table with"
        f" {SMALLEST} constant weights or more",
        hint="build without this variant; convolutions want int8-static",
    )


def _make_step(asked: Asked) -> Int4Weight:
    return Int4Weight(asked.profile.runtime.max_ir)


KIND = RecipeKind(
    _make_step,
    words="quantizing weights (int4)",
    cpu_cap_db=20.0,
    other_cap_db=8.0,
    padded_db=20.0,
    given={"calibration": "calibration", "samples": "probes"},
    in_integers=True,
)
