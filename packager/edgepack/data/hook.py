"""Run a project's Python hook in the interpreter that the user names.

Executed by path, ``python hook.py MODE MODULE:FUNCTION FOLDER [LIMIT]``, with the project's
folder as the working directory. It needs numpy there and nothing of edgepack. ``samples`` writes
what the function yields to ``FOLDER/<n>.npz`` and ``FOLDER/labels.json``; ``metric`` reads
``FOLDER/<n>.npz``, ``FOLDER/names.json`` and ``FOLDER/labels.npy`` and writes the value, or several
by name, to ``FOLDER/value.json``.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import sys
from collections.abc import Callable
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


def _read_outputs(folder: Path) -> list[dict[str, Any]]:
    count = len(list(folder.glob("*.npz")))
    return [load_arrays(folder / f"{n}.npz") for n in range(count)]


def main() -> None:
    """Run one hook."""
    mode, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    sys.path.insert(0, str(Path.cwd()))
    module, attribute = name.split(":")
    function = getattr(importlib.import_module(module), attribute)
    if mode == "samples":
        _write_samples(function, folder, int(sys.argv[4]) if len(sys.argv) > 4 else None)
        return
    labels = folder / "labels.npy"
    given = np.load(labels, allow_pickle=False) if labels.exists() else None
    arguments: dict[str, Any] = {}
    if "names" in inspect.signature(function).parameters:
        arguments["names"] = json.loads((folder / "names.json").read_text(encoding="utf-8"))
    value = _numbers(function(_read_outputs(folder), given, **arguments))
    (folder / "value.json").write_text(json.dumps(value), encoding="utf-8")


def _numbers(value: Any) -> float | dict[str, float]:  # noqa: ANN401  (whatever it returned)
    """Return what a metric's function returned, as JSON holds it."""
    if not isinstance(value, dict):
        return float(value)
    if not value or not all(isinstance(name, str) and name for name in value):
        sys.exit(f"the metric returned {value!r}: it takes a number, or a dict of them by name")
    return {name: float(each) for name, each in value.items()}


if __name__ == "__main__":
    main()
