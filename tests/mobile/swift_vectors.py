"""Pictures, answers and texts in Swift, on Linux, as Python has them.

The sources that a bundle for iOS carries are compiled as they are, in Swift 6 mode; then they run.
What takes pictures of Core Video, Core Graphics and UIKit is compiled against mirrors of their
APIs, and run: ``swift/mirror``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from edgepack.base.resources import find_templates_dir
from edgepack.builder.build import build
from edgepack.project.identifiers import make_type_name
from PIL import Image, ImageOps

from tests.mobile.comparing import (
    compare_answers,
    compare_frames,
    compare_images,
    compare_prescaled,
    compare_tokens,
)
from tests.mobile.kotlin_vectors import write_refused_options, write_transparent
from tests.mobile.proofs import Proof, require
from tests.mobile.refusals import compare_refused, write_refused
from tests.mobile.signatures import DETECTOR
from tests.mobile.swift_rootfs import toolchain
from tests.mobile.vectors import write as write_vectors

HERE = Path(__file__).parent
SOURCES = (
    "Tensors",
    "Frames",
    "Images",
    "Resizing",
    "Keypoints",
    "SeveralBoxes",
    "Answers",
    "Ctc",
    "ExactJSON",
    "WordPiece",
)
"""Those that need neither a model nor its manifest."""
MIRRORS = ("CoreGraphics", "CoreVideo", "ImageIO", "UIKit")
"""Of Apple's frameworks, each after those that it uses."""
SWIFTC = ("swiftc", "-swift-version", "6", "-warnings-as-errors")
EXIF_ORIENTATION = 0x0112


def prove(work: Path) -> str:
    """Compile the sources, run them on all cases, and compare."""
    cases, results = work / "cases", work / "results"
    copied(work, [*sources(), HERE / "swift" / "Vectors.swift"])
    write_vectors(cases)
    write_transparent(cases / "images" / "transparent")
    write_turned(cases / "turned")
    write_escaped(cases / "wordpiece" / "0", cases / "wordpiece" / "escaped")
    write_refused(cases / "refused")
    write_refused_options(cases / "refused")
    files = [file.name for file in sorted(work.glob("*.swift"))]
    tools = toolchain()
    tools.run([*SWIFTC, "-O", "-o", "vectors", *files], folder=work)
    tools.run(["./vectors", cases.name, results.name], folder=work)
    return "; ".join(compare(cases, results) for compare in COMPARISONS)


def check_apple_pictures(work: Path) -> str:
    """Compile a whole bundle as it is where Apple's frameworks are, and take pictures of those."""
    built = build(project=DETECTOR.write(work / "project", "ios"), targets=["ios"], out=work)
    folder = built.bundles[0].bundle.path
    mirrored = [f"mirror/{name}.swift" for name in MIRRORS]
    copied(folder, [HERE / "swift" / name for name in (*mirrored, "Drawing.swift")])
    module = f"Edgepack{make_type_name(DETECTOR.name)}"
    files = [f"Sources/{module}/{file.name}" for file in (folder / "Sources" / module).iterdir()]
    tools = toolchain()
    # With library evolution enumerations may grow, as those of Apple's frameworks may; it warns of
    # Foundation, which Linux has without.
    mirror = [
        *SWIFTC[:3],
        "-I",
        ".",
        "-parse-as-library",
        "-enable-library-evolution",
        "-emit-module",
    ]
    for name in MIRRORS:
        own = ["-emit-object", "-module-name", name, f"{name}.swift"]
        tools.run([*mirror, *own], folder=folder)
    # Optimized, as apps are: the compiler lets go of objects as soon as it may.
    made = ["-O", "-parse-as-library", "-module-name", module, "-o", "drawing"]
    linked = ["-I", ".", "-I", f"Sources/C{module}/include", "-L/runtime", "-lonnxruntime"]
    objects = [f"{name}.o" for name in MIRRORS]
    tools.run([*SWIFTC, *made, *linked, *objects, "Drawing.swift", *files], folder=folder)
    tools.run(["./drawing", "."], folder=folder)
    return f"{len(files)} files"


def sources() -> list[Path]:
    """Return the sources that are proven here."""
    return [find_templates_dir() / "apple" / "Sources" / f"{name}.swift" for name in SOURCES]


def copied(work: Path, files: Iterable[Path]) -> None:
    """Copy files to where the compiler sees them."""
    for file in files:
        shutil.copy(file, work)


def write_turned(folder: Path) -> None:
    """Write a picture in each of EXIF's orientations, and as Pillow puts it upright.

    Where there is none of that number, what is to be said instead.
    """
    pixels = np.random.default_rng(3).integers(0, 256, (3, 5, 3), np.uint8)
    for orientation in range(10):
        picture = Image.fromarray(pixels)
        picture.getexif()[EXIF_ORIENTATION] = orientation
        case = folder / str(orientation)
        case.mkdir(parents=True)
        facts = {"width": 5, "height": 3, "orientation": orientation}
        (case / "case.json").write_text(json.dumps(facts))
        pixels.tofile(case / "pixels.bin")
        upright = case / "upright.bin"
        if orientation in range(1, 9):
            np.asarray(ImageOps.exif_transpose(picture)).tofile(upright)
        else:
            upright.write_text(
                f"the picture's orientation is {orientation}, 1 to 8 are expected, as in EXIF"
            )


def compare_turned(cases: Path, results: Path) -> str:
    """Return how many pictures are as Pillow puts them upright.

    Raises:
        NotHeldError: One is not.
    """
    written = sorted((cases / "turned").iterdir())
    for case in written:
        found = (results / "turned" / case.name / "upright.bin").read_bytes()
        require(found == (case / "upright.bin").read_bytes(), f"{case}: it is not upright")
    return f"{len(written)} orientations are turned upright, or refused"


def write_escaped(case: Path, copy: Path) -> None:
    """Write a case again, with the tokenizer's characters beyond ASCII as JSON's escapes."""
    copy.mkdir()
    shutil.copy(case / "case.json", copy)
    tokenizer = json.loads((case / "tokenizer.json").read_text(encoding="utf-8"))
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=True, indent=1))


COMPARISONS = (
    compare_images,
    compare_frames,
    compare_prescaled,
    compare_turned,
    compare_answers,
    compare_tokens,
    compare_refused,
)

PROOFS = (
    Proof("pictures, answers and texts are those of Python", prove),
    Proof("what takes pictures of Apple's frameworks fits to their API", check_apple_pictures),
)
