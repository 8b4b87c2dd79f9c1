"""The Kotlin compiler and the Java virtual machine, with jars from Maven Central.

::

    android = (ANDROID, ORT, STDLIB)
    classes = compile_kotlin(sources, work / "classes", classpath=jars(*android))
    done = run_main("edgepack.proof.MainKt", bundle, classpath=[classes, *jars(*android)])

Maven fetches what is named by its coordinates, with all it depends on, into ``.mobile/jars``,
once; a second call, and a second process, finds it there. Needs a JDK 17 or newer and Maven.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from edgepack.apps.aar.toolchain import FAST_JAVA
from edgepack.base.processes import ProgramResult, run_program
from edgepack.errors import ToolError

from tests.mobile.proofs import KEPT

KOTLIN = "2.3.0"
"""The compiler: the newest that the proofs were run with."""
OLDER_KOTLINS = ("2.2.21", "2.1.21")
"""Of the two releases before it, which have to read what is compiled here."""
LANGUAGE = "2.1"
"""Language and API version that a bundle's Gradle module asks for."""
JVM_TARGET = "17"
STDLIB = "org.jetbrains.kotlin:kotlin-stdlib:2.1.21"
"""The oldest Kotlin library that a bundle's code has to run with."""
COROUTINES = "org.jetbrains.kotlinx:kotlinx-coroutines-core-jvm:1.8.0"
"""What a bundle's ``Coroutines.kt`` is compiled against, and an app without it lacks."""
ORT = "com.microsoft.onnxruntime:onnxruntime:1.29.0"
"""The classes ``ai.onnxruntime`` of the Android package, with libraries for desktops."""
ANDROID = "org.robolectric:android-all:14-robolectric-10818077"
"""Android 14's framework classes, ``android.*`` and ``org.json``, without their native code."""

FETCH_TIMEOUT_S = 900.0
COMPILE_TIMEOUT_S = 600.0
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
_DEBIAN = {
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "jar": "openjdk-17-jdk-headless",
    "mvn": "maven",
}


def jars(*coordinates: str) -> list[Path]:
    """Return the jars of artifacts, ``group:name:version``, and of what these need to run.

    Raises:
        ToolError: There is no Maven, or it cannot fetch them.
    """
    found = {jar.name: jar for each in coordinates for jar in _jars_of(each)}
    return list(found.values())


def compile_kotlin(
    sources: Sequence[Path],
    out: Path,
    *,
    classpath: Sequence[Path],
    version: str = KOTLIN,
    options: Sequence[str] = (),
) -> Path:
    """Compile Kotlin files or folders of them; warnings are errors.

    Args:
        sources: Files, or folders with files.
        out: Where the classes go: a folder, or a file that ends in ``.jar``.
        classpath: What the sources use, the Kotlin library included.
        version: Of the compiler; the language stays that of :data:`LANGUAGE`.
        options: More arguments of the compiler, ``-module-name`` for one.

    Returns:
        ``out``.

    Raises:
        ToolError: There is no JDK, or the compiler refuses the sources; with its messages.
    """
    compiler = jars(f"org.jetbrains.kotlin:kotlin-compiler-embeddable:{version}")
    arguments = ["-d", str(out), "-classpath", _path(classpath), "-no-stdlib", "-no-reflect"]
    arguments += ["-language-version", LANGUAGE, "-api-version", LANGUAGE]
    arguments += ["-jvm-target", JVM_TARGET, "-Werror", *options, *map(str, sources)]
    main = "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler"
    argv = ["java", *FAST_JAVA, "-cp", _path(compiler), main, *arguments]
    done = run_tool(argv, timeout_s=COMPILE_TIMEOUT_S)
    if done.exit_code:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise ToolError(f"Kotlin {version} refuses the sources:\n{said}", hint="mend what it names")
    return out


def run_main(
    main: str,
    *arguments: str | Path,
    classpath: Sequence[Path],
    timeout_s: float = 300,
    options: Sequence[str] = (),
) -> ProgramResult:
    """Run a class's ``main`` to its end, and return what it printed.

    Args:
        main: The class; for functions of ``Main.kt`` in the package ``p`` it is ``p.MainKt``.
        arguments: For the program.
        classpath: Folders and jars with all it uses; of a class that is in two, the first counts.
        timeout_s: It is killed after so long.
        options: For the virtual machine, ``-Xmx512m`` for one.

    Raises:
        ToolError: There is no JDK, it took longer, or its exit code is not 0; with what it said.
    """
    argv = ["java", *options, "-cp", _path(classpath), main, *map(str, arguments)]
    done = run_tool(argv, timeout_s=timeout_s)
    if done.exit_code:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise ToolError(
            f"{main} ended with exit code {done.exit_code}:\n{said}", hint="mend what it names"
        )
    return done


def run_tool(argv: Sequence[str], *, timeout_s: float, cwd: Path | None = None) -> ProgramResult:
    """Run a program of the JDK, or Maven.

    Raises:
        ToolError: It is missing; the hint names its Debian package. Or it took longer.
    """
    require_tool(argv[0], "a JDK 17 or newer and Maven", _DEBIAN.get(argv[0], argv[0]))
    return run_program(argv, timeout_s=timeout_s, cwd=cwd)


def require_tool(name: str, needed: str, package: str) -> None:
    """Check that a program is there.

    Raises:
        ToolError: It is missing; says what the proofs need, the hint names its Debian package.
    """
    if shutil.which(name) is None:
        raise ToolError(
            f"there is no {name!r} on PATH: these proofs need {needed}",
            hint=f"install it; on Debian: apt-get install {package}",
        )


def _jars_of(coordinates: str) -> list[Path]:
    group, name, version = coordinates.split(":")
    folder = KEPT / "jars" / f"{group}.{name}-{version}"
    with _locked(folder.parent):
        if not folder.is_dir():
            _fetch(group, name, version, folder)
    return sorted(folder.glob("*.jar"))


def _fetch(group: str, name: str, version: str, folder: Path) -> None:
    """Have Maven copy an artifact and its dependencies into a folder, which is whole or absent."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    pom = new / "pom.xml"
    pom.write_text(_POM.format(group=escape(group), name=escape(name), version=escape(version)))
    argv = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", "--file", str(pom), _PLUGIN]
    argv += ["-DincludeScope=runtime", f"-DoutputDirectory={new}"]
    done = run_tool(argv, timeout_s=FETCH_TIMEOUT_S, cwd=new)
    if done.exit_code:
        lines = [*done.text.splitlines(), *done.stderr.decode("utf-8", "replace").splitlines()]
        said = "".join(f"\n  | {line}" for line in lines[:10])
        raise ToolError(
            f"Maven cannot fetch {group}:{name}:{version}{said}",
            hint="connect to Maven Central or name a mirror of it in ~/.m2/settings.xml",
        )
    pom.unlink()
    new.rename(folder)


_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>edgepack</groupId>
  <artifactId>fetch</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{name}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder of the jars; a second process waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _path(entries: Sequence[Path]) -> str:
    return os.pathsep.join(map(str, entries))
