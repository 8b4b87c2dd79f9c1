"""How long bundles for iOS make an input of a camera's frame, against the model's run.

::

    python -m tests.bench.swift_preprocessing

Swift on Linux, optimized as in a release. The model is the public nanodet_m_320 on the CPU. Both
are timed in turn in one process, preprocessing on one thread, the model on one for each core.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from edgepack.base.statistics import median
from edgepack.builder.build import build

from tests.bench.measuring import Row, ratio_text, scratch
from tests.bench.projects import VARIABLE
from tests.mobile.swift_rootfs import toolchain

PROGRAM = Path(__file__).parent / "swift" / "Preprocessing.swift"
ROUNDS = 30
FRAMES = (
    "yuv420:640:480:1",
    "yuv420:1280:720:1",
    "yuv420:1280:720:6",
    "bgra:1280:720:1",
    "yuv420:4000:3000:1",
)
PROJECT = """\
schema_version: 1
name: nanodet
model: {model}
samples:
  calibration: {{path: samples.npz}}
  evaluation: {{path: samples.npz}}
inputs: {{input.1: {{image: {{resize: {{width: 320, height: 320}}, order: BGR}}}}}}
targets: [{{id: ios, variants: [{{backend: cpu, recipe: fp32}}]}}]
"""


def measure() -> Iterator[Row]:
    """Yield a row for each frame."""
    root = os.environ.get(VARIABLE, "")
    if not root:
        return
    with scratch() as folder:
        found = _run(Path(root).resolve() / "detection" / "nanodet_m_320.onnx", folder)
    for name in FRAMES:
        pairs = found[name]
        ours, theirs = (1e3 * median([pair[k] for pair in pairs]) for k in (0, 1))
        beside = f"{ours:.1f} ms, the model {theirs:.1f} ms"
        what = f"Swift's preprocessing of {name} / nanodet_m_320"
        yield Row(what, f"{len(pairs)} rounds", ratio_text(pairs), "", beside)


def _run(model: Path, folder: Path) -> dict[str, list[tuple[float, float]]]:
    (folder / "edgepack.yaml").write_text(PROJECT.format(model=model))
    samples = np.random.default_rng(1).random((3, 3, 320, 320), np.float32)
    np.savez(folder / "samples.npz", **{"input.1": samples})
    [made] = build(project=folder / "edgepack.yaml", out=folder / "dist").bundles
    bundle = made.bundle.path
    [sources] = (bundle / "Sources").glob("Edgepack*")
    (sources / PROGRAM.name).write_text(PROGRAM.read_text())
    files = [str(file.relative_to(bundle)) for file in sources.glob("*.swift")]
    argv = [
        "swiftc",
        "-swift-version",
        "6",
        "-O",
        "-wmo",
        "-parse-as-library",
        "-o",
        "preprocessing",
    ]
    argv += ["-module-name", sources.name, "-I", f"Sources/C{sources.name}/include"]
    tools = toolchain()
    tools.run([*argv, *files, "-L/runtime", "-lonnxruntime"], folder=bundle)
    done = tools.run(["./preprocessing", ".", "cache", str(ROUNDS), *FRAMES], folder=bundle)
    found: dict[str, list[tuple[float, float]]] = json.loads(done.text)
    return found


if __name__ == "__main__":
    for row in measure():
        sys.stdout.write(f"{row.what}: {row.found}, {row.count} ({row.beside})\n")
