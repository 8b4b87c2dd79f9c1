"""Models that want more memory than WebAssembly has, in Node and in a headless Chromium."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import Signature
from tests.web.js_browser import copy_bundle, shown
from tests.web.js_changes import open_bundle, read_manifest, seal
from tests.web.js_models import build_bundle, dist, subject_of
from tests.web.node import run_node

HERE = Path(__file__).parent
HUNGRY = Signature(
    "hungry",
    (
        helper.make_node("ConstantOfShape", ["size"], ["much"]),
        helper.make_node("Concat", ["much", "much"], ["more"], axis=0),
        helper.make_node("ReduceSum", ["more"], ["total"], keepdims=0),
    ),
    (("size", TensorProto.INT64, [1]),),
    (("total", TensorProto.FLOAT, []),),
    lambda random: {"size": random.integers(1, 9, (3, 1))},
)
"""A model that computes with twice as many numbers as its input says."""
SHORT = "memory: inference failed: there is not enough memory: .*"
SAID = (
    "0",
    f"{SHORT}shape is too large.*",
    f"{SHORT}Integer overflow.*",
    "0",
    "1,6,3",
    "memory: no room for inputs of 1410000000 bytes: there is not enough memory: .*",
    "1,6,3",
    "0",
    "true",
)


@cache
def hungry() -> Path:
    """Build the bundle of the model and return its folder.

    Raises:
        EdgepackError: It cannot be built.
    """
    return build_bundle(HUNGRY)[0].path


def check(said: Sequence[str]) -> str:
    """Hold what the models said, one after the other."""
    require(len(said) == len(SAID), f"{said}")
    for found, wanted in zip(said, SAID, strict=True):
        require(re.fullmatch(wanted, found, re.DOTALL) is not None, f"{found}, not {wanted}")
    return f"{sum(wanted.startswith('memory') for wanted in SAID)} refusals, models run afterwards"


def prove_node(work: Path) -> str:
    """Run them in Node, with onnxruntime-web's WebAssembly."""
    del work
    shutil.copy(HERE / "js" / "memory.js", dist() / "memory.mjs")
    script = dist() / "exhaust.mjs"
    script.write_text(_IN_NODE)
    done = run_node(script, hungry() / "index.js", subject_of("pixels").bundle.path / "index.js")
    return check(json.loads(done.text.splitlines()[-1]))


_IN_NODE = """\
import * as ort from "onnxruntime-web";
import {exhaust} from "./memory.mjs";
const modules = await Promise.all(process.argv.slice(2).map((path) => import(path)));
process.stdout.write(`${JSON.stringify(await exhaust(...modules, {ort}))}\\n`);
"""


def prove_page(work: Path) -> str:
    """Run them in a page."""
    shutil.copytree(hungry(), work / "dist" / "hungry")
    copy_bundle(work, "pixels")
    with shown(work) as page:
        return check(page.page.evaluate(_IN_PAGE))


_IN_PAGE = """async () => {
  const paths = ["/dist/hungry/index.js", "/dist/pixels/index.js", "/memory.js"];
  const [hungry, pixels, {exhaust}] = await Promise.all(paths.map((path) => import(path)));
  return exhaust(hungry, pixels, {});
}"""


def prove_opening(work: Path) -> str:
    """Open a model whose golden input asks for more than there is."""
    bundle = dist() / "changed" / work.name
    shutil.copytree(hungry(), bundle)
    manifest = read_manifest(bundle)
    [golden] = manifest["goldens"][0]["inputs"]
    (bundle / golden["path"]).write_bytes(np.int64(10**18).tobytes())
    seal(bundle, manifest)
    said = open_bundle(bundle, "Hungry", "web")
    require(said.startswith("memory: no variant of hungry works here:   cpu-fp32: infer"), said)
    return said


def prove_short(work: Path) -> str:
    """Open a model that does not fit, and run one on an input that has more than all addresses."""
    del work
    script = dist() / "short.mjs"
    shutil.copy(HERE / "js" / "short.js", script)
    folders = [subject_of(name).bundle.path for name in ("pixels", "dynamic-batch")]
    found = json.loads(run_node(script, *folders).text.splitlines()[-1])
    # Of an app's own function, too, an array of a wrong place is no matter of memory.
    wanted = "missing: .*offset is out of bounds"
    require(re.fullmatch(wanted, found["fault"]) is not None, f"{found}")
    wanted = "memory: no variant of pixels works here: .* there is not enough memory: .*"
    require(re.fullmatch(wanted, found["opening"]) is not None, f"{found}")
    require([found["before"], found["after"]] == [False, True], f"when room is looked for: {found}")
    wanted = "memory: no room for inputs of 4608000000 bytes: there is not enough memory: .*"
    require(re.fullmatch(wanted, found["input"]) is not None, f"{found}")
    require(found["passed"], "the model does not run afterwards")
    return "room is looked for after an opening that failed; more than all addresses is refused"


PROOFS = (
    Proof("memory that is short for a session, and for an array", prove_short),
    Proof("an opening that memory is short for", prove_opening),
    Proof("memory that is short in Node", prove_node),
    Proof("memory that is short in Chromium", prove_page),
)
