"""Kotlin as ktlint has it: what bundles carry, as it lies in them, and what uses it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgepack.apps.aar.toolchain import FAST_JAVA
from edgepack.builder.build import build

from tests.mobile.jvm import jars, run_tool
from tests.mobile.proofs import ROOT, Proof, findings_beside, require
from tests.mobile.signatures import DETECTOR, TEXT

KTLINT = "com.pinterest.ktlint:ktlint-cli:1.8.0"
TIMEOUT_S = 300.0
SHARED = replace(DETECTOR, name="shared", project=f"{DETECTOR.project}\napp: {{runtime: shared}}\n")
UNTIDY = "fun untidy() { val x=1; println(x) }\n"


def linted(work: Path) -> str:
    """Have ktlint read all of it, and a file that is wrong, which alone it names."""
    sources = [ROOT / "tests" / "mobile" / "kotlin", ROOT / "examples" / "shapes" / "android"]
    for signature in (DETECTOR, TEXT, SHARED):
        project = signature.write(work / signature.name, "android")
        result = build(project=project, out=work / "dist")
        sources += [*(made.bundle.path for made in result.bundles), *result.libraries]
    files = [file for folder in sources for file in sorted(folder.rglob("*.kt*"))]
    untidy = work / "Untidy.kt"
    untidy.write_text(UNTIDY)
    path = ":".join(map(str, jars(KTLINT)))
    argv = ["java", *FAST_JAVA, "-cp", path, "com.pinterest.ktlint.Main"]
    argv += ["--log-level=error", f"--editorconfig={ROOT / '.editorconfig'}"]
    done = run_tool([*argv, *map(str, [*files, untidy])], timeout_s=TIMEOUT_S)
    found = findings_beside(untidy.name, done.text)
    require(not found, "\n".join(found))
    return f"{len(files)} files"


PROOFS = (Proof("ktlint finds nothing", linted),)
