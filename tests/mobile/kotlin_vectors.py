"""Pictures, answers and texts in Kotlin, on the Java virtual machine, as Python has them.

The templates are compiled against Android's own classes, in a package of their own; then they run.
Of Android only the JSON reader runs with them; bitmaps are a stand-in, see ``kotlin/Bitmap.kt``.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from comparing import compare_answers, compare_images, compare_tokens
from edgepack.harness import edgepack_answers as answers
from edgepack.harness import edgepack_images
from edgepack.resources import templates_dir
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jvm import ANDROID, STDLIB, compile_kotlin, jars, run_main
from PIL import Image
from proofs import Proof, require
from vectors import Description, image, output, write_json, write_tensor
from vectors import write as write_vectors

HERE = Path(__file__).parent
TEMPLATES = ("Tensors", "Images", "Bitmaps", "Answers", "WordPiece")
PACKAGE = "edgepack.proof"


def rendered(out: Path) -> list[Path]:
    """Write the templates of the parts that need no runtime as Kotlin files."""
    environment = Environment(
        loader=FileSystemLoader(templates_dir() / "android" / "kotlin"), undefined=StrictUndefined
    )
    app = SimpleNamespace(kotlin_package=PACKAGE)
    files = [out / f"{name}.kt" for name in TEMPLATES]
    for file in files:
        file.write_text(environment.get_template(f"{file.name}.j2").render(app=app))
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


def write_refused(folder: Path) -> None:
    """Write outputs whose shapes are none of their description's, with what Python says of them."""
    letterbox = {"width": 9, "height": 9, "description": image(resize={"letterbox": 8})}
    mean = output(kind="embedding", pooling="mean")
    masked = output(kind="embedding", pooling="max", mask="m")
    wrong = [
        (output(kind="classification"), (2, 7), None, None),
        (output(kind="classification"), (1, 0), None, None),
        (output(kind="detection", layout="yolo"), (1, 9), letterbox, None),
        (output(kind="detection", layout="yolo"), (1, 9, 4), letterbox, None),
        (output(kind="detection", layout="yolov5"), (2, 9, 7), letterbox, None),
        (mean, (2, 3), None, None),
        (masked, (2, 3, 4), None, np.ones((2, 4), np.int64)),
    ]
    for number, (description, shape, picture, mask) in enumerate(wrong):
        case = folder / str(number)
        case.mkdir(parents=True)
        values = np.zeros(shape, np.float32)
        place = edgepack_images.placement(9, 9, {"letterbox": 8, "pad": 0}) if picture else None
        write_json(
            case / "case.json",
            description=description,
            labels=[],
            outputs=[write_tensor(case, "output", values)],
            image=picture,
            mask=None if mask is None else write_tensor(case, "mask", mask),
            message=_refusal(values, description, place, mask),
        )


def _refusal(values: np.ndarray, description: Description, *rest: Any) -> str:
    try:
        answers.answer(values, description, [], *rest)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"Python takes {values.shape} for {description}")


def compare_refused(cases: Path, results: Path) -> str:
    """Return how many refusals are the same.

    Raises:
        NotHeldError: One is not.
    """
    folders = sorted((cases / "refused").iterdir())
    for case in folders:
        wanted = json.loads((case / "case.json").read_text())["message"]
        [found] = json.loads((results / "refused" / case.name / "found.json").read_text())
        require(found == wanted, f"{case}: {found!r}, not {wanted!r}")
    return f"{len(folders)} outputs are refused with the same words"


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
    files = [HERE / "kotlin" / f"{name}.kt" for name in ("Vectors", "Bitmap", "Build")]
    compile_kotlin(files, program, classpath=path, options=friend)
    write_vectors(cases)
    write_transparent(cases / "images" / "transparent")
    write_refused(cases / "refused")
    run_main(f"{PACKAGE}.VectorsKt", cases, out, classpath=[program, *path])
    comparisons = (compare_images, compare_answers, compare_refused, compare_tokens)
    return "; ".join(compare(cases, out) for compare in comparisons)


PROOFS = (Proof("pictures, answers and texts are those of Python", prove),)
