"""Two bundles for iOS in one app, as SwiftPM sees them: resolved, compiled, linked, run.

On Linux a package ``onnxruntime`` beside them stands in for the archive, which is for Apple's
systems; it is what the bundle's README tells apps with several models to make.
"""

from __future__ import annotations

import json
from pathlib import Path

from edgepack.builder.build import build
from edgepack.project.identifiers import make_type_name

from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import DYNAMIC_BATCH, SEVERAL_INPUTS
from tests.mobile.swift_rootfs import toolchain

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
BUILD = ["swift", "build", "--disable-sandbox", "--package-path", "app", "--product", "app"]


def two_bundles_run(work: Path) -> str:
    """Build an app that depends on two bundles' folders, and run both self-tests in it."""
    folder = work / "swift"
    bundles = []
    for signature in (SEVERAL_INPUTS, DYNAMIC_BATCH):
        project = signature.write(work / signature.name, "ios")
        built = build(project=project, out=folder).bundles[0]
        bundles.append((built.bundle.path.name, make_type_name(signature.name)))
    tools = toolchain()
    # An app that had one model, and no runtime beside it, gets a second one: the README's steps.
    describe = ["swift", "package", "--disable-sandbox", "--package-path", bundles[0][0]]
    tools.run([*describe, "purge-cache"], folder=folder)
    alone = json.loads(tools.run([*describe, "dump-package"], folder=folder).stdout)
    require(alone["targets"][0]["name"] == "onnxruntime", f"it has no archive: {alone['targets']}")
    tools.run([*describe, "purge-cache"], folder=folder)
    _write(folder / "onnxruntime" / "Package.swift", RUNTIME)
    sources = folder / "onnxruntime" / "Sources" / "onnxruntime"
    _write(sources / "module.modulemap", MODULE_MAP)
    _write(sources / "onnxruntime.h", "#include <onnxruntime/onnxruntime_c_api.h>\n")
    _write(folder / "app" / "Package.swift", _package(bundles))
    _write(folder / "app" / "Sources" / "app" / "main.swift", _main(bundles))
    built_with = tools.run(
        [*BUILD, "-Xlinker", "-L/runtime", "-Xlinker", "-lonnxruntime"], folder=folder
    )
    require(b"warning:" not in built_with.stderr + built_with.stdout, built_with.text)
    done = tools.run(["app/.build/debug/app"], folder=folder)
    said = json.loads(done.stdout)
    require(len(said) == len(bundles), f"{said}")
    require(all(passed for passed, _ in said), f"a self-test failed: {said}")
    return ", ".join(
        f"{name}: {variant}" for (name, _), (_, variant) in zip(bundles, said, strict=True)
    )


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


def _main(bundles: list[tuple[str, str]]) -> str:
    imports = "".join(f"import Edgepack{name}\n" for _, name in bundles)
    opened = "".join(
        f"let model{n} = try await {name}.open()\n"
        f"let test{n} = try model{n}.selfTest()\n"
        f"said.append([test{n}.passed, model{n}.variant])\n"
        for n, (_, name) in enumerate(bundles)
    )
    return f"""\
{imports}import Foundation

var said: [[Any]] = []
{opened}print(String(decoding: try JSONSerialization.data(withJSONObject: said), as: UTF8.self))
"""


PROOFS = (Proof("two bundles in one app, with SwiftPM", two_bundles_run),)
