"""Bundles that are changed or damaged, and weights beside a model."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from edgepack.builder.build import build
from edgepack.bundle.reading import Bundle

from tests.mobile.proofs import Proof, require
from tests.mobile.sealing import PALETTES, pack_input
from tests.mobile.session_options import require_all, set_all
from tests.mobile.signatures import BUCKETS, DYNAMIC_BATCH, FACES, OTHER_PRIORS, Signature
from tests.web.js_models import RUNTIMES, TARGET, dist
from tests.web.node import run_node

HERE = Path(__file__).parent
PLAIN = replace(
    DYNAMIC_BATCH,
    name="plain",
    variants="[{backend: cpu, recipe: fp32}]",
    project=f"dims: {{batch: 1}}\n{DYNAMIC_BATCH.project}",
)


def make_bundle(signature: Signature, work: Path) -> Path:
    """Build a bundle of its own, beside the packages that it needs.

    Raises:
        EdgepackError: It cannot be built.
    """
    project = signature.write(work / "project", TARGET)
    result = build(project=project, out=work / "dist")
    result.require_all()
    bundle: Bundle = result.bundles[0].bundle
    folder = dist() / "changed" / work.name
    shutil.copytree(bundle.path, folder)
    return folder


def open_bundle(bundle: Path, type_name: str, runtime: str, *more: str) -> str:
    """Return what ``open.js`` says."""
    script = dist() / "open.mjs"
    shutil.copy(HERE / "js" / "open.js", script)
    return run_node(script, bundle, type_name, runtime, *more).text.strip()


def read_manifest(bundle: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    return manifest


def seal(bundle: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest, with the digests of the files as they are now."""
    for entry in manifest["files"]:
        path = bundle / entry["path"]
        if path.is_file():
            data = path.read_bytes()
            entry.update(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def change_golden(
    change: Callable[[np.ndarray], np.ndarray], **more: Any
) -> Callable[[Path], None]:
    """Return what changes the first golden output of a bundle, and its entry."""

    def apply(bundle: Path) -> None:
        manifest = read_manifest(bundle)
        [tensor] = manifest["goldens"][0]["outputs"][manifest["variants"][-1]["id"]]
        path = bundle / tensor["path"]
        values = np.fromfile(path, np.float32)
        change(values).astype(np.float32).tofile(path)
        tensor.update(more)
        if "quantities" in more:
            tensor["quantities"] = {**_HALVES, "size": len(values) // 2}
        seal(bundle, manifest)

    return apply


def change_variant(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Return what changes the entry of a bundle's last variant."""

    def apply(bundle: Path) -> None:
        manifest = read_manifest(bundle)
        change(manifest["variants"][-1])
        seal(bundle, manifest)

    return apply


def change_model(data: bytes | None, *, sealed: bool) -> Callable[[Path], None]:
    """Return what replaces or removes a bundle's model."""

    def apply(bundle: Path) -> None:
        manifest = read_manifest(bundle)
        path = bundle / manifest["variants"][-1]["model"]
        path.unlink()
        if data is not None:
            path.write_bytes(data)
        if sealed:
            seal(bundle, manifest)

    return apply


def add_label(bundle: Path) -> None:
    """Add a label, for which there is no class."""
    manifest = read_manifest(bundle)
    with (bundle / "files" / "labels.txt").open("a") as file:
        file.write("eel\n")
    seal(bundle, manifest)


def write_manifest(text: str) -> Callable[[Path], None]:
    return lambda bundle: void((bundle / "manifest.json").write_text(text))


def void(_: object) -> None:
    """Return nothing."""


def _with_factor(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return what changes the second half of a vector."""

    def apply(values: np.ndarray) -> np.ndarray:
        halves = values.reshape(2, -1)
        return np.concatenate([halves[0], factor * halves[1]])

    return apply


_HALVES: dict[str, Any] = {"runs": [[1, 0], [1, 1]], "extra_db": [0.0, 45.0]}
_NONE = "variant: no variant of plain works here:   cpu-fp32: "
_CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "other golden": (
        change_golden(lambda values: -values),
        rf"{_NONE}its output is -6\.0 dB near the golden one, \d+\.\d dB are needed",
    ),
    "some of a golden": (
        change_golden(lambda values: values[::3], stride=3, extra_db=45.0),
        "cpu-fp32 true",
    ),
    "some of another golden": (
        change_golden(lambda values: 1.01 * values[::3], stride=3, extra_db=45.0),
        rf"{_NONE}its output is -4\.9 dB near .*",
    ),
    "quantities of a golden": (
        change_golden(lambda values: values, quantities=_HALVES),
        "cpu-fp32 true",
    ),
    "a quantity of another golden": (
        change_golden(_with_factor(1.01), quantities=_HALVES),
        rf"{_NONE}its output is -4\.9 dB near .*",
    ),
    "short golden": (
        change_golden(lambda values: values[:-1]),
        "damaged: the bundle is damaged: golden/0/.*: a tensor of shape .* elements, not .*",
    ),
    "no model": (
        change_model(None, sealed=False),
        r"missing: the bundle is not whole: models/.*\.onnx: ENOENT.*",
    ),
    "other model": (
        change_model(b"model", sealed=False),
        r"changed: the bundle is damaged: models/.* has the SHA-256 .*, not .*: get it anew",
    ),
    "broken model": (
        change_model(b"model", sealed=True),
        f"{_NONE}the session cannot be created: .*",
    ),
    "label too many": (
        add_label,
        r"damaged: .*: files/labels\.txt has 5 labels, the output 'scores' 4 classes",
    ),
    "other time": (
        write_manifest('{"schema_version": 2}'),
        r"damaged: manifest\.json has schema version 2, this code reads 1",
    ),
    "no manifest": (write_manifest("{"), r"damaged: the bundle is damaged: manifest\.json: .*"),
    "other processor": (
        change_variant(lambda entry: entry["requires"]["cpu"].append("sve9")),
        f"{_NONE}this CPU may lack sve9: JavaScript cannot see its flags",
    ),
    "other provider": (
        change_variant(
            lambda entry: entry.update(providers=[{"name": "QNNExecutionProvider", "options": {}}])
        ),
        f"{_NONE}QNNExecutionProvider is not one that JavaScript apps can add",
    ),
    "WebGPU": (
        change_variant(
            lambda entry: entry.update(
                providers=[{"name": "WebGpuExecutionProvider", "options": {}}]
            )
        ),
        f"{_NONE}WebGpuExecutionProvider needs WebGPU, and there is no navigator.gpu here.*",
    ),
    "a golden input in a palette": (pack_input, "cpu-fp32 true"),
    **{
        name: (partial(pack_input, change=change), f".*{re.escape(said)}.*")
        for name, (change, said) in PALETTES.items()
    },
}
"""What is done to a bundle, and what ``open.js`` has to say."""


def changed(work: Path) -> str:
    """Change a bundle in many ways, and look at what is said, or that it is taken."""
    bundle = make_bundle(PLAIN, work)
    for number, (name, (change, wanted)) in enumerate(_CHANGES.items()):
        here = bundle.with_name(f"{bundle.name}-{number}")
        shutil.copytree(bundle, here)
        change(here)
        said = open_bundle(here, "Plain", "node")
        require(re.fullmatch(wanted, said) is not None, f"{name}: {said!r}")
    return ", ".join(_CHANGES)


def other_priors(work: Path) -> str:
    """Have a bundle hold other priors than the model has boxes for, or none."""
    bundle = make_bundle(FACES, work)
    for text, wanted in OTHER_PRIORS.items():
        (bundle / "files" / "priors.txt").write_text(text)
        seal(bundle, read_manifest(bundle))
        said = open_bundle(bundle, "Faces", "node")
        require(said == f"damaged: the bundle is damaged: {wanted}", said)
    return f"{len(OTHER_PRIORS)} files"


def outside(work: Path) -> str:
    """Run a bundle with two models whose weights are in one file beside them."""
    bundle = make_bundle(BUCKETS, work)
    manifest = read_manifest(bundle)
    for path in {bundle / e["model"] for v in manifest["variants"] for e in v["buckets"] or [v]}:
        model = onnx.load(str(path))
        (path.parent / "all.data").unlink(missing_ok=True)
        onnx.save(
            model, str(path), save_as_external_data=True, location="all.data", size_threshold=64
        )
    for name in ("all.data", "none.data"):
        manifest["files"].append({"path": f"models/{name}", "role": "model"})
    seal(bundle, manifest)
    for runtime in RUNTIMES:
        said = open_bundle(bundle, "BucketsModel", runtime)
        require(said == "cpu-fp32 true", f"{runtime}: {said}")
    (bundle / "models" / "all.data").unlink()
    said = open_bundle(bundle, "BucketsModel", "node")
    require(said.startswith("missing: the bundle is not whole: models/all.data"), said)
    return f"with onnxruntime-{' and -'.join(RUNTIMES)}"


def settings(work: Path) -> str:
    """Open a variant whose session has no option that is the default."""
    bundle = make_bundle(PLAIN, work)
    set_all(bundle, "cpu-fp32")
    script = dist() / "open.mjs"
    shutil.copy(HERE / "js" / "open.js", script)
    done = run_node(script, bundle, "Plain", "node")
    require(done.text.strip() == "cpu-fp32 true", done.text)
    return require_all(done.stderr.decode())


def alone(work: Path) -> str:
    """Open a bundle where there is no onnxruntime."""
    bundle = make_bundle(PLAIN, work)
    shutil.copytree(bundle, work / "alone")
    said = open_bundle(work / "alone", "Plain", "none")
    require(said.startswith("runtime: onnxruntime cannot be imported: "), said)
    return said


PROOFS = (
    Proof("what a changed bundle says", changed),
    Proof("what other priors than the model's say", other_priors),
    Proof("weights in a file of their own", outside),
    Proof("settings of a session", settings),
    Proof("no onnxruntime", alone),
)
