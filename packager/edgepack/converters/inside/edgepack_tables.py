"""What models of tables share: rows of float32 numbers in, labels, probabilities or numbers out."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Sequence, Tuple

from edgepack_inside import Refused, find_versions, make_signature, require_known

INPUT = "input"
"""The one input, float32 ``[batch, features]``."""
_SOURCE = "rows"
BATCH = "batch"
ML_OPSET = 3
"""Of ``ai.onnx.ml``. With version 3 trees have one form in all converters; from 5 on they have
another, which fewer runtimes know."""
Named = Tuple[str, str]
"""An output's name in ONNX, and the method of the model that computes it."""


def write(
    model: Any, folder: str, opset: int, names: Dict[str, Named], packages: Sequence[str]
) -> Dict[str, Any]:
    """Write ``model.onnx``: one opset for each domain, named sizes, and names that say something.

    Returns:
        The signature.

    Args:
        model: As the exporter made it.
        folder: Where to write.
        opset: Of ONNX's own domain.
        names: By the exporter's name of an output, what it is.
        packages: The framework and its exporter; the first is the framework.

    Raises:
        Refused: An operator is none of ONNX's.
    """
    from onnx import version_converter

    _merge_imports(model, opset)
    if dict(_list_imports(model))[""] != opset:
        model = version_converter.convert_version(model, opset)
    require_known(model, packages[0])
    for value in [*model.graph.input, *model.graph.output]:
        _name_batch(value)
    for old, (new, _) in names.items():
        _rename(model.graph, old, new)
    with open(os.path.join(folder, "model.onnx"), "wb") as file:
        file.write(model.SerializeToString(deterministic=True))
    sources = [names[old][1] for old in names]
    signature: Dict[str, Any] = make_signature(
        [(INPUT, _SOURCE)],
        [names[old] for old in names],
        find_versions(packages),
        {**_describe(model.graph.input, [_SOURCE]), **_describe(model.graph.output, sources)},
    )
    return signature


def require_outputs(model: Any, methods: Dict[str, Named]) -> Dict[str, Named]:
    """Return what each output is, by the exporter's name.

    Raises:
        Refused: One is not known.
    """
    found = [output.name for output in model.graph.output]
    unknown = [name for name in found if name not in methods]
    if unknown:
        raise Refused(
            "the exporter gives outputs that are not known: %s" % ", ".join(unknown),
            "export the model to ONNX where it was trained, and build from the .onnx",
        )
    return {name: methods[name] for name in found}


def _describe(values: Sequence[Any], names: Sequence[str]) -> Dict[str, str]:
    """Return type and shape of ONNX's inputs or outputs, for people, by the framework's names."""
    import onnx

    told = {}
    for value, name in zip(values, names):
        tensor = value.type.tensor_type
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        sizes = [str(dim.dim_value or dim.dim_param or "?") for dim in tensor.shape.dim]
        told[name] = "%s [%s]" % (kind, ", ".join([BATCH, *sizes[1:]]))
    return told


def refuse_made(made: Any, wanted: str) -> Refused:
    """Return the error for what a function of the user's returned instead of a model."""
    return Refused("the function returned %s" % type(made).__name__, "return %s" % wanted)


def fit_shapes(values: Sequence[Any], ranks: Sequence[int]) -> List[Any]:
    """Return the framework's values as ONNX has them: a number for each row may be a column.

    Names of classes may be Python's objects, which no file of arrays holds.
    """
    import numpy as np

    arrays = [np.asarray(value) for value in values]
    arrays = [array.astype(str) if array.dtype.kind in "OS" else array for array in arrays]
    return [
        array.reshape(-1, 1) if array.ndim == 1 and rank == 2 else array
        for array, rank in zip(arrays, ranks)
    ]


def list_ranks(model: Any, names: Dict[str, Named]) -> Dict[str, int]:
    """Return how many axes each output has, by its name in ONNX."""
    ranks = {o.name: len(o.type.tensor_type.shape.dim) for o in model.graph.output}
    return {names[old][0]: rank for old, rank in ranks.items()}


def round_down(threshold: float) -> float:
    """Return the largest float32 that is not above a threshold.

    For every float32 ``x`` this is as good: ``x <= threshold`` is true where ``x <= it`` is. The
    nearest float32, which converters take, may be above it, and then one ``x`` goes the other way.
    """
    import numpy as np

    with np.errstate(over="ignore"):
        near = np.float32(threshold)
    return float(np.nextafter(near, np.float32(-np.inf)) if float(near) > threshold else near)


def _list_imports(model: Any) -> List[Tuple[str, int]]:
    return [(entry.domain, entry.version) for entry in model.opset_import]


def _merge_imports(model: Any, opset: int) -> None:
    """Leave one version for each domain: skl2onnx 1.20 may write one twice, onnxmltools none."""
    found: Dict[str, int] = {}
    for domain, version in _list_imports(model):
        found[domain] = max(version, found.get(domain, 0))
    found.setdefault("", opset)
    del model.opset_import[:]
    for domain, version in sorted(found.items()):
        model.opset_import.add(domain=domain, version=version)


def _name_batch(value: Any) -> None:
    shape = value.type.tensor_type.shape
    if shape.dim:
        shape.dim[0].Clear()
        shape.dim[0].dim_param = BATCH


def _rename(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new
    for output in graph.output:
        if output.name == old:
            output.name = new
