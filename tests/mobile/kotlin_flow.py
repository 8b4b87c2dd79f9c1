"""A bundle's suspending functions, with Kotlin's own coroutines and real models.

A program that has the library of coroutines runs a model that is as slow as it is told, and one
that takes pictures. That bundles need no such library else is what ``kotlin_models`` shows: its
programs have none.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.builder.build import build
from onnx import TensorProto, helper

from tests.mobile.jvm import ANDROID, COROUTINES, ORT, STDLIB, compile_kotlin, jars, run_main
from tests.mobile.kotlin_models import HERE, TARGET, app_of_bundle, stand_ins, write_apk
from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import DETECTOR, Signature
from tests.mobile.swift_models import LOOP

FRAMES = 100
"""How many the program gives (``FRAMES`` in ``Slow.kt``)."""
SLOW = replace(
    LOOP,
    name="slow",
    nodes=(
        LOOP.nodes[0],
        helper.make_node("Gather", ["table", "which"], ["factor"], "gather"),
        helper.make_node("Mul", ["looped", "factor"], ["sum"], "scale"),
    ),
    inputs=(*LOOP.inputs, ("which", TensorProto.INT64, [1])),
    samples=lambda _: {"turns": np.arange(1, 4), "which": np.array([0, 1, 0])},
    constants=(*LOOP.constants, ("table", np.array([1, 2], np.float32))),
)
"""As long as an input says; the other one may name what there is not, so that the run fails."""
EXPECTED = {
    "cancelled": r"FloatTensor.*",
    "refused": r"ModelException INFERENCE: inference failed: .*",
    "unshaped": r"IllegalArgumentException: .*",
    "unknown": r"IllegalArgumentException: the bundle has no variant 'no-such'.*",
    "empty": r"ModelException BUNDLE: .*manifest\.json.*",
    "unopened": r"cpu-fp32",
    "stopped": r"closed",
    "camera": r"IOException: no camera",
    "model": r"ModelException INFERENCE: inference failed: .*",
    "closed": r"IllegalStateException: this Slow is closed",
}
"""What the program says of each thing that it does."""


def run_program(signature: Signature, program: str, work: Path) -> str:
    """Build a bundle, run a program that uses it, and return the last line that it prints."""
    project = signature.write(work / "project", TARGET)
    result = build(project=project, out=work / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    app = app_of_bundle(bundle, project)
    text = (HERE / "kotlin" / "flow" / f"{program}.kt").read_text("utf-8")
    text = text.replace("package edgepack.subject", f"package {app.kotlin_package}")
    sources = [work / f"{program}.kt", work / "Shown.kt"]
    sources[0].write_text(text.replace("Subject", app.type_name), encoding="utf-8")
    sources[1].write_text(
        shown(app.kotlin_package, app.type_name, (bundle.path / "README.md").read_text("utf-8"))
    )
    libraries = jars(STDLIB, ORT, ANDROID, COROUTINES)
    own = bundle.path / "src" / "main" / "kotlin"
    classes = compile_kotlin([own], work / "classes", classpath=libraries)
    path = (stand_ins(work), classes, *libraries)
    # An app sees what is public alone.
    out = compile_kotlin(sources, work / "program", classpath=path)
    folder = work / "phone"
    folder.mkdir()
    write_apk(bundle.path, app, folder, (".onnx", ".ort"))
    main = f"{app.kotlin_package}.{program}Kt"
    # With assertions on, coroutines copy exceptions, as far as they can.
    done = run_main(main, folder, classpath=[out, *path], options=["-ea"])
    return done.text.splitlines()[-1]


def shown(package: str, name: str, readme: str) -> str:
    """Return the README's example of a flow as a function."""
    examples = re.findall(r"```kotlin\n// In a coroutine.*?\n(.*?)```", readme, re.DOTALL)
    return f"""\
package {package}

import android.media.Image
import kotlinx.coroutines.flow.Flow

/** What CameraX's class of this name has. */
private abstract class ImageProxy(val image: Image?, val imageInfo: Info) : AutoCloseable {{
    class Info(val rotationDegrees: Int)
}}

@Suppress("UNUSED_PARAMETER")
private fun show(found: Any) = Unit

@Suppress("UNUSED_PARAMETER", "unused")
private suspend fun streamed(model: {name}, frames: Flow<ImageProxy>) {{
{"".join(examples)}}}
"""


def slow(work: Path) -> str:
    """Run, cancel and close a slow model, and give it more frames than it can answer."""
    found: dict[str, Any] = json.loads(run_program(SLOW, "Slow", work))
    for key, pattern in EXPECTED.items():
        require(re.fullmatch(pattern, found[key]) is not None, f"{key}: {found[key]}")
    require(found["ticks"] > 0, "the main thread did nothing else while the model ran")
    answered = json.loads(str(found["answered"]))
    require(answered == sorted(set(answered)), f"answered in this order: {answered}")
    require(answered[0] == 0 and answered[-1] == FRAMES - 1, f"answered: {answered}")
    require(len(answered) < FRAMES, "no frame was dropped")
    return f"{len(answered)} of {FRAMES} frames answered, all closed; {len(EXPECTED)} others"


def pictures(work: Path) -> str:
    """Compare the answers for pictures with those of calls that block."""
    said = run_program(DETECTOR, "Pictures", work)
    require(said == "equal", said)
    return "suspending calls and a flow give what blocking calls give"


PROOFS = (
    Proof("a slow model in coroutines", slow),
    Proof("pictures in coroutines", pictures),
)
