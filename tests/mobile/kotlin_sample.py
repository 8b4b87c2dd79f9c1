"""``examples/shapes/android``: compiled with its bundle, and its model run on a camera's frames.

Kotlin and Compose are real: Compose's classes are those of its desktop packages, and its compiler
plugin is the app's. CameraX, androidx.activity and ``AndroidView`` are on no mirror of Maven
Central: what the sample uses of them are declarations in
``kotlin/camera/declared``. Gradle does not run:
of the build scripts, the versions are held against what is compiled here.
"""

from __future__ import annotations

import os
import re
import runpy
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from edgepack.builder.build import build
from edgepack.bundle.reading import Bundle
from edgepack.ondevice.runtime import edgepack_frames as frames
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.mobile.jvm import (
    ANDROID,
    LANGUAGE,
    ORT,
    STDLIB,
    compile_kotlin,
    jars,
    run_main,
    run_tool,
)
from tests.mobile.kotlin_models import app_of_bundle, stand_ins, write_apk
from tests.mobile.proofs import ROOT, Proof, require

HERE = Path(__file__).parent / "kotlin"
SHAPES = ROOT / "examples" / "shapes"
SAMPLE = SHAPES / "android"
TARGET = "android-xnnpack"
COMPOSE = (
    "org.jetbrains.compose.foundation:foundation-desktop:1.7.3",
    "org.jetbrains.compose.material3:material3-desktop:1.7.3",
)
"""Of Jetpack Compose 1.7.6, which the sample's list of versions, 2025.01.00, has."""
PLUGIN = "org.jetbrains.kotlin:kotlin-compose-compiler-plugin-embeddable:2.3.0"
SIZE = (320, 240)
SEED = 30
DEGREES = 90
NEAR = 0.1
"""Pixels, and percent of a score, that other kernels may differ by."""


def prove(work: Path) -> str:
    """Compile the app, run its finder on frames, and compare with Python."""
    project = SHAPES / "edgepack.yaml"
    result = build(project=project, targets=[TARGET], out=work / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    check_scripts(bundle)
    path = compile_app(work, bundle)
    folder = work / "phone"
    folder.mkdir()
    write_apk(bundle.path, app_of_bundle(bundle, project), folder, (".onnx", ".ort"))
    frame = write_frame(folder)
    arguments = (str(frame.width), str(frame.height), str(DEGREES))
    lines = run_main("shapes.MainKt", folder, *arguments, classpath=path).text.splitlines()
    require(len(lines) == 3, f"three frames, but: {lines}")
    require(lines[1].startswith("problem: ") and "YUV_420_888" in lines[1], lines[1])
    found = [check_line(bundle, frame, lines[0], 0.4), check_line(bundle, frame, lines[2], 0.85)]
    require(found == [3, 1], f"the scores leave {found} shapes")
    return f"{lines[0].split(':')[0]}: {found[0]} boxes are Python's; {lines[1]}"


def compile_app(work: Path, bundle: Bundle) -> list[Path]:
    """Compile the sample, and then the program that runs it; return their class path."""
    libraries = list(without_older(jars(STDLIB, ORT, ANDROID, *COMPOSE)))
    declared = HERE / "camera" / "declared"
    java = work / "java"
    sources = sorted(map(str, declared.rglob("*.java")))
    argv = ["javac", "-d", str(java), "-cp", os.pathsep.join(map(str, libraries)), *sources]
    done = run_tool(argv, timeout_s=300)
    require(done.exit_code == 0, done.stderr.decode("utf-8", "replace"))
    [plugin, *_] = jars(PLUGIN)
    app = compile_kotlin(
        [bundle.path / "src" / "main", SAMPLE / "app" / "src" / "main" / "kotlin", declared],
        work / "app",
        classpath=[java, *libraries],
        options=[f"-Xplugin={plugin}"],
    )
    image = work / "CameraImage.kt"
    shared = (HERE / "CameraImage.kt").read_text()
    image.write_text(shared.replace("edgepack.proof", "edgepack.shapes"))
    main = [HERE / "camera" / "Main.kt", HERE / "camera" / "Screen.kt", image]
    path = [stand_ins(work), app, java, *libraries]
    options = [f"-Xplugin={plugin}"]
    return [compile_kotlin(main, work / "main", classpath=path, options=options), *path]


def without_older(libraries: Iterable[Path]) -> Iterable[Path]:
    """Leave out what Compose brings of Kotlin: the app has a newer one."""
    return (jar for jar in libraries if not re.match(r"kotlin-stdlib.*-1\.9", jar.name))


def write_frame(folder: Path) -> frames.Frame:
    """Write a drawing that lies on its side, as a phone's camera gives it; return the frame."""
    draw = runpy.run_path(str(SHAPES / "drawing.py"))["draw"]
    picture = np.rot90(np.asarray(draw(np.random.default_rng(SEED), *SIZE).picture, np.float64))
    height, width, _ = picture.shape
    red, green, blue = np.moveaxis(picture, 2, 0)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    chroma = [128 + (blue - luma) / 1.772, 128 + (red - luma) / 1.402]
    halves = [c.reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3)) for c in chroma]
    planes = []
    for name, plane in zip("yuv", (luma, *halves), strict=True):
        data = np.rint(plane).clip(0, 255).astype(np.uint8).tobytes()
        (folder / name).write_bytes(data)
        planes.append(frames.Plane(data, plane.shape[1], 1))
    return frames.Frame("yuv420", width, height, planes, DEGREES)


def check_line(bundle: Bundle, frame: frames.Frame, line: str, score: float) -> int:
    """Hold what the finder showed against Python's; return how many shapes that are."""
    head, _, body = line.partition(": ")
    variant, *size = head.split()
    require(size == [str(side) for side in SIZE], f"the upright picture: {line}")
    model = loader.load(bundle.path, variant)
    options = loader.AnswerOptions(score=score)
    wanted = model.predict(frames.make_pixels(frame), options=options)["boxes"]
    found = re.findall(r"(\w+) (\S+) \((\S+), (\S+), (\S+), (\S+)\)", body)
    require([each[0] for each in found] == [each.label for each in wanted], f"{line}: {wanted}")
    for (_, *numbers), other in zip(found, wanted, strict=True):
        mine = np.array(numbers, np.float64) * [100, 1, 1, 1, 1]
        far = np.abs(mine - [other.score * 100, *other.box]).max()
        require(far < NEAR, f"{far} apart: {line}: {other}")
    return len(found)


def check_scripts(bundle: Bundle) -> None:
    """Hold the build scripts against the bundle and what is compiled here."""
    settings = (SAMPLE / "settings.gradle.kts").read_text()
    require(f'file("../dist/{bundle.path.name}")' in settings, f"{bundle.path.name}: {settings}")
    root = (SAMPLE / "build.gradle.kts").read_text()
    kotlins = set(re.findall(r'"org\.jetbrains\.kotlin\S*"\) version "(\d+\.\d+)\.\d+"', root))
    require(kotlins == {LANGUAGE}, f"the sample's Kotlin is {kotlins}, compiled is {LANGUAGE}")


PROOFS = (Proof("the sample finds what Python finds in a camera's frame", prove),)
