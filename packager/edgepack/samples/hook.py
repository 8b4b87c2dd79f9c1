"""Run a project's Python hook in the interpreter that the user names.

Executed by path, ``python hook.py MODE MODULE:FUNCTION FOLDER [LIMIT]``, with the project's
folder as the working directory. It needs numpy there and nothing of edgepack. ``samples`` writes
what the function yields to ``FOLDER/<n>.npz`` and ``FOLDER/labels.json``; ``metric`` reads
``FOLDER/<n>.npz``, ``FOLDER/names.json`` and ``FOLDER/labels.npy`` and writes the value, or several
by name, to ``FOLDER/value.json``; ``groups`` does so for the set without each of LIMIT groups of
samples, every LIMIT-th one a group, as a list, and prints nothing that the function prints.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays under any names: an ``.npz`` key may not be, say, ``file`` or hold a slash."""
    names = list(arrays)
    numbered: dict[str, Any] = {f"a{n}": arrays[name] for n, name in enumerate(names)}
    np.savez(path, names=np.array(names), **numbered)


def load_arrays(path: Path) -> dict[str, Any]:
    """Read what :func:`save_arrays` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return {str(name): file[f"a{n}"] for n, name in enumerate(file["names"])}


def _write_samples(function: Callable[[], Any], folder: Path, limit: int | None) -> None:
    labels: list[Any] = []
    for item in itertools.islice(function(), limit):
        inputs, label = item if isinstance(item, tuple) else (item, None)
        save_arrays(folder / f"{len(labels)}.npz", inputs)
        labels.append(None if label is None else np.asarray(label).tolist())
    (folder / "labels.json").write_text(json.dumps(labels), encoding="utf-8")


def main() -> None:
    """Run one hook."""
    mode, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    sys.path.insert(0, str(Path.cwd()))
    module, attribute = name.split(":")
    function = getattr(importlib.import_module(module), attribute)
    if mode == "samples":
        _write_samples(function, folder, int(sys.argv[4]) if len(sys.argv) > 4 else None)
        return
    metric = _Metric(function, folder)
    found: Any
    if mode == "groups":
        count = int(sys.argv[4])
        with contextlib.redirect_stdout(io.StringIO()):
            every = range(len(metric.outputs))
            found = [metric([k for k in every if k % count != n]) for n in range(count)]
    else:
        found = metric(range(len(metric.outputs)))
    (folder / "value.json").write_text(json.dumps(found), encoding="utf-8")


class _Metric:
    """A metric's function with its set of samples."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self.function = function
        count = len(list(folder.glob("*.npz")))
        self.outputs = [load_arrays(folder / f"{n}.npz") for n in range(count)]
        labels = folder / "labels.npy"
        self.labels = np.load(labels, allow_pickle=False) if labels.exists() else None
        self.names: list[str] | None = None
        if "names" in inspect.signature(function).parameters:
            self.names = json.loads((folder / "names.json").read_text(encoding="utf-8"))

    def __call__(self, chosen: Sequence[int]) -> float | dict[str, float]:
        """Return what the function says of some of the samples."""
        labels = None if self.labels is None else self.labels[list(chosen)]
        arguments = {} if self.names is None else {"names": [self.names[k] for k in chosen]}
        return _convert_numbers(
            self.function([self.outputs[k] for k in chosen], labels, **arguments)
        )


def _convert_numbers(value: Any) -> float | dict[str, float]:  # noqa: ANN401  (whatever it returned)
    """Return what a metric's function returned, as JSON holds it."""
    if not isinstance(value, dict):
        return float(value)
    if not value or not all(isinstance(name, str) and name for name in value):
        sys.exit(f"the metric returned {value!r}: it takes a number, or a dict of them by name")
    return {name: float(each) for name, each in value.items()}


if __name__ == "__main__":
    main()
