"""TypeScript's compiler on a bundle's code, strict, and on an app that uses its types."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from edgepack.errors import ToolError

from tests.mobile.proofs import Proof, require
from tests.web.js_models import dist, subject_of
from tests.web.node import install_packages, run_tool

HERE = Path(__file__).parent
OPTIONS = {
    "strict": True,
    "checkJs": True,
    "noEmit": True,
    "noFallthroughCasesInSwitch": True,
    "noImplicitOverride": True,
    "noUnusedLocals": True,
    "noUnusedParameters": True,
    "target": "es2023",
    "lib": ["es2023", "dom", "dom.iterable"],
    "types": ["node"],
}
BUNDLES = ("detector", "text", "pair", "several-inputs")
"""With a picture, a text, several inputs of both kinds, and tensors of several types."""


def compile_types(folder: Path, files: list[str], **options: object) -> str:
    """Return what TypeScript's compiler says of files; empty where all is well."""
    config = {"compilerOptions": {**OPTIONS, "module": "nodenext", **options}, "files": files}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    compiler = install_packages() / "typescript" / "bin" / "tsc"
    argv = ["node", str(compiler), "--project", str(folder / "tsconfig.json"), "--pretty", "false"]
    done = run_tool(argv, timeout_s=300)
    return "" if done.exit_code == 0 else f"{done.text}{done.stderr.decode('utf-8', 'replace')}"


def prove_code(work: Path) -> str:
    """Check the JavaScript of bundles, with the types in its comments, and the tests' own."""
    del work
    files = [
        str(path.relative_to(dist()))
        for name in BUNDLES
        for path in sorted(subject_of(name).bundle.path.rglob("*.js"))
    ]
    said = compile_types(dist(), files)
    require(not said, said)
    return f"{len(files)} files of {len(BUNDLES)} bundles"


def prove_app(work: Path) -> str:
    """Compile an app that uses a bundle, for Node and as bundlers do, and one with mistakes."""
    name = "edgepack-detector"
    link(work, name)
    for module, resolution in (("nodenext", "nodenext"), ("esnext", "bundler")):
        for types in (["node"], []):
            shutil.copy(HERE / "js" / "app.ts", work / "app.ts")
            options = {"module": module, "moduleResolution": resolution, "types": types}
            said = compile_types(work, ["app.ts"], **options)
            require(not said, f"{resolution}: {said}")
    # Where there is no browser, the types that only browsers have are not there either.
    (work / "node.ts").write_text(_IN_NODE)
    said = compile_types(work, ["node.ts"], lib=["es2023"])
    require(not said, said)
    return f"4 ways; {find_mistakes(work)} mistakes are found"


def link(work: Path, name: str) -> None:
    """Put a bundle and the pinned packages where an app finds them."""
    packages = work / "node_modules"
    packages.mkdir()
    for package in install_packages().iterdir():
        (packages / package.name).symlink_to(package)
    (packages / name).symlink_to(subject_of("detector").bundle.path)
    (work / "package.json").write_text('{"type": "module"}')


def find_mistakes(work: Path) -> int:
    """Return how many lines with a mistake are found; each has to be.

    Raises:
        ToolError: The compiler takes one.
    """
    (work / "wrong.ts").write_text(_WRONG)
    said = compile_types(work, ["wrong.ts"])
    wrong = [n for n, line in enumerate(_WRONG.splitlines(), 1) if line.endswith("// wrong")]
    for line in wrong:
        if f"wrong.ts({line}," not in said:
            raise ToolError(f"line {line} of wrong.ts is taken: {said}", hint="mend the types")
    return len(wrong)


_IN_NODE = """\
import {Detector} from "edgepack-detector";

const model = await Detector.open();
const {answers} = await model.predict({data: new Uint8Array(12), width: 2, height: 2});
export const boxes = Object.values(answers).flat();
"""
_WRONG = """\
import {Detector, ModelError, Tensor} from "edgepack-detector";
new Detector(); // wrong
const model = await Detector.open({variant: 7}); // wrong
await model.predict("a text"); // wrong
await model.predict({images: new Tensor(new Int32Array(3072), [1, 3, 32, 32])}); // wrong
await model.predict({pictures: new Uint8Array(3)}); // wrong
const {answers} = await model.predict(new ImageData(2, 2), {scores: 1}); // wrong
answers.no; // wrong
const reason: ModelError["reason"] = "other"; // wrong
export default reason;
"""

PROOFS = (
    Proof("the code of bundles is strict TypeScript", prove_code),
    Proof("an app's TypeScript knows the model's types", prove_app),
)
