"""Compiled libraries for Android: resolved by Maven, read by older Kotlins, shrunk by ProGuard.

What ``edgepack build --aar`` writes is used as an app's build would use it. Not every mirror of
Maven Central has onnxruntime's package for Android: its classes come from the desktop package of
the same version, with which the shrunk program runs, too.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from edgepack.apps.aar.archive import write_aar, write_library_aar
from edgepack.apps.aar.toolchain import Toolchain, find_toolchain
from edgepack.apps.maven import KOTLIN_VERSION
from edgepack.builder.build import build
from edgepack.bundle.reading import Bundle
from edgepack.errors import ToolError

from tests.mobile.jvm import (
    ANDROID,
    KOTLIN,
    OLDER_KOTLINS,
    ORT,
    STDLIB,
    compile_kotlin,
    jars,
    run_main,
    run_tool,
)
from tests.mobile.kotlin_models import stand_ins, write_assets
from tests.mobile.proofs import KEPT, NotHeldError, Proof, require
from tests.support.nets import tiny_models

HERE = Path(__file__).parent
TARGET = "android-xnnpack"
COMPILER = f"org.jetbrains.kotlin:kotlin-compiler-embeddable:{KOTLIN_VERSION}"
PROGUARD = "com.guardsquare:proguard-base:7.8.1"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
KEPT_BY_RULES = "-keep class ai.onnxruntime.** { *; }"
TIMEOUT_S = 600.0
CONSUMER = """\
package app

import android.content.Context
import edgepack.net.FloatTensor
import edgepack.net.Net
import edgepack.net.PassedOver

/** As an app's code: all of the library's API that has a type of its own. */
fun use(context: Context, pixels: FloatArray): FloatArray =
    Net.open(context).use { net: Net ->
        val reasons: List<PassedOver> = net.passedOver
        check(net.selfTest().passed) { "$reasons" }
        net.predict(Net.Inputs(FloatTensor(pixels, 1, 3, 8, 8))).{output}.data
    }
"""


@dataclass(frozen=True)
class Library:
    """A bundle, and what its library was compiled with."""

    bundle: Bundle
    toolchain: Toolchain
    folder: TemporaryDirectory[str]
    """Of both, and of the repository: it is removed when this process ends."""

    @property
    def repository(self) -> Path:
        """The Maven repository."""
        return Path(self.folder.name) / "maven"

    @property
    def aar(self) -> Path:
        """The library."""
        [aar] = self.repository.rglob(f"{self.bundle.manifest.name}-*.aar")
        return aar

    @property
    def aars(self) -> list[Path]:
        """The library, and the one that it shares, if it does."""
        return [self.aar, *self.repository.rglob("edgepack-runtime-*.aar")]

    def unpacked(self, folder: Path) -> list[Path]:
        """Unpack the AARs and return their folders."""
        for aar in self.aars:
            with zipfile.ZipFile(aar) as archive:
                archive.extractall(folder / aar.stem)
        return [folder / aar.stem for aar in self.aars]


@cache
def library(runtime: str = "vendored") -> Library:
    """Build the bundle and its library once, each with the code of all models in it or shared.

    Raises:
        EdgepackError: It cannot be built or compiled.
    """
    kept = TemporaryDirectory(prefix="edgepack-aar-")
    work = Path(kept.name)
    folder = work / "jars"
    folder.mkdir()
    for jar in jars(COMPILER, ORT, ANDROID, STDLIB):
        (folder / jar.name).symlink_to(jar)
    told = f"dims: {{batch: 1}}\napp: {{runtime: {runtime}}}"
    project = tiny_models.write_project(work, told)
    # A project's version may be one that Maven's order of versions knows nothing about.
    project.write_text(project.read_text().replace("1.2.3", "1.0_rc+2"))
    # On a desktop there is no XNNPACK, and kernels for Arm may saturate.
    variants = ["xnnpack-fp32", "cpu-fp32"]
    result = build(project=project, targets=[TARGET], variants=variants, out=work / "dist")
    [made] = result.bundles
    toolchain = find_toolchain(made.bundle.manifest.runtime, folder)
    for shared in result.libraries:
        write_library_aar(shared, work / "maven", toolchain)
    write_aar(made.bundle.path, work / "maven", toolchain)
    return Library(made.bundle, toolchain, kept)


def equal_bytes(work: Path) -> str:
    """Write the library again and compare."""
    first, again = library().aar, write_aar(library().bundle.path, work, library().toolchain)
    require(first.read_bytes() == again.read_bytes(), "a second call wrote other bytes")
    return f"{first.name}, {first.stat().st_size} bytes"


def resolved(work: Path, runtime: str = "vendored") -> str:
    """Have Maven copy the library, by its coordinates alone, from the repository."""
    found = library(runtime)
    root = ElementTree.parse(found.aar.with_suffix(".pom")).getroot()
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    group, artifact, version = (
        root.findtext(f"m:{key}", namespaces=space) for key in ("groupId", "artifactId", "version")
    )
    (work / "pom.xml").write_text(
        _POM.format(
            repository=found.repository.as_uri(), group=group, artifact=artifact, version=version
        )
    )
    # A local repository of its own, in which no earlier call has left the library.
    local = KEPT / "m2"
    shutil.rmtree(local / "edgepack", ignore_errors=True)
    argv = ["mvn", "--batch-mode", "--quiet", "--file", str(work / "pom.xml")]
    argv += [f"-Dmaven.repo.local={local}", PLUGIN, f"-DoutputDirectory={work / 'x'}"]
    done = run_tool(argv, timeout_s=TIMEOUT_S, cwd=work)
    if done.exit_code:
        raise ToolError(f"Maven does not resolve it:\n{done.text}", hint="mend what it names")
    names = sorted(path.name for path in (work / "x").iterdir())
    for aar in found.aars:
        copied = work / "x" / aar.name
        require(copied.is_file(), f"Maven copied {names}")
        require(copied.read_bytes() == aar.read_bytes(), f"Maven copied another {aar.name}")
    require(f"kotlin-stdlib-{KOTLIN_VERSION}.jar" in names, f"no Kotlin library in {names}")
    return ", ".join(names)


def consumer(folder: Path) -> Path:
    """Write a file that uses the library's API."""
    [output] = library().bundle.manifest.outputs
    folder.mkdir()
    path = folder / "App.kt"
    path.write_text(CONSUMER.replace("{output}", output.name))
    return path


def read_by_older_kotlins(work: Path) -> str:
    """Compile code that uses the library with the compilers of three releases."""
    classes = library().unpacked(work / "aar")[0] / "classes.jar"
    source = consumer(work / "app")
    # Without onnxruntime, which the POM names for running alone.
    against = [classes, *jars(ANDROID, STDLIB)]
    versions = (KOTLIN, *OLDER_KOTLINS)
    for version in versions:
        compile_kotlin([source], work / version, classpath=against, version=version)
    return f"Kotlin {', '.join(versions)}"


def shrunk(work: Path, runtime: str = "vendored") -> str:
    """Shrink a program with the library, as a release build does, and run it on the golden sample.

    With the library's rules it has to run; without the one about onnxruntime it must not, or that
    rule proves nothing.
    """
    unpacked = library(runtime).unpacked(work / "aar")
    classes = [folder / "classes.jar" for folder in unpacked]
    assets = unpacked[0] / "assets" / "edgepack" / "net"
    phone = [stand_ins(work), *jars(ANDROID, STDLIB)]
    app = [_program(work, [*classes, *phone]), *classes]
    rules = "\n".join((folder / "proguard.txt").read_text() for folder in unpacked)
    require(KEPT_BY_RULES in rules, f"the rules do not keep onnxruntime: {rules}")
    with_rules = _shrink(work / "with", app, phone, rules)
    said = _run(with_rules, assets, phone)
    without = _shrink(work / "without", app, phone, rules.replace(KEPT_BY_RULES, ""))
    try:
        _run(without, assets, phone)
    except ToolError as error:
        why = " ".join(error.problem.splitlines()[1:2])
        return f"{said}; {with_rules.stat().st_size} bytes; without the rule: {why}"
    raise NotHeldError("it also runs without the rule that keeps onnxruntime")


def _program(work: Path, path: Sequence[Path]) -> Path:
    """Compile a program that opens the library's model and tests it; return its jar."""
    source = HERE / "kotlin" / "release" / "Release.kt"
    return compile_kotlin([source], work / "program.jar", classpath=[*path, *jars(ORT)])


def _shrink(folder: Path, app: Sequence[Path], phone: Sequence[Path], rules: str) -> Path:
    """Shrink, optimize and rename what an app ships, onnxruntime included; return the jar."""
    folder.mkdir()
    [runtime] = [jar for jar in jars(ORT) if jar.name.startswith("onnxruntime")]
    lines = [
        *(f"-injars {path}" for path in app),
        f"-injars {runtime}(!**/osx-*/**,!**/win-*/**,!**/linux-aarch64/**)",
        *(f"-libraryjars {path}" for path in (*_java_modules(), *phone)),
        f"-outjars {folder / 'app.jar'}",
        "-keep class edgepack.proof.ReleaseKt { public static void main(java.lang.String[]); }",
        "-dontwarn **",
        "-dontnote **",
        rules,
    ]
    (folder / "app.pro").write_text("\n".join(lines) + "\n")
    run_main("proguard.ProGuard", f"@{folder / 'app.pro'}", classpath=jars(PROGUARD), timeout_s=600)
    return folder / "app.jar"


def _java_modules() -> list[str]:
    """Return the classes of the JDK's that are used, as ProGuard reads them.

    Raises:
        ToolError: There is no JDK, or one without modules.
    """
    java = shutil.which("java")
    folder = Path(java).resolve().parents[1] / "jmods" if java else Path()
    if not (folder / "java.base.jmod").is_file():
        raise ToolError(
            "there is no JDK with jmods", hint="apt-get install openjdk-17-jdk-headless"
        )
    names = ("java.base", "java.logging")
    return [f"{folder / name}.jmod(!**.jar;!module-info.class)" for name in names]


def _run(app: Path, assets: Path, phone: Sequence[Path]) -> str:
    folder = app.parent / "phone"
    folder.mkdir()
    files = (path for path in assets.rglob("*") if path.is_file())
    named = {f"edgepack/net/{path.relative_to(assets).as_posix()}": path for path in files}
    write_assets(named, folder, (".onnx", ".bin"))
    return run_main("edgepack.proof.ReleaseKt", folder, classpath=[app, *phone]).text.strip()


_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>edgepack.test</groupId>
  <artifactId>consumer</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <repositories>
    <repository>
      <id>bundle</id>
      <url>{repository}</url>
      <releases><checksumPolicy>fail</checksumPolicy></releases>
    </repository>
  </repositories>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
      <type>aar</type>
      <exclusions>
        <exclusion>
          <groupId>com.microsoft.onnxruntime</groupId>
          <artifactId>onnxruntime-android</artifactId>
        </exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
"""

SHARING = (
    Proof(f"{proof}, with what it shares", partial(look, runtime="shared"))
    for proof, look in (
        ("Maven resolves a library from the local repository", resolved),
        ("a program shrunk with a library runs", shrunk),
    )
)
PROOFS = (
    Proof("an AAR written twice has the same bytes", equal_bytes),
    Proof("Maven resolves it from the local repository", resolved),
    Proof("three releases of Kotlin read it", read_by_older_kotlins),
    Proof("a program shrunk with it runs", shrunk),
    *SHARING,
)
