"""Bundles of the target ``web`` in Node: their own code and models.

Each bundle is built by edgepack and imported as it is, beside the npm packages that it names, once
with onnxruntime-node and once with onnxruntime-web's WebAssembly. What comes out is compared with
the golden tensors and with the Python loader.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from edgepack.builder.build import build
from edgepack.bundle.reading import Bundle
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.mobile.kotlin_models import (
    AWKWARD,
    WIDE,
    Subject,
    app_of_bundle,
    check_answers,
    check_case,
    check_palette,
    write_cases,
)
from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import (
    ALL,
    CAPTION,
    FACES,
    PAIR,
    PIXELS,
    READER,
    SIZED,
    TEXT,
    Signature,
)
from tests.web.node import install_packages, run_node

HERE = Path(__file__).parent
TARGET = "web"
RUNTIMES = ("node", "web")
_ALL = (*ALL, PIXELS, SIZED, PAIR, CAPTION, WIDE, AWKWARD, TEXT, FACES, READER)
SIGNATURES: Mapping[str, Signature] = {signature.name: signature for signature in _ALL}


@cache
def dist() -> Path:
    """Return the folder that bundles lie in, beside the packages that they need."""
    work = Path(mkdtemp(prefix="edgepack-js-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    (work / "node_modules").symlink_to(install_packages())
    shutil.copy(HERE / "js" / "models.js", work / "models.mjs")
    return work


@cache
def subject_of(name: str) -> Subject:
    """Build the bundle of a signature, by its name.

    Raises:
        EdgepackError: It cannot be built.
    """
    bundle, project = build_bundle(SIGNATURES[name])
    return Subject(app_of_bundle(bundle, project), bundle, ())


def build_bundle(signature: Signature) -> tuple[Bundle, Path]:
    """Build the bundle of a signature, and return it and its project.

    Raises:
        EdgepackError: It cannot be built.
    """
    project = signature.write(dist() / "projects" / signature.name, TARGET)
    result = build(project=project, out=dist() / "dist")
    result.require_all()
    return result.bundles[0].bundle, project


def run(
    subject: Subject, work: Path, runtime: str, bundle: Path | None = None
) -> tuple[dict[str, Any], Path]:
    """Run the program on a bundle; return what it found and the folder of its outputs."""
    folder = work / runtime
    folder.mkdir(parents=True)
    app = subject.app
    needed = [t for t in app.needed if t.text in ("", t.name)]
    write_cases(
        subject,
        folder,
        type=app.type_name,
        inputs={tensor.name: tensor.js for tensor in app.inputs},
        outputs=[{"name": tensor.js, "dtype": tensor.dtype} for tensor in app.outputs],
        answered=[{"key": tensor.js, "name": tensor.name} for tensor in app.answered],
        pictured=[tensor.js for tensor in app.pictures],
        worded=[tensor.js for tensor in needed if tensor.text],
        plain=[tensor.js for tensor in needed if not tensor.image and not tensor.text],
        needed=len(needed),
    )
    done = run_node(dist() / "models.mjs", bundle or subject.bundle.path, folder, runtime)
    return json.loads(done.text.splitlines()[-1]), folder


def prove(name: str, runtime: str) -> Callable[[Path], str]:
    """Return a proof that a model's API gives what the Python loader gives."""

    def look(work: Path) -> str:
        subject = subject_of(name)
        found, folder = run(subject, work, runtime)
        model = loader.load(subject.bundle.path, cache=work / "loader")
        check_palette(subject.bundle)
        require(found["variant"] == model.variant, f"{found['variant']} runs, not {model.variant}")
        require(bool(found["passed"]), f"the self-test failed: {found['decibels']}")
        require(len(found["decibels"]) == model.bundle.goldens, f"{found['decibels']}")
        near = [check_case(subject, model, found, folder, n) for n in range(len(found["cases"]))]
        shown = check_answers(subject, model, found)
        check_prescaled(subject, found)
        check_use(found)
        worst = min(found["decibels"])
        return f"{found['variant']}, {len(near)} runs, golden at {worst:.0f} dB{shown}"

    return look


def check_prescaled(subject: Subject, found: Mapping[str, Any]) -> None:
    """Hold that averages of pictures give other outputs, and that other models refuse them."""
    said = found["prescaled"]
    if any(tensor.dtype != "uint8" for tensor in subject.app.pictures):
        # 8 bits may hold no difference.
        wanted = ("true", "false") if "int8" in found["variant"] else ("true",)
        require(said in [f"no refusal, but {each}" for each in wanted], said)
    else:
        require(said.startswith("input: the option 'prescale' is for pictures"), said)


def check_use(found: Mapping[str, Any]) -> None:
    """Hold what the API says about calls that overlap, closing and mistakes."""
    require(found["several"] == 1, f"of 20 calls at a time, {found['several']} kinds of outputs")
    wanted = {
        "closed": "closed: this .* is closed",
        "unknown": "variant: the bundle has no variant 'no-such'; it has: .*",
    }
    for key, pattern in wanted.items():
        require(re.fullmatch(pattern, found[key]) is not None, f"{key}: {found[key]}")


PROOFS = tuple(
    Proof(f"a bundle with onnxruntime-{runtime}: {name}", prove(name, runtime))
    for name in SIGNATURES
    for runtime in RUNTIMES
)
