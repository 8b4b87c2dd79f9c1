"""A session over a model that also gives tensors from inside it, and where a NaN comes from."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError, StepError
from edgepack.model.reading import list_external_files, read_structure, write_model
from edgepack.model.running import make_session, run_session
from edgepack.quantization.qdq.preparation import copy_model

if TYPE_CHECKING:
    import onnx
    import onnxruntime


_FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)")


@dataclass(frozen=True)
class Observer:
    """Runs a model and returns tensors from inside it, with the optimizations of a plain session.

    The session really computes an observed tensor, so it fuses no nodes across it; it fuses all
    others. With onnxruntime 1.31.1 on x86-64 with AVX2, one thread, 2026-11-21, a run that gives
    all tensors behind which there is no Relu took 1.03 (nanodet_m), 1.17 (squeezenet1.1), 1.27
    (Inception v2) and 1.6 times (DenseNet-121) as long as one that gives the outputs.
    """

    session: onnxruntime.InferenceSession
    inner: tuple[str, ...]
    """Float tensors that nodes make: those asked for, and the model's outputs."""

    @classmethod
    def open(
        cls,
        model: Path,
        structure: onnx.ModelProto,
        tensors: Collection[str],
        *,
        optimized: bool = True,
        threads: int = 0,
    ) -> Observer:
        """Make a session that gives tensors of a model's main graph.

        Args:
            model: Its weights may lie in a file beside it, of any size: they are read from there.
            structure: The same model as it was read, without those weights; outputs are added.
            tensors: Names of tensors that nodes of the main graph make. Those that are no floats
                are left out.
            optimized: Whether the session may fuse nodes.
            threads: Of the session; 0 leaves it to onnxruntime.

        Raises:
            ModelError: onnxruntime refuses the model, or there is no such tensor.
        """
        _add_outputs(structure, tensors)
        # The key lets a session find the weights that stay where they are. A link beside the new
        # file does not work: onnxruntime 1.31.1 refuses data whose real path is in another folder.
        config = {"session.force_spinning_stop": "1"}
        if list_external_files(structure):
            folder = str(model.resolve().parent)
            config["session.model_external_initializers_file_folder_path"] = folder
        with tempfile.TemporaryDirectory(prefix="edgepack-calibration-") as scratch:
            file = Path(scratch) / model.name
            file.write_bytes(structure.SerializeToString())
            session = make_session(file, optimized=optimized, config=config, threads=threads)
        return cls(session, _list_float_outputs(session))

    @classmethod
    def of(
        cls, model: onnx.ModelProto, tensors: Collection[str], *, optimized: bool = True
    ) -> Observer:
        """Make a session as :meth:`open` does, over a model in memory, which is only read.

        Raises:
            ModelError: As :meth:`open`.
        """
        copy = copy_model(model)
        _add_outputs(copy, tensors)
        with tempfile.TemporaryDirectory(prefix="edgepack-observed-") as scratch:
            file = Path(scratch) / "model.onnx"
            write_model(copy, file)
            session = make_session(file, optimized=optimized)
        return cls(session, _list_float_outputs(session))

    def run(self, sample: Mapping[str, Array]) -> dict[str, Array]:
        """Return the ``inner`` tensors by name; the arrays are onnxruntime's own memory.

        Raises:
            ModelError: The model does not run on the sample.
        """
        # No names at all would be taken for all of them.
        return run_session(self.session, sample, self.inner) if self.inner else {}


def _list_float_outputs(session: onnxruntime.InferenceSession) -> tuple[str, ...]:
    return tuple(value.name for value in session.get_outputs() if value.type in _FLOATS)


def _add_outputs(model: onnx.ModelProto, tensors: Collection[str]) -> None:
    """Make tensors outputs of a model; their types are left for onnxruntime to infer."""
    import onnx

    given = {value.name for value in model.graph.output}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in dict.fromkeys(tensors) if name not in given
    )


def make_nonfinite_error(
    model: Path, sample: Mapping[str, Array], number: int, tensor: str
) -> SamplesError | StepError:
    """Return an error that says where NaN or infinity comes from.

    The sample is run once more, without fusions and with every tensor given: NaN is then traced to
    the first node that makes it.

    Args:
        model: The model.
        sample: The sample on which it was met.
        number: Of that sample, counted from 0.
        tensor: The tensor where it was found: an output of a node of the main graph.
    """
    where = f"on calibration sample {number} (the first is 0)"
    for name, array in sample.items():
        if found := _find_nonfinite(array):
            return SamplesError(
                f"the input {name!r} has {found} {where}",
                hint="remove the sample, or fix the step that made it",
            )
    structure = read_structure(model)
    nodes = [node for node in structure.graph.node if any(node.output)]
    made = [name for node in nodes for name in node.output if name]
    values = Observer.open(model, structure, made, optimized=False).run(sample)
    tensor = next((name for name in made if _find_nonfinite(values.get(name)) == "NaN"), tensor)
    node = next(node for node in nodes if tensor in node.output)
    values.update(_read_constants(structure, model, node.input))
    found = _find_nonfinite(values.get(tensor)) or "NaN or infinity"
    return StepError(
        f"the tensor {tensor!r} has {found} {where}: the node {node.name!r} ({node.op_type}) makes"
        f" it from {_describe_values(node.input, values)}",
        hint="check that sample, and the scale of the inputs ('inputs' in edgepack.yaml)",
    )


def _find_nonfinite(array: Array | None) -> str | None:
    """Return which of NaN and infinity an array has, NaN first; None if neither."""
    if array is None or array.dtype.kind != "f" or np.isfinite(array).all():
        return None
    return "NaN" if np.isnan(array).any() else "infinity"


def _read_constants(model: onnx.ModelProto, path: Path, names: Collection[str]) -> dict[str, Array]:
    from onnx import numpy_helper

    folder = str(path.resolve().parent)
    tensors = [tensor for tensor in model.graph.initializer if tensor.name in names]
    return {tensor.name: numpy_helper.to_array(tensor, folder) for tensor in tensors}


def _describe_values(names: Collection[str], values: Mapping[str, Array]) -> str:
    bad = [
        f"{name!r}, which has {found}"
        for name in names
        if (found := _find_nonfinite(values.get(name)))
    ]
    return " and ".join(bad) or "finite inputs"
