"""Writes the picture of the Android sample's screen: ``python -m tests.docs.write_android_sample``.

Compose's own code draws the sample's screen with what its model finds in a drawn frame, on the Java
virtual machine; the frame itself stands where CameraX would show the camera. It needs libGL, which
Skia's library for desktops is linked with.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path

import numpy as np
from edgepack.builder.build import build

from tests.mobile.jvm import jars, run_main
from tests.mobile.kotlin_models import app_of_bundle, write_apk
from tests.mobile.kotlin_sample import DEGREES, SEED, SHAPES, SIZE, TARGET, compile_app, write_frame
from tests.mobile.proofs import ROOT

SKIA = "org.jetbrains.skiko:skiko-awt-runtime-linux-x64:0.8.18"
"""What Compose 1.7.3 draws with."""
PICTURE = ROOT / "docs" / "android-sample.jpg"


def write_picture(work: Path) -> None:
    """Write the picture."""
    project = SHAPES / "edgepack.yaml"
    result = build(project=project, targets=[TARGET], out=work / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    path = compile_app(work, bundle)
    folder = work / "phone"
    folder.mkdir()
    write_apk(bundle.path, app_of_bundle(bundle, project), folder, (".onnx", ".ort"))
    frame = write_frame(folder)
    draw = runpy.run_path(str(SHAPES / "drawing.py"))["draw"]
    draw(np.random.default_rng(SEED), *SIZE).picture.save(folder / "upright.png")
    arguments = (str(frame.width), str(frame.height), str(DEGREES))
    run_main("shapes.Screen", folder, *arguments, classpath=[*path, *jars(SKIA)])
    PICTURE.write_bytes((folder / "screen.jpg").read_bytes())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_picture(Path(folder))
