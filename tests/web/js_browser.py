"""Bundles of the target ``web`` in a headless Chromium: WebAssembly, and WebGPU on SwiftShader."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgepack.base.resources import find_templates_dir
from edgepack.errors import ToolError

from tests.mobile.proofs import NotHeldError, Proof, require
from tests.support.servers.chromium import find_chromium, launched
from tests.web.js_models import subject_of
from tests.web.node import install_packages
from tests.web.serving import Site, serving

HERE = Path(__file__).parent
WEBGPU = (
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
)
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
PICTURED = "detector"
TIMEOUT_MS = 120_000
_WAIT = """async () => {
  while (!window.proof) await new Promise((done) => setTimeout(done, 20));
}"""


class Page:
    """A page with the functions of ``page.js``."""

    def __init__(self, page: Any, site: Site, work: Path) -> None:
        self.page = page
        self.site = site
        self.work = work

    def call(self, function: str, *arguments: object) -> Any:
        """Call a function of ``page.js`` and return what it gives.

        Raises:
            NotHeldError: It throws.
        """
        from playwright.sync_api import Error

        try:
            return self.page.evaluate(f"(given) => proof.{function}(...given)", list(arguments))
        except Error as error:
            raise NotHeldError(f"{function}: {error}") from error

    def go(self, query: str = "") -> Page:
        """Load the page anew."""
        self.page.goto(f"{self.site.url}/page.html?{query}")
        # Playwright's own waiting needs what a policy forbids.
        self.page.evaluate(_WAIT)
        return self


@contextmanager
def shown(work: Path, *options: str) -> Iterator[Page]:
    """Open a page in a browser, on a server whose ``/dist`` is a folder for bundles.

    Raises:
        ToolError: There is no Chromium.
    """
    path = find_chromium()
    if path is None:
        raise ToolError("there is no Chromium on PATH", hint="install it: apt-get install chromium")
    (work / "node_modules").symlink_to(install_packages())
    shutil.copytree(find_templates_dir() / "web" / "runtime", work / "dist" / "runtime")
    with serving(work, HERE / "js") as site, launched(path, *options) as browser:
        context = browser.new_context()
        context.set_default_timeout(TIMEOUT_MS)
        yield Page(context.new_page(), site, work).go()


def copy_bundle(work: Path, name: str) -> Path:
    """Copy a bundle to where the server has it."""
    folder = work / "dist" / name
    shutil.copytree(subject_of(name).bundle.path, folder)
    return folder


def require_same(found: Any, wanted: Any, what: str) -> None:
    require(found == wanted, f"{what}: {found!r}, not {wanted!r}")


def prove_pictures(work: Path) -> str:
    """Read every kind of picture that a browser has, and compare with what it was made of."""
    with shown(work, *CAMERA) as page:
        kinds = {**page.call("comparePictures"), **page.call("compareYuv")}
        other = {kind: count for kind, count in kinds.items() if count}
        require(not other, f"values that differ: {other}")
        refused = page.call("refusePictures")
        require("has not been loaded" in refused["image"], refused["image"])
        require("0 x 0" in refused["canvas"], refused["canvas"])
        require(refused["blob"].startswith("input: the picture cannot be read"), refused["blob"])
        video = page.call("readVideo")
        require("no picture yet" in video["early"], video["early"])
        require_same([video["width"], video["height"]], [64, 48], "the video's size")
        # The browser's own conversion to YUV and back.
        far = max(abs(a - b) for a, b in zip(video["mean"], (200, 40, 90), strict=True))
        require(far < 6, f"the video's colour is {video['mean']}")
        camera = page.call("readCamera")
        require_same(camera["sizes"], [[320, 240]] * 2, "the camera's sizes")
        require("is closed" in camera["closed"], camera["closed"])
    return f"{len(kinds)} kinds are equal; a video {far:.1f} off; a camera gives {camera['format']}"


def prove_model(query: str, threads: int, note: str) -> Callable[[Path], str]:
    """Return a proof that a bundle runs in a page, with so many threads and such a note."""

    def look(work: Path) -> str:
        copy_bundle(work, PICTURED)
        type_name = subject_of(PICTURED).app.type_name
        with shown(work) as page:
            found = page.go(query).call("open", PICTURED, type_name, {}, threads)
            require(found["test"]["passed"], f"the self-test failed: {found}")
            notes = " ".join(found["notes"])
            require(re.search(note, notes) is not None if note else not notes, f"notes: {notes}")
            require(found["isolated"] == ("isolated" in query), f"isolated: {found}")
            require_same(found["threads"], threads, "threads")
            require_same(found["timeout"], 120_000 if threads > 1 else 0, "the timeout")
            answers = page.call("predict", PICTURED)
            labels = [each["label"] for each in answers["objects"]]
            require_same(labels, ["cup", "plate"], "labels")
            few = page.call("predict", PICTURED, {"allow": ["plate"]})
            require_same([each["label"] for each in few["objects"]], ["plate"], "allowed labels")
            said = page.call("predictRefused", PICTURED, {"allow": ["bus"]})
            require_same(
                said,
                "input: the option 'allow' names 'bus', and the labels are 'cup', 'plate'",
                "bus",
            )
            said = page.call("predictRefused", PICTURED, {"scores": 0.5})
            require("no option 'scores'" in said, said)
            said = page.call("predictRefused", PICTURED, {"allow": "cup"})
            require("'allow' is 'cup', expected a list" in said, said)
            worked = page.call("runInWorker", PICTURED, type_name)
            require_same(worked.get("answers"), answers, f"in a worker ({worked})")
        return f"{found['variant']}, {found['threads']} threads, also in a worker"

    return look


def prove_blocked(work: Path) -> str:
    """Open a bundle where the policy forbids the workers that threads are."""
    copy_bundle(work, PICTURED)
    given = (PICTURED, subject_of(PICTURED).app.type_name, {})
    with shown(work) as page:
        said = page.go("isolated&csp&alone").call("openRefused", *given, 2, 3000)
        require(said.startswith("runtime: onnxruntime did not start: "), said)
        page.go("isolated&csp&alone").call("open", *given, 1)
    return said


def prove_cache(work: Path) -> str:
    """Open a bundle again and again: what is kept, changed and missing."""
    folder = copy_bundle(work, PICTURED)
    given = (PICTURED, subject_of(PICTURED).app.type_name)
    with shown(work) as page:
        page.call("open", *given)
        first = count_asked(page)
        page.go().call("open", *given)
        second = count_asked(page)
        require(second == 0 < first, f"{first} files are fetched first, then {second}")
        spoiled = page.call("spoilCache", "detector")
        page.go().call("open", *given)
        require_same(count_asked(page), first, "files that are fetched when all kept are spoiled")
        model = next((folder / "models").iterdir())
        data = model.read_bytes()
        said = {}
        for what, content in (("changed", data[:-1] + b"?"), ("short", data[:-1]), ("none", None)):
            page.call("spoilCache", "detector")
            model.unlink(missing_ok=True)
            if content is not None:
                model.write_bytes(content)
            said[what] = page.go().call("openRefused", *given)
        require(said["changed"].startswith("changed: the bundle is damaged: models/"), str(said))
        require(f"{len(data) - 1} bytes, not {len(data)}" in said["short"], str(said))
        gone = re.match("missing: the bundle is not whole: http.*: 404", said["none"])
        require(gone is not None, str(said))
        model.write_bytes(data)
        source = {"baseUrl": f"/dist/{PICTURED}"}
        page.go().call("open", *given, {"source": source})
        source = {"baseUrl": "/elsewhere"}
        wrong = page.go().call("openRefused", *given, {"source": source})
        require(wrong.startswith("missing: "), wrong)
    return f"{first} files, {spoiled} kept; 3 damaged bundles are refused"


def count_asked(page: Page) -> int:
    """Return how many files of the bundle were fetched, but for its manifest, and forget them."""
    found = [p for p in page.site.asked if re.search("/(models|golden|files)/", p)]
    page.site.asked.clear()
    return len(found)


def prove_webgpu(work: Path) -> str:
    """Run a bundle on SwiftShader's WebGPU, lose the device, and open it again."""
    folder = copy_bundle(work, PICTURED)
    prefer_webgpu(folder)
    given = (PICTURED, subject_of(PICTURED).app.type_name)
    with shown(work) as page:
        found = page.call("open", *given)
        [[variant, why]] = found["passedOver"]
        require_same(variant, "webgpu-fp32", "what is passed over")
        require("WebGpuExecutionProvider needs" in why, why)
        require_same(found["variant"], "cpu-fp32", "the variant")
        require_same(count_gpu(page), 0, "downloads of WebGPU without a GPU")
    for name in ("node_modules", "dist/runtime"):
        path = work / name
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    with shown(work, *WEBGPU) as page:
        found = page.call("open", *given)
        require_same([found["variant"], found["passedOver"]], ["webgpu-fp32", []], "the variant")
        require(found["test"]["passed"], f"the self-test failed: {found}")
        page.call("predict", PICTURED)
        lost = page.call("loseDevice", PICTURED)
        require(lost.startswith("device-lost: the GPU's device was lost"), lost)
        again = page.go().call("open", *given)
        require(count_gpu(page) > 0, "WebGPU was not downloaded")
        prefer_half(folder)
        found = page.go().call("open", *given)
        [[_, why_half]] = found["passedOver"]
        require_same(why_half, "the GPU has no shader-f16, which float16 needs", "why")
        require_same(count_gpu(page), 0, "downloads of WebGPU without shader-f16")
    return (
        f"without it: {why}; golden at {min(found['test']['decibels']):.0f} dB; {again['variant']}"
    )


def count_gpu(page: Page) -> int:
    """Return how many files of onnxruntime's build with WebGPU were fetched; forget all."""
    found = [p for p in page.site.asked if re.search(r"webgpu|asyncify", p)]
    page.site.asked.clear()
    return len(found)


def prefer_half(folder: Path) -> None:
    """Make the first variant one in float16."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["variants"][0]["recipe"] = "fp16"
    path.write_text(json.dumps(manifest))


def prefer_webgpu(folder: Path) -> None:
    """Put a variant for WebGPU before a bundle's own, with the same model and goldens."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    [entry] = manifest["variants"]
    providers = [{"name": f"{name}ExecutionProvider", "options": {}} for name in ("WebGpu", "CPU")]
    first = {"id": "webgpu-fp32", "backend": "webgpu", "providers": providers, "placement": 0.5}
    manifest["variants"] = [{**entry, **first}, entry]
    for golden in manifest["goldens"]:
        golden["outputs"]["webgpu-fp32"] = golden["outputs"][entry["id"]]
    path.write_text(json.dumps(manifest))


PROOFS = (
    Proof("pictures in Chromium", prove_pictures),
    Proof("a bundle in Chromium", prove_model("", 1, "one thread")),
    Proof("a bundle in an isolated page", prove_model("isolated", 2, "")),
    Proof("a bundle under a Content-Security-Policy", prove_model("isolated&csp", 2, "")),
    Proof("threads without workers", prove_blocked),
    Proof("files that are kept, changed and missing", prove_cache),
    Proof("WebGPU, simulated by SwiftShader", prove_webgpu),
)
