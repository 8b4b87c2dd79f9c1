"""Three models of one app that share the runtime library, on the Java virtual machine.

The library is compiled once, alone; the bundles' own code against its classes, as Gradle's modules
are; an app against both. Beside them lies a bundle that has the same code itself.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import edgepack
from edgepack.builder.build import build
from edgepack.errors import ToolError

from tests.mobile.jvm import ANDROID, COROUTINES, ORT, STDLIB, compile_kotlin, jars, run_main
from tests.mobile.kotlin_models import (
    HERE,
    TARGET,
    app_of_bundle,
    list_assets,
    shown,
    stand_ins,
    write_assets,
)
from tests.mobile.proofs import NotHeldError, Proof, require
from tests.mobile.signatures import DETECTOR, FACES, TEXT

SHARED = (DETECTOR, FACES, TEXT)
PLAIN = replace(DETECTOR, name="plain")
"""The first of them with the code in it."""
CODE = Path("src", "main", "kotlin")
PROGRAM = HERE / "kotlin" / "shared"
COPIES = {
    "older": (f'"{edgepack.__version__}"', '"0.0.1"'),
    "twin": ("nothing else", "nothing else"),
}
"""The detector's code again in packages of their own, each with what is replaced in it."""
SAID = {
    "older": "BUNDLE: the code of Detector is of edgepack 0.0.1, the library edgepack-runtime of "
    f"{re.escape(edgepack.__version__)}: build all models .*",
    "twin": "BUNDLE: edgepack.detector.Detector and edgepack.twin.Detector have one folder of "
    "assets, edgepack/detector: .*",
}
"""What is said of each of them."""


@dataclass(frozen=True)
class App:
    """What an app is made of."""

    bundles: Mapping[str, Path]
    """By their folders among the app's assets."""
    library: Path
    """The folder that a build wrote."""
    runtime: Path
    """The classes of the library alone."""
    code: Path
    """The classes of the bundles that share it."""
    plain: Path
    """The classes of the bundle that does not."""

    @property
    def path(self) -> tuple[Path, ...]:
        """Where all classes are that a program uses, but Android's and its own."""
        return (self.runtime, self.code, self.plain, *jars(STDLIB, ORT, ANDROID))


@cache
def app() -> App:
    """Build the bundles and the library, and compile them.

    Raises:
        EdgepackError: One cannot be built or compiled.
    """
    work = Path(mkdtemp(prefix="edgepack-shared-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    bundles, examples, libraries = {}, [], set()
    for signature in (*SHARED, PLAIN):
        project = signature.write(work / signature.name, TARGET)
        if signature != PLAIN:
            project.write_text(project.read_text("utf-8") + "\napp: {runtime: shared}\n", "utf-8")
        result = build(project=project, out=work / "dist")
        result.require_all()
        bundle = result.bundles[0].bundle
        named = app_of_bundle(bundle, project)
        bundles[named.assets] = bundle.path
        libraries.update(result.libraries)
        if signature != PLAIN:
            examples.append(work / f"{named.type_name}Shown.kt")
            text = shown(named, (bundle.path / "README.md").read_text("utf-8"))
            examples[-1].write_text(text.replace("\n\n", "\n\nimport edgepack.runtime.*\n", 1))
    [library] = libraries
    android = jars(STDLIB, ORT, ANDROID, COROUTINES)
    runtime = compile_kotlin([library / CODE], work / "runtime", classpath=android)
    *shared, plain = bundles.values()
    sources = [bundle / CODE for bundle in shared]
    sources += [copied(shared[0], name, work / name) for name in COPIES]
    code = compile_kotlin([*sources, *examples], work / "code", classpath=[runtime, *android])
    own = compile_kotlin([plain / CODE], work / "plain-code", classpath=android)
    return App(bundles, library, runtime, code, own)


def copied(bundle: Path, name: str, folder: Path) -> Path:
    """Write a bundle's own code again, in another package, changed; return its folder."""
    folder.mkdir()
    for file in (bundle / CODE).rglob("*.kt"):
        text = file.read_text("utf-8").replace("edgepack.detector", f"edgepack.{name}")
        (folder / file.name).write_text(text.replace(*COPIES[name]), encoding="utf-8")
    return folder


def three_models(work: Path) -> str:
    """Run an app that gives the answers of two models to one function, and compares."""
    made = app()
    path = (stand_ins(work), *made.path)
    program = compile_kotlin([PROGRAM / "Main.kt"], work / "program", classpath=path)
    files = {f"{r}/{p}": b / p for r, b in made.bundles.items() for p in list_assets(b)}
    write_assets(files, work, (".onnx", ".ort"))
    done = run_main("app.MainKt", work, classpath=(program, *path))
    found = json.loads(done.text.splitlines()[-1])
    require(found["passed"] == [True] * len(SHARED), f"the golden outputs: {found['passed']}")
    require(found["detector"].startswith("[cup 0.9"), f"found is {found['detector']}")
    require(found["faces"].count(" (") == 1, f"found is {found['faces']}")
    for key in ("plain", "frames"):
        require(found[key] == found["detector"], f"{key}: {found[key]}, not {found['detector']}")
    require(found["plainDb"] == found["detectorDb"], f"{found['plainDb']}, {found['detectorDb']}")
    for key, pattern in SAID.items():
        require(re.fullmatch(pattern, found[key]) is not None, f"{key}: {found[key]}")
    kept = {path.parent.relative_to(work / "cache").as_posix() for path in work.rglob("verdict*")}
    require(kept == set(made.bundles), f"verdicts are kept in {kept}")
    return f"{found['detector']}; {', '.join(SAID)} refused; {sizes(made)}"


def sizes(made: App) -> str:
    """Return how much code a bundle has with and without the library, in bytes of classes."""
    first, *_ = SHARED
    folders = (made.plain, made.code / "edgepack" / first.name, made.runtime)
    plain, own, library = (
        sum(file.stat().st_size for file in folder.rglob("*.class")) for folder in folders
    )
    return f"classes: {plain} bytes in a bundle; shared {own}, and {library} once"


def refused(work: Path) -> str:
    """Compile an app that uses what is for generated code, and a bundle without the library."""
    made = app()
    android = jars(STDLIB, ORT, ANDROID, COROUTINES)
    use = [PROGRAM / "Refused.kt"], "error: this is for code that edgepack generates"
    alone = [next(iter(made.bundles.values())) / CODE], "error: unresolved reference 'runtime'"
    for (sources, wanted), path in ((use, made.path), (alone, android)):
        try:
            compile_kotlin(sources, work / "classes", classpath=path)
        except ToolError as error:
            require(wanted in error.problem, error.problem)
        else:
            raise NotHeldError(f"{sources} compile")
    return "marked code in an app, and a bundle without the library"


PROOFS = (
    Proof("three models of one app share their types", three_models),
    Proof("what does not compile", refused),
)
