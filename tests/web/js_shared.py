"""Three models in one app that share their code, in Node: types, answers, and what is refused."""

from __future__ import annotations

import atexit
import json
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import edgepack
from edgepack.apps.library import make_library
from edgepack.apps.npm import ROOT
from edgepack.apps.render import render_library
from edgepack.base.processes import ProgramResult
from edgepack.builder.build import build
from edgepack.bundle.archive import write_archive
from edgepack.errors import ToolError
from edgepack.project.profile import load_profile

from tests.mobile.proofs import Proof, require
from tests.web.js_models import SIGNATURES, TARGET, subject_of
from tests.web.js_types import compile_types
from tests.web.node import INSTALL_TIMEOUT_S, install_packages, run_node, run_tool

HERE = Path(__file__).parent
MODELS = ("detector", "text", "pair")
LIBRARY = f"edgepack-runtime-{edgepack.__version__}.tgz"


@cache
def shared_dist() -> Path:
    """Build the three models of one app, and return the folder with their packages.

    Raises:
        EdgepackError: One cannot be built.
    """
    work = Path(mkdtemp(prefix="edgepack-shared-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    for name in MODELS:
        signature = SIGNATURES[name]
        shared = replace(signature, project=f"app: {{runtime: shared}}\n{signature.project}")
        result = build(project=shared.write(work / "projects" / name, TARGET), out=work / "dist")
        result.require_all()
        require(result.libraries == (work / "dist/edgepack-runtime-web",), str(result.libraries))
    return work / "dist"


def install(app: Path, *packages: str | Path) -> ProgramResult:
    """Have npm add packages to an app, without a network."""
    app.mkdir(exist_ok=True)
    if not (app / "package.json").exists():
        (app / "package.json").write_text('{"private": true, "type": "module"}')
    argv = ["npm", "install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund"]
    given = [str(shared_dist() / package) for package in packages]
    return run_tool([*argv, *given], timeout_s=INSTALL_TIMEOUT_S, cwd=app)


def make_app(app: Path, *packages: str) -> Path:
    """Install packages into a folder, and put beside them what the proofs have already."""
    done = install(app, *(f"edgepack-{name}-1.0.0.tgz" for name in MODELS), *packages)
    if done.exit_code:
        raise ToolError(f"npm does not install them{done.last_lines}", hint="mend it")
    for package in install_packages().iterdir():
        if not (app / "node_modules" / package.name).exists():
            (app / "node_modules" / package.name).symlink_to(package)
    return app


def prove_answers(work: Path) -> str:
    """Run the models: what they give is what they give where each has the code."""
    app = make_app(work, LIBRARY)
    shutil.copy(HERE / "js" / "shared.js", app / "shared.js")
    folders = [subject_of(name).bundle.path for name in MODELS]
    found = json.loads(run_node(app / "shared.js", *folders).text)
    shared, vendored = found["shared"], found["vendored"]
    require(shared["found"] == vendored["found"], f"{shared}, not {vendored}")
    require(all(passed for _, passed, _ in shared["found"]), f"the self-test failed: {shared}")
    require(found["same"] == [len(MODELS)] * 2, f"classes that are the library's: {found['same']}")
    require(shared["isTaken"] is True, f"a tensor of another model's: {shared['isTaken']}")
    require(shared["isError"] == [True] * 3, f"errors that are the others': {shared['isError']}")
    # Where each model has the code, these are others: what sharing is for.
    require("is no picture" in vendored["isTaken"], f"another's tensor: {vendored['isTaken']}")
    require(vendored["isError"] == [False, False, True], f"errors: {vendored['isError']}")
    code = {kind: count_code(path) for kind, path in {"vendored": folders[0], **sizes()}.items()}
    return f"{len(MODELS)} models; bytes of code: {code}"


def sizes() -> dict[str, Path]:
    """Return the folders whose code is counted beside a vendored bundle's."""
    folder = shared_dist()
    return {"shared": folder / "detector-1.0.0-web", "library": folder / "edgepack-runtime-web"}


def count_code(folder: Path) -> int:
    """Return the bytes of a package's JavaScript and types."""
    files = (path for path in folder.rglob("*") if path.name.endswith((".js", ".d.ts")))
    return sum(path.stat().st_size for path in files)


def prove_types(work: Path) -> str:
    """Compile an app with three models, strict, and the packages' own code."""
    app = make_app(work, LIBRARY)
    shutil.copy(HERE / "js" / "shared.ts", app / "shared.ts")
    for module, resolution in (("nodenext", "nodenext"), ("esnext", "bundler")):
        options = {"module": module, "moduleResolution": resolution}
        said = compile_types(app, ["shared.ts"], **options)
        require(not said, f"{resolution}: {said}")
    folder = app / "node_modules" / "edgepack-runtime"
    code = [str(path.relative_to(app)) for path in sorted(folder.rglob("*.js"))]
    code += [f"node_modules/edgepack-{name}/index.js" for name in MODELS]
    said = compile_types(app, code, maxNodeModuleJsDepth=2)
    require(not said, said)
    return f"2 ways; {len(code)} files of code"


def prove_refused(work: Path) -> str:
    """Leave the library out, and take one of another version: npm and the code say so."""
    name = "edgepack-detector-1.0.0.tgz"
    require(install(work / "alone", name).exit_code == 0, "npm asks for the library itself")
    script = work / "alone" / "open.js"
    script.write_text(_OPEN)
    said = run_tool(["node", str(script)], timeout_s=60).stderr.decode()
    require("Cannot find package 'edgepack-runtime'" in said, said)
    other = write_other_version(work / "other")
    # Offline, npm fails where it asks the registry for a package of this name.
    done = install(work / "alone", other)
    require(done.exit_code == 0, f"npm asks for the library itself{done.last_lines}")
    said = run_node(script).text.strip()
    wanted = r"runtime: edgepack-detector needs edgepack-runtime \S+, and this is 9\.9\.9rc1: .*"
    require(re.fullmatch(wanted, said) is not None, said)
    return said


_OPEN = """\
import {Detector} from "edgepack-detector";
await Detector.open().catch(({reason, message}) => console.log(`${reason}: ${message}`));
"""


def write_other_version(folder: Path) -> Path:
    """Write the library's package as another version of edgepack would, before a release."""
    shutil.copytree(shared_dist() / "edgepack-runtime-web", folder)
    other = replace(make_library(load_profile(TARGET)), version="9.9.9rc1")
    for file in render_library("web", other):
        (folder / file.path).write_bytes(file.data)
    package = folder.with_name("edgepack-runtime-9.9.9rc1.tgz")
    write_archive(folder, package, root=ROOT)
    return package


PROOFS = (
    Proof("three models that share their code, in Node", prove_answers),
    Proof("TypeScript of three models that share their code", prove_types),
    Proof("no runtime library, and another version's", prove_refused),
)
