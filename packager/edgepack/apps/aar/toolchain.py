"""Finds and runs what compiles a bundle's Kotlin: a JDK, and jars of pinned versions."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from edgepack.apps.maven import COROUTINES, KOTLIN_VERSION, MavenArtifact
from edgepack.base.processes import run_program
from edgepack.errors import ToolError

ONNXRUNTIME = "com.microsoft.onnxruntime:onnxruntime-android"
"""The package of a target whose version says which onnxruntime the code is compiled against."""
JVM_TARGET = "17"
"""The Java version of onnxruntime-android's classes: its build settings of 1.24 target 17."""

# For Gradle, whose metadata leads to this one, the artifact has another name.
_COROUTINES = MavenArtifact(COROUTINES.group, f"{COROUTINES.artifact}-jvm", COROUTINES.version)
_STDLIB = MavenArtifact("org.jetbrains.kotlin", "kotlin-stdlib", KOTLIN_VERSION)
# What kotlin-compiler-embeddable's POM names, as far as compiling for the JVM loads it.
_COMPILER = (
    MavenArtifact("org.jetbrains.kotlin", "kotlin-compiler-embeddable", KOTLIN_VERSION),
    _STDLIB,
    MavenArtifact("org.jetbrains.kotlin", "kotlin-script-runtime", KOTLIN_VERSION),
    _COROUTINES,
    MavenArtifact("org.jetbrains.intellij.deps", "trove4j", "1.0.20200330"),
    MavenArtifact("org.jetbrains", "annotations", "13.0"),
)
# Android 14's own classes; those of java.* are the JDK's.
_ANDROID = MavenArtifact("org.robolectric", "android-all", "14-robolectric-10818077")
FAST_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
"""Compilers end before Java's second compiler pays off: 21 s of processor time instead of 48.

With the first alone Java has room for 48 MiB of code (``java -XX:+PrintFlagsFinal``, OpenJDK 17),
which Kotlin's compiler may fill, and then fails; with both it has 240 MiB.
"""
_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Toolchain:
    """A Kotlin compiler and what it compiles against."""

    java: str
    compiler: tuple[Path, ...]
    classpath: tuple[Path, ...]

    def compile(
        self, sources: Path, module: str, libraries: Mapping[str, bytes] = MappingProxyType({})
    ) -> dict[str, bytes]:
        """Return the compiled classes of a folder of Kotlin files, by their path in a jar.

        Args:
            sources: The folder.
            module: The name of the Kotlin module, unique in an app.
            libraries: Jars that the files use beside the toolchain's, by name.

        Raises:
            ToolError: The compiler cannot run, or refuses the files.
        """
        with tempfile.TemporaryDirectory(prefix="edgepack-kotlin-") as name:
            out = Path(name, "classes")
            more = [Path(name, library) for library in libraries]
            for path in more:
                path.write_bytes(libraries[path.name])
            argv = self._make_argv(sources, module, out, more)
            result = run_program(argv, timeout_s=_TIMEOUT_S)
            if result.exit_code:
                raise ToolError(
                    f"the Kotlin compiler does not take {str(sources)!r}{result.last_lines}",
                    hint="report this as a fault of edgepack, which writes these files",
                )
            return read_files(out)

    def _make_argv(
        self, sources: Path, module: str, out: Path, libraries: Sequence[Path]
    ) -> list[str]:
        return [
            self.java,
            *FAST_JAVA,
            *("-cp", _join_paths(self.compiler)),
            "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler",
            *("-no-stdlib", "-no-reflect"),
            # A newer JDK has methods that Android lacks, for example of lists; this option hides
            # them.
            *("-jvm-target", JVM_TARGET, f"-Xjdk-release={JVM_TARGET}"),
            *("-module-name", module),
            *("-classpath", _join_paths([*self.classpath, *libraries])),
            *("-d", str(out)),
            str(sources),
        ]


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files of a folder, by path below it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _join_paths(paths: Iterable[Path]) -> str:
    return os.pathsep.join(map(str, paths))


def find_maven_repository() -> Path:
    """Return the folder in which Maven keeps what it fetched, whether it exists or not."""
    return Path.home() / ".m2" / "repository"


def find_toolchain(packages: Mapping[str, str], jars: Path | None = None) -> Toolchain:
    """Return what compiles bundles that pin these packages; nothing is downloaded.

    Args:
        packages: The target's, with their versions.
        jars: A Maven repository or a folder of jars; default: Maven's own on this machine.

    Raises:
        ToolError: A JDK or jars are missing, or the JDK is too old. The error names each and says
            how to get it.
    """
    folder = jars or find_maven_repository()
    if ONNXRUNTIME not in packages:
        raise ToolError(
            f"the target has no package {ONNXRUNTIME}, which an AAR is compiled against",
            hint="build without --aar, or pin it in the target's runtime.packages",
        )
    # The desktop package has the same classes, and a jar instead of an AAR.
    runtime = MavenArtifact("com.microsoft.onnxruntime", "onnxruntime", packages[ONNXRUNTIME])
    against = (runtime, _ANDROID, _STDLIB, _COROUTINES)
    wanted = dict.fromkeys((*_COMPILER, *against))
    found = {
        artifact: path
        for artifact in wanted
        if (path := find_artifact_file(folder, artifact, ".jar"))
    }
    java = _find_java()
    obstacle = _find_obstacle(java)
    missing = [artifact.coordinates for artifact in wanted if artifact not in found]
    if missing or obstacle is not None:
        raise _make_missing_error(missing, folder, obstacle)
    return Toolchain(
        str(java), tuple(found[each] for each in _COMPILER), tuple(found[each] for each in against)
    )


def _make_missing_error(jars: list[str], folder: Path, java: str | None) -> ToolError:
    what = [f"a JDK ({java})"] if java else []
    what += [f"{coordinates} (not below {folder})" for coordinates in jars]
    how = [f"install a JDK, version {JVM_TARGET} or newer, and set JAVA_HOME to it"] if java else []
    get = "mvn dependency:get"
    if folder != find_maven_repository():
        get = f"mvn dependency:copy -DoutputDirectory={shlex.quote(str(folder))}"
    how += [f"{get} -Dartifact={coordinates}" for coordinates in jars]
    return ToolError(
        "an AAR cannot be built, missing are:" + "".join(f"\n  {line}" for line in what),
        hint="the source module in the bundle needs none of it; or get what is missing"
        + (", or name a folder that has the jars with --jars:" if jars else ":")
        + "".join(f"\n  {line}" for line in how),
        where="--aar",
    )


def find_artifact_file(folder: Path, artifact: MavenArtifact, ending: str) -> Path | None:
    """Return an artifact's file in a Maven repository or a folder of such files; None without."""
    name = artifact.make_file_name(ending)
    places = (folder / artifact.folder / name, folder / name)
    return next((path.resolve() for path in places if path.is_file()), None)


def _find_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")


def _find_obstacle(java: str | None) -> str | None:
    """Return why a program cannot compile; None if it can."""
    if java is None:
        home = os.environ.get("JAVA_HOME")
        return f"JAVA_HOME is {home}, without bin/java" if home else "there is no 'java' on PATH"
    told = run_program([java, "-XshowSettings:properties", "-version"], timeout_s=_TIMEOUT_S)
    # Before Java 9 its version began with 1: 'java version "1.8.0_392"'.
    version = re.search(rb'version "(?:1\.)?(\d+)', told.stderr)
    folder = re.search(rb"java\.home = (.+)", told.stderr)
    if version is None or folder is None:
        return f"{java} does not print its version{told.last_lines}"
    if int(version[1]) < int(JVM_TARGET):
        return f"{java} is Java {int(version[1])}"
    # The methods of older Javas, which -Xjdk-release reads.
    if not Path(os.fsdecode(folder[1]).strip(), "lib", "ct.sym").is_file():
        return f"{java} is a runtime that only runs programs"
    return None
