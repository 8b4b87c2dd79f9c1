"""Pictures, answers and texts in Kotlin, on the Java virtual machine, as Python has them.

The templates are compiled against Android's own classes, in a package of their own; then they run.
Of Android only the JSON reader runs with them; bitmaps are a stand-in, see ``kotlin/Bitmap.kt``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from edgepack.base.resources import find_templates_dir
from PIL import Image

from tests.mobile.comparing import (
    compare_answers,
    compare_frames,
    compare_images,
    compare_prescaled,
    compare_tokens,
)
from tests.mobile.jvm import ANDROID, STDLIB, compile_kotlin, jars, run_main
from tests.mobile.proofs import Proof
from tests.mobile.refusals import (
    compare_refused,
    write_refused_frames,
    write_refused_options,
    write_refused_outputs,
)
from tests.mobile.vectors import write as write_vectors

HERE = Path(__file__).parent
TEMPLATES = (
    "Tensors",
    "Images",
    "Resizing",
    "Frames",
    "Bitmaps",
    "Keypoints",
    "SeveralRows",
    "Answers",
    "Transcription",
    "WordPiece",
)
PROGRAM = ("Vectors", "CameraImage", "Bitmap", "Build")
PACKAGE = "edgepack.proof"


def rendered(out: Path) -> list[Path]:
    """Write the parts that need no runtime as Kotlin files of the package."""
    folder = find_templates_dir() / "android" / "kotlin"
    files = [out / f"{name}.kt" for name in TEMPLATES]
    for file in files:
        file.write_text(f"package {PACKAGE}\n\n{(folder / file.name).read_text()}")
    return files


def write_transparent(case: Path) -> None:
    """Write a picture with every value at every transparency, and the tensor of it over white."""
    value, alpha = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    pixels = np.stack([value, value[:, ::-1], np.full_like(value, 7), alpha], axis=2)
    white = Image.new("RGBA", (256, 256), "white")
    opaque = Image.alpha_composite(white, Image.fromarray(pixels)).convert("RGB")
    resize = {"width": 256, "height": 256}
    description = {"resize": resize, "order": "RGB", "scale": 1.0, "mean": [], "std": []}
    tensor = np.asarray(opaque, np.float32)[None]
    case.mkdir(parents=True)
    facts = {"width": 256, "height": 256, "description": {**description, "layout": "NHWC"}}
    (case / "case.json").write_text(json.dumps(facts))
    pixels.tofile(case / "pixels.bin")
    tensor.tofile(case / "tensor.bin")


def prove(work: Path) -> str:
    """Compile the templates, run them on all cases, and compare."""
    sources, classes, program = work / "sources", work / "classes", work / "program"
    cases, out = work / "cases", work / "out"
    sources.mkdir()
    libraries = jars(STDLIB, ANDROID)
    compile_kotlin(rendered(sources), classes, classpath=libraries)
    path = [classes, *libraries]
    # The program sees what is internal, and brings stand-ins for two of Android's classes.
    friend = [f"-Xfriend-paths={classes}"]
    files = [
        HERE / "kotlin" / f"{name}.kt" for name in ("Vectors", "CameraImage", "Bitmap", "Build")
    ]
    compile_kotlin(files, program, classpath=path, options=friend)
    write_vectors(cases)
    write_transparent(cases / "images" / "transparent")
    write_refused_outputs(cases / "refused")
    write_refused_frames(cases / "refused")
    write_refused_options(cases / "refused")
    run_main(f"{PACKAGE}.VectorsKt", cases, out, classpath=[program, *path])
    comparisons = (
        compare_images,
        compare_frames,
        compare_prescaled,
        compare_answers,
        compare_refused,
        compare_tokens,
    )
    return "; ".join(compare(cases, out) for compare in comparisons)


PROOFS = (Proof("pictures, answers and texts are those of Python", prove),)
