"""Swift as swift-format has it: what bundles carry, alone and shared, and what uses it.

Names in JSON are not Swift's: properties that stand for them are let be, as are lists of cases.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from edgepack.builder.build import build

from tests.mobile.proofs import ROOT, Proof, findings_beside, require
from tests.mobile.signatures import DETECTOR, TEXT
from tests.mobile.swift_rootfs import toolchain

SWIFT_FORMAT = "/usr/libexec/swift/bin/swift-format"
UNTIDY = "func untidy() { let x=1; print(x) }\n"


def linted(work: Path) -> str:
    """Have swift-format read all of it, and a file that is wrong, which alone it names."""
    swift = work / "swift"
    shutil.copytree(ROOT / "tests" / "mobile" / "swift", swift / "tests")
    shutil.copytree(ROOT / "examples" / "shapes" / "ios", swift / "sample")
    shutil.copy(ROOT / ".swift-format", swift)
    shared = replace(TEXT, name="shared", project=f"{TEXT.project}\napp: {{runtime: shared}}")
    for signature in (DETECTOR, TEXT, shared):
        project = signature.write(work / signature.name, "ios")
        build(project=project, out=swift)
    files = [file.relative_to(swift) for file in sorted(swift.rglob("*.swift"))]
    untidy = swift / "Untidy.swift"
    untidy.write_text(UNTIDY)
    argv = [SWIFT_FORMAT, "lint", "--configuration", ".swift-format", *files, untidy.name]
    done = toolchain().run(argv, folder=swift)
    found = findings_beside(untidy.name, done.stderr.decode("utf-8", "replace"))
    require(not found, "\n".join(found))
    return f"{len(files)} files"


PROOFS = (Proof("swift-format finds nothing", linted),)
