"""Converts Keras's files, and runs them: ``.keras`` and the older ``.h5``."""

from __future__ import annotations

import json
import os
import re
import tempfile
import zipfile
from typing import Any, Callable, Dict, Iterator, List, Sequence

from edgepack_inside import Refused, list_some, open_source
from edgepack_tensorflow import write_onnx

_HDF5 = b"\x89HDF\r\n\x1a\n"
_CODE = ("Lambda", "SlicingOpLambda", "TFOpLambda")
_FACTORY = (
    "build the model by your own code: model: {python: 'mymodel:make', framework: keras} in"
    " edgepack.yaml, or export it to ONNX where it was made: model.export('model.onnx',"
    " format='onnx')"
)


def convert(source: str, folder: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """Write ``model.onnx``, with the names of the model's inputs and of its last layers."""
    import tensorflow as tf

    model = _open(source, options)
    graph = _find_graph(model)
    inputs = _flatten(graph._inputs_struct)
    specs = [tf.TensorSpec(each.shape, each.dtype, name=_make_name(each.name)) for each in inputs]
    names = _name_outputs(graph)

    def call(*arrays: Any) -> Dict[str, Any]:
        outputs = model(_pack(graph._inputs_struct, arrays), training=False)
        return dict(zip(names, _flatten(outputs)))

    signature: Dict[str, Any] = write_onnx(call, specs, folder, options["opset"])
    return signature


def load(
    source: str, signature: Dict[str, Any], options: Dict[str, Any]
) -> Callable[[List[Any]], List[Any]]:
    """Return a function that runs Keras's own model, layer by layer."""
    model = _open(source, options)
    graph = _find_graph(model)
    names = _name_outputs(graph)
    order = [names.index(each["source"]) for each in signature["outputs"]]

    def call(arrays: List[Any]) -> List[Any]:
        outputs = _flatten(model(_pack(graph._inputs_struct, arrays), training=False))
        return [outputs[place].numpy() for place in order]

    return call


def _open(source: str, options: Dict[str, Any]) -> Any:
    import keras

    if "function" in options:
        keras.utils.set_random_seed(0)
    model = open_source(source, options, _load)
    if not isinstance(model, keras.Model):
        raise Refused(
            "the function returned a %s, and no keras.Model" % type(model).__name__,
            "return the model itself: it need not be compiled",
        )
    return model


def _load(source: str) -> Any:
    import keras

    _require_known_layers(_read_config(source))
    # Keras goes by a file's suffix, which a link's target may lack.
    named = os.path.join(tempfile.mkdtemp(), "model.h5" if _is_hdf5(source) else "model.keras")
    os.symlink(source, named)
    try:
        return keras.saving.load_model(named, compile=False, safe_mode=True)
    except (ValueError, TypeError, OSError, KeyError, ImportError) as error:
        first = " ".join(str(error).split())[:300]
        raise Refused("Keras does not load the model: %s" % first, _FACTORY) from error


def _is_hdf5(source: str) -> bool:
    with open(source, "rb") as file:
        return file.read(len(_HDF5)) == _HDF5


def _read_config(source: str) -> Any:
    """Return the model's description without making anything of it."""
    if not _is_hdf5(source):
        with zipfile.ZipFile(source) as archive:
            return json.loads(archive.read("config.json"))
    import h5py

    try:
        with h5py.File(source, "r") as file:
            config = file.attrs.get("model_config")
    except OSError as error:
        raise Refused("it is no whole HDF5 file: %s" % error, "copy the file again") from error
    if config is None:
        raise Refused(
            "it has weights only, and not the model that they belong to",
            "save the whole model: model.save('model.keras')",
        )
    return json.loads(config)


def _require_known_layers(config: Any) -> None:
    """Raise for code in the file, and for layers that Keras does not have."""
    found = list(_walk(config))
    code = [each for each in found if each["class_name"] in _CODE]
    if code:
        named = ["%s (%s)" % (each["class_name"], _find_name(each)) for each in code]
        raise Refused(
            "it has layers that are code in the file, which is not run: %s" % list_some(named),
            _FACTORY,
        )
    own = sorted({str(each["registered_name"]) for each in found if _is_own(each)})
    if own:
        raise Refused(
            "it has layers of its own, whose code is not in it: %s" % list_some(own), _FACTORY
        )


def _find_name(described: Dict[str, Any]) -> str:
    config = described["config"]
    return str(config.get("name", "")) if isinstance(config, dict) else ""


def _is_own(described: Dict[str, Any]) -> bool:
    module = described.get("module") or ""
    return bool(described.get("registered_name")) and not module.startswith("keras")


def _walk(value: Any) -> Iterator[Dict[str, Any]]:
    """Yield everything in a description that names a class."""
    if isinstance(value, dict):
        if "class_name" in value and "config" in value:
            yield value
        for each in value.values():
            yield from _walk(each)
    elif isinstance(value, list):
        for each in value:
            yield from _walk(each)


def _find_graph(model: Any) -> Any:
    """Return what has the model's inputs and outputs: a Sequential has it within."""
    graph = getattr(model, "_functional", None) or model
    if getattr(graph, "_inputs_struct", None) is None:
        raise Refused("the model does not say what it takes", "begin it with keras.Input")
    return graph


def _name_outputs(graph: Any) -> List[str]:
    """Return a name for each output: its key, or the layer that gives it."""
    import keras

    names = [_make_name(name) for name in graph.output_names]
    if isinstance(graph._outputs_struct, dict):
        paths = [path for path, _ in keras.tree.flatten_with_path(graph._outputs_struct)]
        names = [_make_name("_".join(map(str, path))) for path in paths]
    if len(names) != len(_flatten(graph._outputs_struct)):
        raise Refused(
            "its outputs are nested, and have no names of their own", "return a dict of tensors"
        )
    return [name if names.count(name) == 1 else "%s_%d" % (name, n) for n, name in enumerate(names)]


def _make_name(name: str) -> str:
    return re.sub("[^A-Za-z0-9_.-]", "_", name)


def _flatten(value: Any) -> List[Any]:
    import keras

    return list(keras.tree.flatten(value))


def _pack(structure: Any, values: Sequence[Any]) -> Any:
    import keras

    return keras.tree.pack_sequence_as(structure, list(values))
