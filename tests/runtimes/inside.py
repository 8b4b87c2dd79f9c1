"""Runs inside a pinned runtime: Python 3.8, numpy and onnxruntime, as on a device.

::

    python inside.py limits FOLDER
    python inside.py bundle BUNDLE LOADER_FOLDER ARCHITECTURE
    python inside.py imports HARNESS_FOLDER
    python inside.py facts FOLDER

Prints one JSON document.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import sys
import tempfile
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort

CPU = "CPUExecutionProvider"
SERVING = ("fastapi", "orjson", "PIL", "prometheus_client", "starlette", "uvicorn")
"""What a service needs and a benchmark does not: the pinned runtimes are without."""
FINITE_DB = -100.0
"""Minus infinity stands for outputs that are no numbers, or have another shape."""


def limits(folder):
    """Say which of the one-node models load, by the names of their files."""
    ort.set_default_logger_severity(4)
    return {
        **versions(),
        "loads": {path.stem: loads(path) for path in sorted(Path(folder).glob("*.onnx"))},
    }


def loads(path):
    try:
        ort.InferenceSession(str(path), providers=[CPU])
    except Exception as error:  # of whatever kind: onnxruntime has many
        reasons = ("IR version", "opset", "Could not find an implementation")
        if any(reason in str(error) for reason in reasons):
            return False
        raise
    return True


def versions():
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": ort.__version__,
        "providers": ort.get_available_providers(),
    }


def facts(folder):
    """Say what this runtime is: limits, kernels of the CPU, operators, and keys of sessions."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    kernels = {}
    for each in state.get_all_opkernel_def():
        kinds = sorted(each.type_constraints.items())
        types = "; ".join(f"{name}: {' '.join(sorted(words))}" for name, words in kinds)
        first, last = each.version_range
        key = f"{each.provider} {operator(each.domain, each.op_name)}"
        kernels.setdefault(key, set()).add(f"{first}-{last} {types}")
    schemas = {}
    for each in state.get_all_operator_schema():
        attributes = " ".join(sorted(each.attributes))
        key = operator(each.domain, each.name)
        schemas.setdefault(key, set()).add(f"from {each.since_version}: {attributes}")
    library = Path(state.__file__).read_bytes()
    # Keys are words of the library; onnxruntime has no list of them.
    keys = re.findall(
        rb"(?<![\w.])(?:session|ep|optimization|mlas)\.[a-z0-9_.]{3,60}(?=\x00)", library
    )
    return {
        **limits(folder),
        "kernels": {key: sorted(kernels[key]) for key in sorted(kernels)},
        "operators": {key: sorted(schemas[key]) for key in sorted(schemas)},
        "session keys": {key: [] for key in sorted({key.decode() for key in keys})},
    }


def operator(domain, name):
    return f"{domain}:{name}" if domain else name


def bundle(folder, loader_folder, arch):
    """Load every variant as the bundle's loader does, else its model file on the CPU.

    ``arch`` is that of the bundle's target, ``x86-64`` or ``aarch64``.
    """
    sys.path.insert(0, loader_folder)
    loader = importlib.import_module("edgepack_loader")
    manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="edgepack-runtimes-") as name:
        on_cpu = as_if_for_cpu(Path(folder), manifest, Path(name) / "bundle")
        cache = Path(name) / "cache"
        variants = []
        for entry in manifest["variants"]:
            ways = {"loader": Path(folder)}
            if not runs_on_cpu(entry):
                ways["CPU session"] = on_cpu
            elif entry["model"].endswith(".ort") and arch != "x86-64":
                ways["other kernels"] = on_cpu
            variants.append(attempt(loader, entry, ways, cache))
    return {**versions(), "variants": variants}


def as_if_for_cpu(folder, manifest, copy):
    """Make a bundle of the same files whose variants want nothing but the CPU, and return it.

    Variants with a file in onnxruntime's format need not be near the goldens there: it holds
    operators for its own kind of processor, which saturate on x86-64 without VNNI.
    """
    copy.mkdir()
    for path in folder.iterdir():
        if path.name != "manifest.json":
            (copy / path.name).symlink_to(path.resolve())
    entries = []
    for entry in manifest["variants"]:
        cpu = {
            "providers": [{"name": CPU, "options": {}}],
            "placement": "all",
            "requires": {"cpu": []},
        }
        if entry["model"].endswith(".ort"):
            cpu["min_sqnr_db"] = FINITE_DB
        entries.append({**entry, **cpu})
    changed = dict(manifest, variants=entries)
    (copy / "manifest.json").write_text(json.dumps(changed), encoding="utf-8")
    return copy


def attempt(loader, entry, ways, cache):
    """Try one variant in these ways, each with a bundle, until one works.

    ``held`` says whether it loads with all goldens near; they were computed on a CPU, too.
    """
    row = {"id": entry["id"], "model": entry["model"], "held": False}
    for way, folder in ways.items():
        row["how"] = way
        try:
            model = loader.load(folder, entry["id"], cache)
            found = min(model.measure_golden_db(index) for index in range(model.bundle.goldens))
        except Exception as error:  # noqa: BLE001 (of whatever kind: each is shown)
            row["refusal"] = str(error).splitlines()[-1].strip()
            continue
        row["needed_db"], row["golden_db"] = model.entry["min_sqnr_db"], max(found, -200.0)
        row["held"] = found >= row["needed_db"]
        if row["held"]:
            break
    return row


def runs_on_cpu(entry):
    """Tell whether a variant needs nothing but a processor, which every machine has."""
    first = entry["providers"][0]
    return first["name"] == CPU or first["options"].get("device_type") == "CPU"


def imports(folder):
    """Import every device-side module, but for those that want what serving alone brings."""
    files = sorted(Path(folder).glob("*/edgepack_*.py"))
    sys.path[:0] = sorted({str(path.parent) for path in files})
    names = [path.stem for path in files]
    imported = []
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in SERVING:
                raise
            continue
        imported.append(name)
    return {**versions(), "imported": imported}


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    modes = {"limits": limits, "bundle": bundle, "imports": imports, "facts": facts}
    print(json.dumps(modes[sys.argv[1]](*sys.argv[2:]), allow_nan=False))
