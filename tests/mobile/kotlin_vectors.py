"""Pictures, answers and texts in Kotlin, on the Java virtual machine, as Python has them.

The templates are compiled against Android's own classes, in a package of their own; then they run.
Of Android only the JSON reader runs with them; bitmaps are a stand-in, see ``kotlin/Bitmap.kt``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.base.resources import find_templates_dir
from edgepack.ondevice.runtime.edgepack_answers import AnswerOptions, make_answer
from edgepack.ondevice.runtime.edgepack_frames import Frame, Plane, make_pixels
from PIL import Image

from tests.mobile.comparing import compare_answers, compare_frames, compare_images, compare_tokens
from tests.mobile.jvm import ANDROID, STDLIB, compile_kotlin, jars, run_main
from tests.mobile.proofs import Proof
from tests.mobile.refusals import compare_refused, said, write_refused_outputs
from tests.mobile.vectors import output, write_tensor
from tests.mobile.vectors import write as write_vectors

HERE = Path(__file__).parent
TEMPLATES = ("Tensors", "Images", "Frames", "Bitmaps", "Answers", "WordPiece")
PROGRAM = ("Vectors", "CameraImage", "Bitmap", "Build")
PACKAGE = "edgepack.proof"
REFUSED_FRAMES = ({"width": 0}, {"height": 0}, {"height": -1}, {"rotation": 45}, {"rotation": -90})
"""What no frame has."""


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


def write_refused_frames(folder: Path) -> None:
    """Write frames that are not taken, a folder per case, with what Python says of each."""
    planes = [{"count": 12, "row_stride": 4, "pixel_stride": 1}]
    planes += [{"count": 4, "row_stride": 2, "pixel_stride": 1}] * 2
    plane = {"count": 48, "row_stride": 16, "pixel_stride": 4}
    colours = {"matrix": "bt601", "range": "full", "rotation": 90, "width": 4, "height": 3}
    yuv = {**colours, "format": "yuv420", "planes": planes}
    pixels = {**colours, "format": "rgba", "planes": [plane]}
    wrong = [
        *({**each, **change} for each in (yuv, pixels) for change in REFUSED_FRAMES),
        {**yuv, "planes": planes[:2]},
        *(
            {**yuv, "planes": [*planes[:n], {**planes[n], **change}, *planes[n + 1 :]]}
            for n in range(3)
            for change in ({"pixel_stride": 0}, {"row_stride": 1}, {"count": 3})
        ),
        *(
            {**pixels, "planes": [{**plane, **change}]}
            for change in ({"pixel_stride": 3}, {"row_stride": 15}, {"count": 47})
        ),
    ]
    for number, facts in enumerate(wrong):
        write_refused_frame(folder / f"frame-{number}", facts)


def write_refused_frame(case: Path, facts: dict[str, Any]) -> None:
    case.mkdir(parents=True)
    (case / "plane.bin").write_bytes(bytes(64))
    written, given = [], []
    for plane in facts["planes"]:
        strides = {key: plane[key] for key in ("row_stride", "pixel_stride")}
        # A plane lasts to its file's end.
        written.append({"path": "plane.bin", "offset": 64 - plane["count"], **strides})
        given.append(Plane(bytes(plane["count"]), **strides))
    (case / "case.json").write_text(json.dumps({**facts, "planes": written}))
    with said(ValueError, case / "expected.txt"):
        make_pixels(Frame(**{**facts, "planes": given}))


def write_refused_options(folder: Path) -> None:
    """Write options that are not taken, a folder per case, with what Python says of each."""
    many = [f"label {n}" for n in range(12)]
    wrong: list[tuple[dict[str, Any], list[str]]] = [
        *(({name: value}, many) for name in ("score", "iou") for value in (-0.5, 1.5)),
        *(({name: value}, many) for name in ("most", "top") for value in (0, -3)),
        *(({"allow": ["label 3", "cat"]}, names) for names in (many, many[:10], [])),
    ]
    described = output(kind="classification")
    for number, (options, labels) in enumerate(wrong):
        case = folder / f"options-{number}"
        case.mkdir(parents=True)
        scores = np.zeros((1, 12), np.float32)
        facts = {"description": described, "labels": labels, "options": options}
        written = {**facts, "outputs": [write_tensor(case, "output", scores)]}
        (case / "case.json").write_text(json.dumps(written))
        with said(ValueError, case / "expected.txt"):
            make_answer(scores, described, labels, options=AnswerOptions(**options))


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
    comparisons = (compare_images, compare_frames, compare_answers, compare_refused, compare_tokens)
    return "; ".join(compare(cases, out) for compare in comparisons)


PROOFS = (Proof("pictures, answers and texts are those of Python", prove),)
