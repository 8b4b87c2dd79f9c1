"""The build scripts of Android modules, compiled against Gradle's own API.

Neither Gradle nor the Android plugin is on Maven Central, so that nothing runs them. Gradle's
API is: a script is compiled with it as the body of a function of a project, where what its Kotlin
DSL and the Android plugin add are declarations in ``kotlin/gradle``.
"""

from __future__ import annotations

from pathlib import Path

from edgepack.builder.build import build

from tests.mobile.jvm import STDLIB, compile_kotlin, jars
from tests.mobile.proofs import Proof, require
from tests.support.nets import tiny_models

HERE = Path(__file__).parent
GRADLE = "dev.gradleplugins:gradle-api:8.11"
INJECT = "javax.inject:javax.inject:1"
KOTLIN_PLUGIN = "org.jetbrains.kotlin:kotlin-gradle-plugin-api:2.1.21"
RECEIVERS = "org.jetbrains.kotlin:kotlin-sam-with-receiver-compiler-plugin-embeddable:2.3.0"
"""Kotlin's DSL for Gradle gives the lambdas of Gradle's Java API a receiver."""
OPTION = "plugin:org.jetbrains.kotlin.samWithReceiver:annotation=org.gradle.api.HasImplicitReceiver"
TARGETS = ("android-qnn", "android-xnnpack")
IMPORTS = """\
import dsl.*
import org.gradle.api.*
import org.gradle.api.file.*
import org.gradle.api.publish.maven.*
import org.gradle.api.tasks.*
"""


def compiles(work: Path) -> str:
    """Compile the scripts of two targets, and those of a bundle and the library that it shares."""
    project = tiny_models.write_project(work, "dims: {batch: 1}", samples=False)
    result = build(project=project, targets=TARGETS, out=work / "dist")
    require(len(result.bundles) == len(TARGETS), "a bundle was not built")
    libraries = jars(GRADLE, INJECT, KOTLIN_PLUGIN, STDLIB)
    [plugin, *_] = jars(RECEIVERS)
    options = [f"-Xplugin={plugin}", "-P", OPTION]
    dsl = compile_kotlin(
        [HERE / "kotlin" / "gradle"], work / "dsl.jar", classpath=libraries, options=options
    )
    folders = [made.bundle.path for made in result.bundles]
    project.write_text(project.read_text() + "app: {runtime: shared}\n")
    shared = build(project=project, targets=TARGETS[:1], out=work / "shared")
    for folder in [*folders, shared.bundles[0].bundle.path, *shared.libraries]:
        source = work / f"{folder.parent.name}-{folder.name}.kt"
        source.write_text(as_function((folder / "build.gradle.kts").read_text()))
        compile_kotlin([source], work / source.stem, classpath=[dsl, *libraries], options=options)
    return f"{', '.join(TARGETS)}, shared, with {GRADLE} and {KOTLIN_PLUGIN}"


def as_function(script: str) -> str:
    """Return a script as a function; imports stay at the top."""
    lines = script.splitlines()
    imports = [line for line in lines if line.startswith("import ")]
    body = [line for line in lines if not line.startswith("import ")]
    head = f"package script\n\n{IMPORTS}" + "\n".join(imports)
    return f"{head}\n\nfun Project.script() {{\n" + "\n".join(body) + "\n}\n"


PROOFS = (Proof("build.gradle.kts compiles against Gradle's API", compiles),)
