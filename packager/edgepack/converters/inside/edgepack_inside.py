"""Converts a model in its framework's environment, or runs it there; edgepack is not installed.

``python edgepack_inside.py FOLDER`` reads ``request.json`` in a folder and writes ``answer.json``::

    {"do": "convert" | "run", "script": "edgepack_tflite", "source": PATH, "options": {...},
     "readable": [PATH...] | null, "memory": BYTES, "seconds": SECONDS, "signature": {...}}

To convert writes ``model.onnx``, to run reads the inputs ``in-0.npz``, ``in-1.npz``, ... and writes
``out-0.npz``, .... The answer to ``convert`` is the signature: ``inputs`` and ``outputs``, each
``{"name": ONNX's, "source": the framework's, "tensor": its type and shape there}``, in the order in
which the framework has them, and ``versions`` of packages. What was foreseen and cannot be
converted is ``refused``.

With ``function`` in the options, ``"module:name"``, the source is the project's folder, and the
model is what that function returns.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import random
import resource
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

Answer = Dict[str, Any]
_NAMED = 4
CALLING = "calling.txt"
"""The file that is there while a function of the user's runs: what ends this process then is
its."""


class Refused(Exception):
    """The model cannot be taken; with the problem and what to do about it."""

    def __init__(self, problem: str, hint: str) -> None:
        """Take the problem, as a phrase without an end, and the hint."""
        super().__init__(problem)
        self.problem, self.hint = problem, hint


def find_versions(names: Sequence[str]) -> Dict[str, str]:
    """Return the versions of those packages that are installed."""
    from importlib import metadata

    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def list_unknown(model: Any) -> List[str]:
    """Return the operators of a converted model that ONNX does not have, with where they are.

    Converters write what they do not know under its own name, and go on.
    """
    import onnx

    known = {entry.domain: entry.version for entry in model.opset_import}
    return [
        "%s (%s)" % (node.op_type, node.name or node.output[0])
        for node in model.graph.node
        if not onnx.defs.has(node.op_type, known.get(node.domain, 1), node.domain)
    ]


def list_some(found: Sequence[str]) -> str:
    """Return the first few of what was found, and how many more there are."""
    more = " and %d more" % (len(found) - _NAMED) if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more


def require_known(model: Any, framework: str) -> None:
    """Raise unless ONNX has every operator of a converted model."""
    unknown = list_unknown(model)
    if unknown:
        raise Refused(
            "ONNX has no counterpart of %s" % list_some(unknown),
            "export the model from its source without them (in %s's own operators), or export it"
            " to ONNX where it was trained" % framework,
        )


def make_signature(
    inputs: Sequence[Tuple[str, str]],
    outputs: Sequence[Tuple[str, str]],
    versions: Dict[str, str],
    tensors: Optional[Dict[str, str]] = None,
    notes: Sequence[str] = (),
) -> Answer:
    """Return the answer to ``convert``.

    Args:
        inputs: Pairs of the name in ONNX and in the framework, in the framework's order.
        outputs: The same of outputs.
        versions: Of packages.
        tensors: By the framework's name: type and shape in the framework, for people.
        notes: What else there is to say of the conversion.
    """
    known = tensors or {}
    return {
        "inputs": [_describe(pair, known) for pair in inputs],
        "outputs": [_describe(pair, known) for pair in outputs],
        "versions": versions,
        "notes": list(notes),
    }


def _describe(pair: Tuple[str, str], tensors: Dict[str, str]) -> Dict[str, str]:
    name, source = pair
    return {"name": name, "source": source, "tensor": tensors.get(source, "")}


def open_source(source: str, options: Dict[str, Any], read: Callable[[str], Any]) -> Any:
    """Return the framework's model: read from a file or folder, or made by the user's function.

    A script must check what the function returned: it may be anything. Sources of random numbers
    begin anew, so that the same weights come of every call.
    """
    if "function" not in options:
        return read(source)
    calling = os.path.join(options["folder"], CALLING)
    with open(calling, "w", encoding="utf-8") as file:
        file.write(options["function"])
    function = _find_function(source, options["function"])
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    made = function()
    os.remove(calling)
    return made


def _find_function(project: str, name: str) -> Any:
    """Return a function ``module:name``; the project's folder comes first on the path."""
    sys.path.insert(0, project)
    module_name, function_name = name.split(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise Refused(
            "there is no module %r for the function %r" % (error.name, name),
            "write %s.py beside edgepack.yaml, or install it for the Python that runs it"
            % module_name.replace(".", "/"),
        ) from error
    function: Any = getattr(module, function_name, None)
    if not callable(function):
        own = [
            each
            for each, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module_name
        ]
        raise Refused(
            "the module %r has no function %r" % (module_name, function_name),
            "it has %s" % (", ".join(own[:8]) or "none; define it there"),
        )
    return function


def _hash_function(name: str) -> str:
    """Return the sha256 of the file that a function's module is."""
    path = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    if path is None:
        return hashlib.sha256(name.encode()).hexdigest()
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def run(module: Any, request: Dict[str, Any], folder: str) -> Answer:
    """Run the framework's model on every input file, and return how long that took."""
    import numpy as np

    signature = request["signature"]
    call = module.load(request["source"], signature, request["options"])
    names = [each["name"] for each in signature["inputs"]]
    began, number = time.perf_counter(), 0
    while os.path.exists(os.path.join(folder, "in-%d.npz" % number)):
        with np.load(os.path.join(folder, "in-%d.npz" % number), allow_pickle=False) as given:
            values = call([given[name] for name in names])
        arrays = {
            each["name"]: np.asarray(value)
            for each, value in zip(signature["outputs"], values)
            if value is not None
        }
        np.savez(os.path.join(folder, "out-%d.npz" % number), **arrays)  # type: ignore[arg-type]
        number += 1
    return {"runs": number, "seconds": time.perf_counter() - began}


def _limit(request: Dict[str, Any]) -> None:
    """Let this process end at a time, and an allocation fail before the machine's memory is full.

    The limit counts what can be written to and belongs to this process (RLIMIT_DATA,
    setrlimit(2), Linux 4.7 and newer).
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = request["memory"]
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most == resource.RLIM_INFINITY or request["file_bytes"] < most:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"], most))


def _confine(request: Dict[str, Any], folder: str) -> Answer:
    """Give up rights, if asked to; return what confines this process now, or why nothing can."""
    if request["readable"] is None:
        return {"confined": ""}
    import edgepack_confine

    try:
        readable = [request["source"], *request["readable"]]
        return {"confined": edgepack_confine.confine(readable, folder)}
    except edgepack_confine.CannotConfine as error:
        return {"cannot_confine": str(error)}


def main(folder: str) -> None:
    """Do what a folder's request asks for."""
    here = os.path.dirname(os.path.abspath(__file__))
    if here not in sys.path:  # Python that is isolated does not have it
        sys.path.insert(0, here)
    with open(os.path.join(folder, "request.json"), encoding="utf-8") as file:
        request = json.load(file)
    _limit(request)
    answer = _confine(request, folder)
    if "cannot_confine" not in answer:
        answer = {**_answer(request, folder), **answer}
    with open(os.path.join(folder, "answer.json"), "w", encoding="utf-8") as file:
        json.dump(answer, file)


def _answer(request: Dict[str, Any], folder: str) -> Answer:
    module = importlib.import_module(request["script"])
    request["options"]["folder"] = folder
    try:
        if request["do"] == "convert":
            converted: Answer = module.convert(request["source"], folder, request["options"])
            if function := request["options"].get("function"):
                converted["function_sha256"] = _hash_function(function)
            return converted
        return run(module, request, folder)
    except Refused as error:
        return {"refused": {"problem": error.problem, "hint": error.hint}}


if __name__ == "__main__":
    # Scripts import this file by its name; run as __main__ it would be there twice.
    sys.modules["edgepack_inside"] = sys.modules[__name__]
    main(sys.argv[1])
