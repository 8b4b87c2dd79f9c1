"""``examples/shapes/ios``: type-checked, and its model run on a camera's frame, on Linux.

Core Video, AVFoundation and SwiftUI are mirrors of what the sample uses, in ``swift/mirror`` and
``swift/sample``: of the last two only declarations. The package's own description needs Xcode, and
is parsed.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.ondevice.runtime import edgepack_frames as frames
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.mobile.kotlin_sample import DEGREES, SHAPES, SIZE, write_frame
from tests.mobile.proofs import Proof, require
from tests.mobile.swift_models import LINK, STRICT, Compiled, compiled

HERE = Path(__file__).parent / "swift" / "sample"
SAMPLE = SHAPES / "ios" / "Shapes.swiftpm"
MIRRORS = ("CoreGraphics", "CoreVideo", "ImageIO")
NEAR = 0.1
"""Pixels, and percent of a score, that other kernels may differ by."""


def prove(work: Path) -> str:
    """Compile the sample's parts, run its finder on a frame, and compare with Python."""
    made = compiled(SHAPES / "edgepack.yaml", "shape-detector", work, MIRRORS)
    for path in (SAMPLE / "Sources").glob("*.swift"):
        shutil.copy(path, made.folder)
    include = f"bundle/Sources/C{made.module}/include"
    find = ["-I", ".", "-Xcc", f"-I{include}", "-I", include]
    argv = ["swiftc", *STRICT, *find, "ShapeFinder.swift", "main.swift"]
    shutil.copy(HERE / "main.swift", made.folder)
    objects = [f"{name}.o" for name in (*MIRRORS, made.module)]
    made.tools.run([*argv, *objects, "-o", "sample", *LINK], folder=made.folder)
    checked = check_types(made, find)
    frame = write_frame(made.folder)
    y, u, v = (np.frombuffer(plane.data, np.uint8) for plane in frame.planes)
    both = np.stack([u, v], axis=1)
    (made.folder / "frame").write_bytes(y.tobytes() + both.tobytes())
    size = [str(frame.width), str(frame.height)]
    lines = made.tools.run(["./sample", "bundle", "frame", *size], folder=made.folder).text
    first, second, refused = lines.splitlines()
    require("ask the camera for BGRA, 420f or 420v" in refused, refused)
    found = [check(made, frame, json.loads(first), 0.4)]
    found += [check(made, frame, json.loads(second), 0.85)]
    require(found == [3, 1], f"the scores leave {found} shapes")
    words = json.loads(first)["words"]
    require(words == "1 circle, 1 square, 1 triangle", words)
    return f"{checked}; {found[0]} boxes are Python's, turned by {DEGREES} degrees; {refused}"


def check_types(made: Compiled, find: list[str]) -> str:
    """Type-check the whole app against mirrors, and parse the package's description."""
    for name in ("AVFoundation", "SwiftUI"):
        shutil.copy(HERE / f"{name}.swift", made.folder)
        own = ["-parse-as-library", "-emit-module", "-module-name", name]
        made.tools.run(["swiftc", *STRICT, *own, "-I", ".", f"{name}.swift"], folder=made.folder)
    files = sorted(path.name for path in (SAMPLE / "Sources").glob("*.swift"))
    argv = ["swiftc", *STRICT, "-parse-as-library", "-typecheck", "-module-name", "Shapes"]
    made.tools.run([*argv, *find, *files], folder=made.folder)
    package = (SAMPLE / "Package.swift").read_text("utf-8")
    (made.folder / "Package.swift").write_text(package, "utf-8")
    made.tools.run(["swiftc", "-parse", "Package.swift"], folder=made.folder)
    [named] = re.findall(r'package\(path: "\.\./\.\./dist/(.+)"\)', package)
    wanted = f"{made.manifest.name}-{made.manifest.version}-{made.manifest.target}"
    require(named == wanted, f"Package.swift names {named}, the bundle is {wanted}")
    require(f'name: "{made.module}"' in package, f"Package.swift does not name {made.module}")
    return f"{len(files)} files"


def check(made: Compiled, frame: frames.Frame, found: dict[str, Any], score: float) -> int:
    """Hold what the finder found against Python's; return how many shapes that are."""
    require(found["width"] == SIZE[0], f"the upright picture is {found['width']} wide")
    model = loader.load(made.bundle.path, found["variant"])
    options = loader.AnswerOptions(score=score)
    wanted = model.predict(frames.make_pixels(frame), options=options)["boxes"]
    labels = [each.label for each in wanted]
    require([row[0] for row in found["shapes"]] == labels, f"{found}: {wanted}")
    for (_, share, *box), other in zip(found["shapes"], wanted, strict=True):
        far = np.abs(np.array([share * 100, *box]) - [other.score * 100, *other.box]).max()
        require(far < NEAR, f"{far} apart: {box}: {other}")
    return len(wanted)


PROOFS = (Proof("the sample is type-checked, and finds what Python finds", prove),)
