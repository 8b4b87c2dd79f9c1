"""How long a camera's frame takes to become the input, beside the detector's run on it.

The detector is that of ``examples/shapes``: 160 x 160 pixels, letterboxed. Its run and the making
of its input take turns in one process; each row is the ratio of the two. A language adds a function
to :data:`LANGUAGES`, which returns the seconds of both, for each round of each frame.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from edgepack.base.resources import find_data_root
from edgepack.model.running import make_session
from edgepack.ondevice.runtime import edgepack_frames as frames
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.project.loading import read_project

from tests.bench.measuring import Row, ratio_text, scratch
from tests.mobile.jvm import ANDROID, ORT, STDLIB, compile_kotlin, jars, run_main
from tests.mobile.kotlin_vectors import HERE as MOBILE
from tests.mobile.kotlin_vectors import rendered

SHAPES = find_data_root() / "examples" / "shapes"
ROUNDS = 20
SIZES = ((1280, 720), (4000, 3000))
CASES = [f"{form}:{w}:{h}:{turn}" for form in ("yuv", "rgba") for w, h in SIZES for turn in (0, 90)]
"""Format, width, height and rotation of each frame."""

Times = Mapping[str, Sequence[tuple[float, float]]]


def measure() -> Iterator[Row]:
    """Yield one row for each frame in each language."""
    project = read_project(SHAPES / "edgepack.yaml").project
    [(name, described)] = project.inputs.items()
    description = described.model_dump(mode="json")["image"]
    model = SHAPES / "shapes.onnx"
    with scratch() as work:
        (work / "description.json").write_text(json.dumps(description), encoding="utf-8")
        for language, find in LANGUAGES.items():
            for case, pairs in find(work, model, name).items():
                made, ran = (1e3 * median(column) for column in zip(*pairs, strict=True))
                yield Row(
                    f"{language}, frame {case}: preprocessing over the model's run",
                    f"{len(pairs)} rounds",
                    ratio_text(pairs),
                    "none",
                    f"{made:.1f} ms, the run {ran:.1f} ms",
                )


def _time_kotlin(work: Path, model: Path, name: str) -> Times:
    """Time Kotlin on the Java virtual machine, without and with averages of blocks."""
    del name
    sources = work / "kotlin"
    sources.mkdir()
    libraries = jars(STDLIB, ORT, ANDROID)
    rendered(sources)
    own = [MOBILE / "kotlin" / f"{name}.kt" for name in ("Bitmap", "Build")]
    own.append(Path(__file__).parent / "kotlin" / "Preprocessing.kt")
    classes = compile_kotlin([sources], work / "classes", classpath=libraries)
    friend = [f"-Xfriend-paths={classes}"]
    path = [classes, *libraries]
    program = compile_kotlin(own, work / "program", classpath=path, options=friend)
    arguments = [work / "description.json", model, str(ROUNDS)]
    cases = [*CASES, *(f"{case}:prescale" for case in CASES)]
    main = "edgepack.proof.PreprocessingKt"
    done = run_main(main, *arguments, *cases, classpath=[program, *path], timeout_s=1800)
    found: Times = json.loads(done.text.splitlines()[-1])
    return found


def _time_python(work: Path, model: Path, name: str) -> Times:
    """Time what devices run in Python."""
    description = json.loads((work / "description.json").read_text(encoding="utf-8"))
    session = make_session(model)

    def take_turns(frame: frames.Frame) -> tuple[float, float]:
        began = time.perf_counter()
        tensor = images.make_tensor(frames.make_pixels(frame), description)
        made = time.perf_counter()
        session.run(None, {name: tensor})
        return made - began, time.perf_counter() - made

    found = {}
    for case in CASES:
        frame = _make_frame(case)
        take_turns(frame)
        found[case] = [take_turns(frame) for _ in range(ROUNDS)]
    return found


def _make_frame(case: str) -> frames.Frame:
    """Return a frame that is smooth, with some noise, as photographs are."""
    form, *numbers = case.split(":")
    width, height, rotation = map(int, numbers)
    random = np.random.default_rng(width)

    def plane(columns: int, rows: int, size: int) -> frames.Plane:
        smooth = np.linspace(0, 200, columns * size) + random.integers(
            0, 16, (rows, columns * size)
        )
        return frames.Plane(smooth.astype(np.uint8).reshape(-1), columns * size, size)

    if form == "rgba":
        pixels = plane(width, height, 4)
        pixels.data[3::4] = 255
        return frames.Frame("rgba", width, height, [pixels], rotation)
    half = ((width + 1) // 2, (height + 1) // 2, 2)
    planes = [plane(width, height, 1), plane(*half), plane(*half)]
    return frames.Frame("yuv420", width, height, planes, rotation)


LANGUAGES: Mapping[str, Callable[[Path, Path, str], Times]] = {
    "Kotlin": _time_kotlin,
    "Python": _time_python,
}
"""Each takes a folder with ``description.json``, the model, and its input's name."""
