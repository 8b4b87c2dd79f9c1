"""Apps that Vite, esbuild and nothing packs, as docs/web.md says, in a headless Chromium."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from edgepack.errors import ToolError

from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import DETECTOR, Signature
from tests.support.servers.chromium import find_chromium, launched
from tests.web.js_browser import TIMEOUT_MS, require_same, shown
from tests.web.js_models import build_bundle, subject_of
from tests.web.js_shared import LIBRARY, make_app, shared_dist
from tests.web.node import install_packages, run_node, run_tool
from tests.web.serving import serving

HERE = Path(__file__).parent
SCRIPTS = ("bundled.js", "bundled_worker.js")
PACKAGES = ("edgepack-detector", "edgepack-text", "vendored-pair", "vendored-named")
_LABELS = "my l\u00e4bels [1] + (2)'s & \u65e5\u672c.txt"
NAMED: Signature = replace(
    DETECTOR,
    name="named",
    project=DETECTOR.project.replace("labels.txt", json.dumps(_LABELS)),
    files=((_LABELS, "cup\nplate\n"),),
)
"""A detector whose file has a name that addresses write otherwise."""
_PAGE = '<!doctype html><meta charset="utf-8"><script type="module" src="bundled.js"></script>'


@cache
def named() -> Path:
    """Build the bundle of the model and return its folder.

    Raises:
        EdgepackError: It cannot be built.
    """
    return build_bundle(NAMED)[0].path


def write_app(work: Path) -> Path:
    """Write an app with two models that share their code and two that have their own."""
    app = make_app(work / "app", LIBRARY)
    (app / "node_modules" / "vendored-pair").symlink_to(subject_of("pair").bundle.path)
    (app / "node_modules" / "vendored-named").symlink_to(named())
    for name in SCRIPTS:
        shutil.copy(HERE / "js" / name, app / name)
    (app / "index.html").write_text(_PAGE)
    return app


def pack(app: Path, *argv: str) -> str:
    """Run a bundler in the app's folder, and return what it said.

    Raises:
        ToolError: It fails.
    """
    packages = install_packages()
    done = run_tool(["node", str(packages / argv[0]), *argv[1:]], timeout_s=300, cwd=app)
    said = f"{done.text}{done.stderr.decode('utf-8', 'replace')}"
    if done.exit_code:
        raise ToolError(f"{argv[0]} fails: {said}", hint="mend it")
    return said


def show(folder: Path, query: str = "") -> Any:
    """Open a folder's page in a browser, and return what its models gave.

    Raises:
        ToolError: There is no Chromium.
    """
    path = find_chromium()
    if path is None:
        raise ToolError("there is no Chromium on PATH", hint="install it: apt-get install chromium")
    with serving(folder, folder) as site, launched(path) as browser:
        page = browser.new_context().new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"{site.url}/index.html?{query}")
        page.wait_for_function("window.proof")
        return page.evaluate("async () => proof.found")


def check(found: Any) -> None:
    """Hold what the packed app's models gave."""
    require("error" not in found, f"{found}")
    require_same(found["variants"], ["cpu-fp32"] * len(PACKAGES), "the variants")
    labels = [each["label"] for each in found["objects"]]
    require_same(labels, ["cup", "plate"], "labels")
    require_same(found["named"], found["objects"], "what a model gave whose file has another name")
    require_same([len(vector) for vector in found["vectors"]], [6, 3], "sizes of vectors")
    require(found["isError"], "an error of a model that shares its code is not the library's")
    require_same(found["worker"], found["objects"], "what a worker's model gave")


def prove_vite(work: Path) -> str:
    """Pack it with Vite, without a setting."""
    app = write_app(work)
    said = pack(app, "vite/bin/vite.js", "build")
    require("externalized" not in said, said)
    check(show(app / "dist"))
    files = [path for path in (app / "dist" / "assets").iterdir() if path.suffix == ".wasm"]
    return f"{len(PACKAGES)} models and a worker; {len(files)} files of WebAssembly are copied"


def prove_esbuild(work: Path) -> str:
    """Pack it with esbuild, and copy the files that it leaves."""
    app = write_app(work)
    options = ("--bundle", "--format=esm", "--splitting", "--outdir=dist", "--log-level=warning")
    said = pack(app, "esbuild/bin/esbuild", *SCRIPTS, *options)
    require(not said, said)
    for name in PACKAGES:
        shutil.copytree(app / "node_modules" / name, app / "dist" / "models" / name)
    runtime = app / "node_modules" / "onnxruntime-web" / "dist"
    shutil.copy(runtime / "ort-wasm-simd-threaded.wasm", app / "dist")
    (app / "dist" / "index.html").write_text(_PAGE)
    check(show(app / "dist", "folder=models"))
    left = json.dumps(show(app / "dist"))
    require("the bundle is not whole: http" in left, left)
    return f"{len(PACKAGES)} models and a worker; without their folder they say what is missing"


def prove_other_format(work: Path) -> str:
    """Pack a model with esbuild as a CommonJS module, which does not know its own address."""
    app = write_app(work)
    (app / "look.js").write_text(_LOOK)
    options = ("--bundle", "--format=cjs", "--platform=node", "--external:onnxruntime-node")
    more = ("--external:#*", "--outfile=look.cjs", "--log-level=error")
    pack(app, "esbuild/bin/esbuild", "look.js", *options, *more)
    found = json.loads(run_node(app / "look.cjs", named()).text)
    require_same(found[:2], ["cpu-fp32"] * 2, "models with a function, and with an address")
    wanted = "missing: this package does not know where it is: Invalid URL: have the bundler "
    require(all(said.startswith(wanted) for said in found[2:]) and len(found) == 4, f"{found}")
    return found[2]


_LOOK = """\
import {readFile} from "node:fs/promises";
import {join} from "node:path";
import {pathToFileURL} from "node:url";
import * as ort from "onnxruntime-node";
import {Named} from "vendored-named";
const folder = process.argv[2];
const read = (path) => readFile(join(folder, path));
const sources = [read, {baseUrl: pathToFileURL(folder)}, undefined, {baseUrl: "here"}];
const opened = sources.map((source) => Named.open({source, ort}).then(
  ({variant}) => variant, ({reason, message}) => `${reason}: ${message}`,
));
Promise.all(opened).then((found) => console.log(JSON.stringify(found)));
"""


def prove_alone(work: Path) -> str:
    """Open two models that share their code in a page without a bundler."""
    shutil.copytree(shared_dist() / "edgepack-runtime-web", work / "dist" / "edgepack-runtime")
    for name in ("detector", "text"):
        shutil.copytree(shared_dist() / f"{name}-1.0.0-web", work / "dist" / name)
    with shown(work) as page:
        found = [page.call("open", "detector", "Detector"), page.call("open", "text", "Text")]
        require(all(each["test"]["passed"] for each in found), f"{found}")
        labels = [each["label"] for each in page.call("predict", "detector")["objects"]]
        require_same(labels, ["cup", "plate"], "labels")
        asked = [path for path in page.site.asked if path.endswith("/runtime/opener.js")]
        require_same(asked, ["/dist/edgepack-runtime/runtime/opener.js"], "what was fetched")
    return f"{len(found)} models, and their code once"


PROOFS = (
    Proof("models that share their code, without a bundler", prove_alone),
    Proof("an app that Vite packs", prove_vite),
    Proof("an app that esbuild packs", prove_esbuild),
    Proof("a model that esbuild packs as another format", prove_other_format),
)
