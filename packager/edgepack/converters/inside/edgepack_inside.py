"""Converts a model in its framework's environment, or runs it there; edgepack is not installed.

``python edgepack_inside.py FOLDER`` reads ``request.json`` in a folder and writes ``answer.json``::

    {"do": "convert" | "run", "script": "edgepack_tflite", "source": PATH, "options": {...},
     "readable": [PATH...] | null, "memory": BYTES, "seconds": SECONDS, "signature": {...}}

To convert writes ``model.onnx``, to run reads the inputs ``in-0.npz``, ``in-1.npz``, ... and writes
``out-0.npz``, .... The answer to ``convert`` is the signature: ``inputs`` and ``outputs``, each
``{"name": ONNX's, "source": the framework's, "tensor": its type and shape there}``, in the order in
which the framework has them, and ``versions`` of packages. What was foreseen and cannot be
converted is ``refused``.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

Answer = Dict[str, Any]


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


def require_known(model: Any, framework: str) -> None:
    """Raise unless ONNX has every operator of a converted model."""
    unknown = list_unknown(model)
    if unknown:
        raise Refused(
            "ONNX has no counterpart of %s" % ", ".join(unknown[:4])
            + (" and %d more" % (len(unknown) - 4) if len(unknown) > 4 else ""),
            "export the model from its source without them (in %s's own operators), or export it"
            " to ONNX where it was trained" % framework,
        )


def make_signature(
    inputs: Sequence[Tuple[str, str]],
    outputs: Sequence[Tuple[str, str]],
    versions: Dict[str, str],
    tensors: Optional[Dict[str, str]] = None,
) -> Answer:
    """Return the answer to ``convert``.

    Args:
        inputs: Pairs of the name in ONNX and in the framework, in the framework's order.
        outputs: The same of outputs.
        versions: Of packages.
        tensors: By the framework's name: type and shape in the framework, for people.
    """
    known = tensors or {}
    return {
        "inputs": [_describe(pair, known) for pair in inputs],
        "outputs": [_describe(pair, known) for pair in outputs],
        "versions": versions,
    }


def _describe(pair: Tuple[str, str], tensors: Dict[str, str]) -> Dict[str, str]:
    name, source = pair
    return {"name": name, "source": source, "tensor": tensors.get(source, "")}


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
    try:
        if request["do"] == "convert":
            converted: Answer = module.convert(request["source"], folder, request["options"])
            return converted
        return run(module, request, folder)
    except Refused as error:
        return {"refused": {"problem": error.problem, "hint": error.hint}}


if __name__ == "__main__":
    # Scripts import this file by its name; run as __main__ it would be there twice.
    sys.modules["edgepack_inside"] = sys.modules[__name__]
    main(sys.argv[1])
