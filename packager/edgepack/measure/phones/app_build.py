"""Builds the measuring app for Android: the measuring program in a process of an app.

Made with the user's Android SDK and JDK alone, without Gradle: an instrumentation that calls the
program as a library. Source: the documentation of aapt2, d8, zipalign and apksigner
(developer.android.com/tools). Not tried with an SDK.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.processes import ProgramResult, run_program
from edgepack.base.resources import find_ondevice_dir
from edgepack.errors import ToolError
from edgepack.measure.phones.native_build import (
    API_LEVEL,
    COMPILE_S,
    SOURCES,
    extract,
    find_compiler,
    find_kept_folder,
    list_sdk_folders,
    make_key,
    require_abi,
    sort_newest_first,
)

PACKAGE = "edgepack.measure"
INSTRUMENTATION = f"{PACKAGE}/{PACKAGE}.MeasureInstrumentation"
OWN_SOURCES = ("AndroidManifest.xml", "MeasureInstrumentation.java", "edgepack_measure_jni.c")
_PASSWORD = "android"  # noqa: S105  (of a key that signs nothing but this app, on this machine)


@dataclass(frozen=True)
class Sdk:
    """What of an Android SDK and a JDK makes an app."""

    build_tools: Path
    platform: Path
    """``android.jar``."""

    def find_tool(self, name: str) -> str:
        """Return the path of one of the build tools."""
        return str(self.build_tools / name)


def find_sdk() -> Sdk:
    """Return the newest build tools and platform of the Android SDK.

    Raises:
        ToolError: There are none.
    """
    folders = list(list_sdk_folders())
    tools = [path for sdk in folders for path in sort_newest_first(sdk / "build-tools")]
    platforms = [path for sdk in folders for path in sort_newest_first(sdk / "platforms")]
    if not tools or not platforms:
        missing = "build-tools" if not tools else "platforms"
        raise ToolError(
            f"there is no Android SDK with {missing} here"
            f" ({', '.join(map(str, folders)) or 'ANDROID_HOME is not set'})",
            hint="install them: sdkmanager 'build-tools;35.0.0' 'platforms;android-35'; or measure"
            " with 'inside: shell' in devices.yaml, which needs the NDK alone",
        )
    return Sdk(tools[0], platforms[0] / "android.jar")


def build_app(
    package: Path, abi: str, libraries: Sequence[Path] = (), cache: Path | None = None
) -> Path:
    """Return the measuring app for an ABI, with the library out of the onnxruntime package.

    ``libraries`` are a plugin's, which go into it, too.

    It is made once, and kept in the user's cache folder, with the key that signs it.

    Raises:
        DeviceError: There are no phones of this ABI.
        ToolError: The NDK, the SDK or the JDK is missing, or one of their programs failed.
    """
    require_abi(abi)
    compiler, sdk = find_compiler(abi), find_sdk()
    native = find_ondevice_dir() / "native"
    sources = [native / name for name in SOURCES]
    sources += [native / "android" / name for name in OWN_SOURCES]
    folder = cache or find_kept_folder()
    key = make_key(f"{compiler} {sdk} {abi}", abi, [*sources, package, *libraries])
    app = folder / f"app-{key}.apk"
    if not app.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as name:
            work = Path(name)
            extract(package, abi, work)
            for library in libraries:
                shutil.copyfile(library, work / "jni" / abi / library.name)
            _compile_library(work, compiler, abi)
            _compile_classes(work, sdk)
            _pack(work, sdk, abi, has_plugin=bool(libraries))
            _sign(work, sdk, folder / "app.keystore")
            (work / "signed.apk").replace(app)
    return app


def _compile_library(work: Path, compiler: Path, abi: str) -> None:
    native = find_ondevice_dir() / "native"
    argv = [str(compiler), "-std=c11", "-O2", "-fPIC", "-shared", "-Wl,-z,max-page-size=16384"]
    argv += [str(native / SOURCES[0]), str(native / "android" / OWN_SOURCES[2])]
    argv += ["-I", str(work / "headers"), "-I", str(native)]
    argv += ["-o", str(work / "jni" / abi / "libedgepack_measure.so"), "-lm", "-ldl"]
    _run(argv, "compiling the measuring library")


def _compile_classes(work: Path, sdk: Sdk) -> None:
    source = find_ondevice_dir() / "native" / "android" / OWN_SOURCES[1]
    argv = [find_jdk_program("javac"), "-source", "8", "-target", "8", "-nowarn"]
    argv += ["-classpath", str(sdk.platform), "-d", str(work / "classes"), str(source)]
    _run(argv, "compiling the instrumentation")
    classes = sorted(map(str, (work / "classes").rglob("*.class")))
    argv = [sdk.find_tool("d8"), "--lib", str(sdk.platform), "--min-api", str(API_LEVEL)]
    _run([*argv, "--output", str(work), *classes], "making classes.dex")


def _pack(work: Path, sdk: Sdk, abi: str, *, has_plugin: bool) -> None:
    manifest = work / OWN_SOURCES[0]
    text = (find_ondevice_dir() / "native" / "android" / OWN_SOURCES[0]).read_text(encoding="utf-8")
    # aapt2 of build tools before 31 does not know what only a plugin needs.
    kept = [line for line in text.splitlines() if has_plugin or "uses-native-library" not in line]
    manifest.write_text("\n".join([*kept, ""]), encoding="utf-8")
    argv = [sdk.find_tool("aapt2"), "link", "-o", str(work / "base.apk")]
    argv += ["--manifest", str(manifest), "-I", str(sdk.platform)]
    _run(argv, "making the app's manifest")
    with zipfile.ZipFile(work / "base.apk", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.write(work / "classes.dex", "classes.dex")
        for library in sorted((work / "jni" / abi).iterdir()):
            archive.write(library, f"lib/{abi}/{library.name}")
    argv = [sdk.find_tool("zipalign"), "-f", "4", str(work / "base.apk"), str(work / "aligned.apk")]
    _run(argv, "aligning the app")


def _sign(work: Path, sdk: Sdk, keystore: Path) -> None:
    """Sign with a key that stays on this machine, so that a later app replaces an earlier one."""
    if not keystore.is_file():
        made = work / "new.keystore"
        argv = [find_jdk_program("keytool"), "-genkeypair", "-keystore", str(made)]
        argv += [
            "-alias",
            "edgepack",
            "-storepass",
            _PASSWORD,
            "-keypass",
            _PASSWORD,
            "-keyalg",
            "RSA",
        ]
        _run([*argv, "-validity", "10000", "-dname", "CN=edgepack"], "making a key")
        made.replace(keystore)
    argv = [
        sdk.find_tool("apksigner"),
        "sign",
        "--ks",
        str(keystore),
        "--ks-pass",
        f"pass:{_PASSWORD}",
    ]
    argv += ["--out", str(work / "signed.apk"), str(work / "aligned.apk")]
    _run(argv, "signing the app")


def find_jdk_program(program: str) -> str:
    """Return a program of the JDK.

    Raises:
        ToolError: There is no such program.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(program, path=str(Path(home) / "bin") if home else None)
    if found is None:
        raise ToolError(
            f"there is no {program} here, and the measuring app is made with it",
            hint="install a JDK, version 17, or set JAVA_HOME",
        )
    return found


def _run(argv: Sequence[str], doing: str) -> ProgramResult:
    result = run_program(argv, timeout_s=COMPILE_S)
    if result.exit_code != 0:
        said = result.last_lines or "".join(
            f"\n  | {line}" for line in result.text.splitlines()[-10:]
        )
        raise ToolError(
            f"{doing} failed with exit code {result.exit_code}{said}",
            hint="take newer tools (sdkmanager --update), or 'inside: shell' in devices.yaml",
        )
    return result
