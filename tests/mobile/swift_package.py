"""Three bundles for iOS in one app, as SwiftPM sees them: resolved, compiled, linked, run.

Each has its code, or all share the runtime library; both answer the same. On Linux a package
``onnxruntime`` beside them stands in for the archive, which is for Apple's systems; it is what the
README tells apps with several models to make, or those with another library that brings
onnxruntime.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgepack.builder.build import build
from edgepack.errors import ToolError
from edgepack.project.identifiers import make_type_name

from tests.mobile.proofs import NotHeldError, Proof, require
from tests.mobile.signatures import DETECTOR, DYNAMIC_BATCH, TEXT
from tests.mobile.swift_rootfs import toolchain

SWIFT = Path(__file__).with_name("swift")
LIBRARY = "edgepack-runtime-apple"
RUNTIME = """\
// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "onnxruntime",
    products: [.library(name: "onnxruntime", targets: ["onnxruntime"])],
    targets: [.systemLibrary(name: "onnxruntime")]
)
"""
MODULE_MAP = """\
module onnxruntime [system] {
    header "onnxruntime.h"
    link "onnxruntime"
    export *
}
"""
SWIFT_BUILD = ["swift", "build", "--disable-sandbox", "--package-path", "app", "--product", "app"]
LINK = ["-Xlinker", "-L/runtime", "-Xlinker", "-lonnxruntime"]
PACKAGE = ["swift", "package", "--disable-sandbox", "--package-path"]
CHECK = ["swiftc", "-typecheck", "-I", "app/.build/debug/Modules"]
CHECK += ["-Xcc", f"-I{LIBRARY}/Sources/CEdgepackRuntime/include"]


def three_models_run(work: Path) -> str:
    """Build an app with three models' folders in both forms, and run it."""
    alone = _App(work / "vendored", "vendored")
    alone.finds_the_runtime_that_comes_later()
    alone.build()
    own = alone.run()
    shared = _App(work / "shared", "shared")
    shared.write_runtime()
    compiled = shared.build()
    # In a debug build each file of a target is a line.
    times = compiled.count("Compiling EdgepackRuntime Tensors.swift")
    require(times == 1, f"the library was compiled {times} times:\n{compiled}")
    said = shared.run()
    require(said == own, f"models that share their code say {said}, others {own}")
    require(all(passed for passed, _ in said["tests"]), f"a self-test failed: {said['tests']}")
    shared.hides_what_is_not_for_apps()
    shared.refuses_two_of_one_name()
    shared.refuses_a_library_of_another_version()
    sizes = [app.count_code() for app in (alone, shared)]
    return f"{len(said['tests'])} models, {sizes[0]} and {sizes[1]} bytes of code in the largest"


class _App:
    """An app with three models, in a folder that is ``/work`` in the toolchain."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder = folder
        self.tools = toolchain()
        self.bundles: list[tuple[str, str]] = []
        for signature in (DETECTOR, DYNAMIC_BATCH, TEXT):
            form_line = f"{signature.project}\napp: {{runtime: {form}}}"
            project = replace(signature, project=form_line).write(
                folder.with_name(f"{form}-{signature.name}"), "ios"
            )
            built = build(project=project, out=folder).bundles[0]
            self.bundles.append((built.bundle.path.name, make_type_name(signature.name)))
        program = (SWIFT / "SeveralModels.swift").read_text("utf-8")
        if form == "shared":
            program += "\n" + (SWIFT / "OneType.swift").read_text("utf-8")
        _write(folder / "app" / "Sources" / "app" / "main.swift", program)
        _write(folder / "app" / "Package.swift", _package(self.bundles))

    def finds_the_runtime_that_comes_later(self) -> None:
        """Add ``onnxruntime`` beside a bundle that had it alone: the README's steps."""
        first = self.bundles[0][0]
        self._purge(first)
        dumped = self.tools.run([*PACKAGE, first, "dump-package"], folder=self.folder).stdout
        targets = json.loads(dumped)["targets"]
        require(targets[0]["name"] == "onnxruntime", f"it has no archive: {targets}")
        self._purge(first)
        self.write_runtime()

    def write_runtime(self) -> None:
        """Write what stands in for the archive."""
        _write(self.folder / "onnxruntime" / "Package.swift", RUNTIME)
        sources = self.folder / "onnxruntime" / "Sources" / "onnxruntime"
        _write(sources / "module.modulemap", MODULE_MAP)
        _write(sources / "onnxruntime.h", "#include <onnxruntime/onnxruntime_c_api.h>\n")

    def build(self) -> str:
        """Compile and link the app, and return what SwiftPM said, in which nothing warns."""
        done = self.tools.run([*SWIFT_BUILD, *LINK], folder=self.folder)
        require(b"warning:" not in done.stderr + done.stdout, done.text)
        return done.text

    def run(self) -> Any:
        """Run the app, and return what it said."""
        return json.loads(self.tools.run(["app/.build/debug/app"], folder=self.folder).stdout)

    def count_code(self) -> int:
        """Return the bytes of code in the largest bundle."""
        folders = [self.folder / name / "Sources" for name, _ in self.bundles]
        return max(sum(f.stat().st_size for f in each.rglob("*.*")) for each in folders)

    def hides_what_is_not_for_apps(self) -> None:
        """Name a type of the library for apps, and one for models' code only."""
        source = self.folder / "Hidden.swift"
        source.write_text("import EdgepackText\nlet found: [Detection] = []\n")
        self.tools.run([*CHECK, source.name], folder=self.folder)
        source.write_text("import EdgepackText\nlet model: LoadedModel? = nil\n")
        self._is_refused([*CHECK, source.name], "cannot find type 'LoadedModel' in scope")

    def refuses_two_of_one_name(self) -> None:
        """Add a second package of the first one's name."""
        first, name = self.bundles[0]
        shutil.copytree(self.folder / first, self.folder / "other")
        package = self.folder / "app" / "Package.swift"
        before = package.read_text()
        package.write_text(_package([*self.bundles, ("other", name)]))
        self._is_refused([*SWIFT_BUILD, *LINK], f"Edgepack{name}")
        package.write_text(before)

    def refuses_a_library_of_another_version(self) -> None:
        """Change the version that a model's code wants, the library's, and take the library away.

        SwiftPM keeps what it read of a package, so that only the code may see the other version.
        """
        first, name = self.bundles[0]
        code = self.folder / first / "Sources" / f"Edgepack{name}" / "Model.swift"
        text = code.read_text("utf-8")
        code.write_text(text.replace('requireRuntime(of: "', 'requireRuntime(of: "7.'))
        self.build()
        self._is_refused(["app/.build/debug/app"], "build all models of the app with one edgepack")
        code.write_text(text)
        library = self.folder / LIBRARY
        mark = library / "edgepack-runtime.json"
        told = json.loads(mark.read_text("utf-8"))
        mark.write_text(json.dumps({**told, "version": "7.7"}))
        self._purge("app")
        self._is_refused([*SWIFT_BUILD, *LINK], "beside its own, and that is of edgepack 7.7: ")
        library.rename(self.folder / "elsewhere")
        self._purge("app")
        self._is_refused([*SWIFT_BUILD, *LINK], "beside its own, and that is not there: ")

    def _is_refused(self, argv: list[str], words: str) -> None:
        try:
            done = self.tools.run(argv, folder=self.folder)
        except ToolError as error:
            require(words in str(error), f"instead of {words!r}: {error}")
        else:
            raise NotHeldError(f"it is not refused ({words!r}): {done.text}")

    def _purge(self, package: str) -> None:
        self.tools.run([*PACKAGE, package, "purge-cache"], folder=self.folder)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _package(bundles: list[tuple[str, str]]) -> str:
    packages = "".join(f'        .package(path: "../{folder}"),\n' for folder, _ in bundles)
    products = "".join(
        f'            .product(name: "Edgepack{name}", package: "{folder}"),\n'
        for folder, name in bundles
    )
    return f"""\
// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "app",
    dependencies: [
{packages}    ],
    targets: [
        .executableTarget(name: "app", dependencies: [
{products}        ])
    ]
)
"""


PROOFS = (Proof("three models in one app, with SwiftPM", three_models_run),)
