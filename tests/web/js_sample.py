"""``examples/shapes/web`` in a headless Chromium: the page that an app developer copies.

What its README says is done: the bundle is built, npm installs it, a server has the folder. The
camera is a film of one drawing; the boxes on the page are compared with Python's of that drawing.
"""

from __future__ import annotations

import atexit
import re
import runpy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from edgepack.builder.build import build
from edgepack.errors import ToolError
from edgepack.ondevice.runtime import edgepack_frames as frames
from edgepack.ondevice.runtime import edgepack_loader as loader
from PIL import Image

from tests.mobile.proofs import ROOT, NotHeldError, Proof, require
from tests.support.servers.chromium import DESKTOP, PHONE, find_chromium, launched
from tests.web.node import INSTALL_TIMEOUT_S, run_tool
from tests.web.serving import serving

SAMPLE = ROOT / "examples" / "shapes"
SIZE = (320, 240)
SEED = 30
"""Of a drawing with one shape of each kind, which the model is sure of."""
VARIANT = "cpu-int8-static"
"""This Chromium has no GPU."""
CAMERA = "--use-fake-device-for-media-stream"
ALLOWED = "--use-fake-ui-for-media-stream"
NEAR_PX = 0.1
"""WebAssembly's kernels may round otherwise than this machine's; the pixels are the same."""
NEAR_PERCENT = 1
TIMEOUT_MS = 60_000
_RECORD = """
const drawn = window.drawn = {boxes: [], words: []};
const size = Object.getOwnPropertyDescriptor(HTMLCanvasElement.prototype, "width");
Object.defineProperty(HTMLCanvasElement.prototype, "width", {...size, set(width) {
  drawn.boxes = [];
  drawn.words = [];
  size.set.call(this, width);
}});
const {prototype} = CanvasRenderingContext2D;
const {strokeRect, fillText} = prototype;
prototype.strokeRect = function (...box) {
  drawn.boxes.push(box);
  strokeRect.apply(this, box);
};
prototype.fillText = function (...words) {
  drawn.words.push(words[0]);
  fillText.apply(this, words);
};
"""
"""What the page draws since its canvas got a size."""
_READ = """() => {
  const canvas = document.getElementById("boxes");
  const {width, height} = canvas;
  const context = canvas.getContext("2d");
  const isPainted = ([left, top]) => context.getImageData(left, top, 1, 1).data[3] > 0;
  return {...drawn, width, height, painted: drawn.boxes.filter(isPainted).length};
}"""


@dataclass(frozen=True)
class Found:
    """An object: its label, its score in percent, and its edges in pixels."""

    label: str
    percent: int
    box: tuple[float, float, float, float]


@cache
def installed() -> tuple[Path, Path]:
    """Follow the README; return the page's folder, and the bundle's.

    Raises:
        EdgepackError: The bundle cannot be built, or npm cannot install it.
    """
    work = Path(mkdtemp(prefix="edgepack-sample-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    result = build(project=SAMPLE / "edgepack.yaml", targets=["web"], out=work / "dist")
    result.require_all()
    page = work / "web"
    shutil.copytree(SAMPLE / "web", page, ignore=shutil.ignore_patterns("node_modules"))
    argv = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = run_tool(argv, timeout_s=INSTALL_TIMEOUT_S, cwd=page)
    if done.exit_code:
        raise ToolError(f"npm does not install the sample{done.last_lines}", hint="mend it")
    return page, result.bundles[0].bundle.path


@cache
def drawing() -> Image.Image:
    """Return what the camera sees."""
    draw = runpy.run_path(str(SAMPLE / "drawing.py"))["draw"]
    return draw(np.random.default_rng(SEED), *SIZE).picture


def write_film(path: Path) -> frames.Frame:
    """Write the drawing as a film of one frame, and return that frame.

    Chromium's camera says nothing of its colours: the package takes BT.709 in video range.
    """
    width, height = SIZE
    red, green, blue = np.moveaxis(np.asarray(drawing(), np.float64), 2, 0)
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    planes = [16 + luma * 219 / 255]
    for colour, most in ((blue, 1.8556), (red, 1.5748)):
        chroma = 128 + (colour - luma) / most * 224 / 255
        planes.append(chroma.reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3)))
    y, u, v = (np.rint(plane).clip(0, 255).astype(np.uint8) for plane in planes)
    head = f"YUV4MPEG2 W{width} H{height} F30:1 Ip A1:1 C420jpeg\n"
    path.write_bytes(head.encode() + b"FRAME\n" + y.tobytes() + u.tobytes() + v.tobytes())
    views = [frames.Plane(plane.tobytes(), plane.shape[1], 1) for plane in (y, u, v)]
    return frames.Frame("yuv420", width, height, views, 0, "bt709", "video")


def predict(picture: np.ndarray, score: float = 0.4) -> list[Found]:
    """Return what Python's loader finds, in the same variant."""
    model = loader.load(installed()[1], VARIANT)
    found = model.predict(picture, options=loader.AnswerOptions(score=score))["boxes"]
    return [Found(each.label, round(each.score * 100), tuple(each.box)) for each in found]


@contextmanager
def shown(*options: str, folder: Path | None = None, **settings: Any) -> Iterator[Any]:
    """Open the page in a browser that keeps what is drawn.

    Raises:
        ToolError: There is no Chromium.
        NotHeldError: What is waited for does not come.
    """
    from playwright.sync_api import Error

    path = find_chromium()
    if path is None:
        raise ToolError("there is no Chromium on PATH", hint="install it: apt-get install chromium")
    root = folder or installed()[0]
    with serving(root, root) as site, launched(path, *options) as browser:
        page = browser.new_context(**{**DESKTOP, **settings}).new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.add_init_script(_RECORD)
        page.goto(f"{site.url}/index.html")
        try:
            yield page
        except Error as error:
            raise NotHeldError(f"{error}") from error


@contextmanager
def filmed(work: Path, **settings: Any) -> Iterator[Any]:
    """Open the page with the drawing before its camera."""
    film = work / "film.y4m"
    write_film(film)
    with shown(CAMERA, ALLOWED, f"--use-file-for-fake-video-capture={film}", **settings) as page:
        yield page


def wait_for(page: Any, pattern: str) -> str:
    """Wait until the page's status is like a pattern, and return it."""
    status = page.get_by_role("status").filter(has_text=re.compile(pattern))
    return status.text_content()


def start_camera(page: Any, pattern: str) -> str:
    """Start the camera when the model is open, and return the status that comes of it."""
    wait_for(page, VARIANT)
    page.get_by_role("button", name="Start the camera").click()
    return wait_for(page, pattern)


def open_picture(page: Any, path: Path) -> None:
    page.get_by_label("Open a picture").set_input_files(path)


def compare_boxes(page: Any, wanted: list[Found]) -> float:
    """Hold the boxes that are drawn against Python's; return how far they are apart in pixels."""
    drawn = page.evaluate(_READ)
    require((drawn["width"], drawn["height"]) == SIZE, f"the canvas has another size: {drawn}")
    require(drawn["painted"] == len(drawn["boxes"]), f"boxes have no pixels: {drawn}")
    words = [re.fullmatch(r"(\w+) (\d+) %", each) for each in drawn["words"]]
    found = [
        Found(match[1], int(match[2]), (left, top, left + width, top + height))
        for match, (left, top, width, height) in zip(words, drawn["boxes"], strict=True)
        if match
    ]
    labels = [each.label for each in found]
    require(labels == [each.label for each in wanted], f"{found}, not {wanted}")
    pairs = list(zip(found, wanted, strict=True))
    far = max(abs(a - b) for one, other in pairs for a, b in zip(one.box, other.box, strict=True))
    require(far < NEAR_PX, f"{far:.1f} pixels apart: {found}, not {wanted}")
    off = max(abs(one.percent - other.percent) for one, other in pairs)
    require(off <= NEAR_PERCENT, f"scores are {off} % apart: {found}, not {wanted}")
    return far


def prove_camera(work: Path) -> str:
    """Start the camera, compare what is drawn over it, stop it, and take it away."""
    wanted = predict(frames.make_pixels(write_film(work / "film.y4m")))
    require({each.label for each in wanted} == {"circle", "square", "triangle"}, f"{wanted}")
    with filmed(work) as page:
        status = start_camera(page, rf"^{VARIANT}, \d+ frames a second$")
        far = compare_boxes(page, wanted)
        said = page.locator("figcaption").text_content()
        require(sorted(said.split(", ")) == ["1 circle", "1 square", "1 triangle"], said)
        page.get_by_role("slider", name="Least score").fill("0.85")
        page.wait_for_function("document.getElementById('found').textContent === '1 triangle'")
        page.get_by_role("button", name="Stop the camera").click()
        page.get_by_role("button", name="Start the camera").wait_for()
        require(not page.locator("video").is_visible(), "the video stays")
        start_camera(page, "frames a second$")
        page.evaluate("video.srcObject.getVideoTracks()[0].dispatchEvent(new Event('ended'))")
        wait_for(page, "camera is gone")
    return f"{len(wanted)} boxes, at most {far:.2f} pixels from Python's; {status}"


def prove_files(work: Path) -> str:
    """Open a picture, change the threshold, and open what is no picture."""
    path = work / "drawing.png"
    drawing().save(path)
    (work / "text.png").write_text("no picture")
    with shown(**PHONE) as page:
        wait_for(page, VARIANT)
        open_picture(page, path)
        page.wait_for_function("drawn.boxes.length")
        far = compare_boxes(page, predict(np.asarray(drawing())))
        page.get_by_role("slider", name="Least score").fill("0.85")
        page.wait_for_function("drawn.boxes.length === 1")
        compare_boxes(page, predict(np.asarray(drawing()), 0.85))
        open_picture(page, work / "text.png")
        said = wait_for(page, "image")
        require(not page.locator("img").is_visible(), "what is no picture is shown")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        require(wide <= 0, f"the page is {wide} pixels wider than a phone")
    return f"at most {far:.2f} pixels from Python's; no picture: {said}"


def prove_refusals(work: Path) -> str:
    """Refuse the camera, take it away, and open a picture all the same."""
    path = work / "drawing.png"
    drawing().save(path)
    said = []
    for options, pattern in (((), "no camera"), ((CAMERA, "--deny-permission-prompts"), "not use")):
        with shown(*options) as page:
            said.append(start_camera(page, pattern))
            open_picture(page, path)
            page.wait_for_function("drawn.boxes.length")
            compare_boxes(page, predict(np.asarray(drawing())))
    return " ".join(said)


def prove_bare(work: Path) -> str:
    """Open the page where nothing is installed, which it says."""
    shutil.copytree(SAMPLE / "web", work / "web", ignore=shutil.ignore_patterns("node_modules"))
    with shown(folder=work / "web") as page:
        return wait_for(page, "README.md")


PROOFS = (
    Proof("boxes over a camera", prove_camera),
    Proof("a picture from a file", prove_files),
    Proof("no camera", prove_refusals),
    Proof("nothing installed", prove_bare),
)
