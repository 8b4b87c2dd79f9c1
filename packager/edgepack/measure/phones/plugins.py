"""Finds the plugins of a bundle's providers: libraries that a phone needs beside onnxruntime's own.

Source: Qualcomm's packages as templates/android has them for apps. Not tried on a phone: what they
hold was not seen, so all libraries that they have for the phone's ABI are taken.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.bundle.manifest import Manifest
from edgepack.errors import BundleError, ToolError
from edgepack.measure.phones.native_build import find_kept_folder, list_packages, make_key


@dataclass(frozen=True)
class Plugin:
    """A provider that packages bring to onnxruntime."""

    provider: str
    library: str
    """The file that registers it."""
    packages: tuple[str, ...]
    """Maven names of what holds that file, and what it loads."""


@dataclass(frozen=True)
class PluginFiles:
    """A plugin's libraries for one ABI, on this machine."""

    plugin: Plugin
    libraries: tuple[Path, ...]
    key: str
    """Names what they were taken out of."""

    def make_argument(self, folder: str) -> str:
        """Return the measuring program's argument that registers it from a folder of the phone."""
        return f"{self.plugin.provider}={folder}/{self.plugin.library}"


QNN = Plugin(
    provider="QNNExecutionProvider",
    library="libonnxruntime_providers_qnn.so",
    packages=(
        "com.qualcomm.qti:onnxruntime-android-qnn",
        "com.qualcomm.qti:qnn-runtime",
    ),
)


def find_plugin(manifest: Manifest, abi: str, cache: Path | None = None) -> PluginFiles | None:
    """Return the plugin that variants of a bundle need; None if they need none.

    Args:
        manifest: The bundle's.
        abi: Of the phone.
        cache: Where to keep the libraries; default: in the user's cache folder.

    Raises:
        BundleError: The bundle pins no such package.
        ToolError: A package is not on this machine, or has no library for the ABI.
    """
    used = {provider.name for entry in manifest.variants for provider in entry.providers}
    if QNN.provider not in used:
        return None
    packages = [_find_package(name, manifest) for name in QNN.packages]
    key = make_key(QNN.library, abi, packages)
    folder = (cache or find_kept_folder()) / f"plugin-{key}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as name:
            taken = Path(name) / "libraries"
            taken.mkdir()
            _take_libraries(packages, abi, taken)
            try:
                taken.replace(folder)
            except OSError:
                if not folder.is_dir():  # else another command was faster
                    raise
    return PluginFiles(QNN, tuple(sorted(folder.iterdir())), key)


def _find_package(name: str, manifest: Manifest) -> Path:
    group, artifact = name.split(":")
    version = manifest.runtime.get(name)
    if version is None:
        raise BundleError(
            f"the bundle pins no {name}",
            hint="add it to runtime.packages of the target's profile, and build again",
        )
    for path in list_packages(group, artifact, version):
        if path.is_file():
            return path
    raise ToolError(
        f"{artifact} {version} is not on this machine, which has the plugin or what that loads",
        hint=f"fetch it: mvn dependency:get -Dartifact={name}:{version}:aar",
    )


def _take_libraries(packages: Sequence[Path], abi: str, folder: Path) -> None:
    """Take a plugin's libraries out of its packages.

    Raises:
        ToolError: One is no package, or none holds the library that registers the provider.
    """
    for package in packages:
        try:
            with zipfile.ZipFile(package) as archive:
                for name in archive.namelist():
                    if found := re.fullmatch(rf"jni/{re.escape(abi)}/([\w.+-]+\.so)", name):
                        (folder / found[1]).write_bytes(archive.read(name))
        except zipfile.BadZipFile as error:
            raise ToolError(
                f"{package} is no .aar file: {error}", hint="remove it, and fetch it again"
            ) from error
    if not (folder / QNN.library).is_file():
        raise ToolError(
            f"{packages[0]} has no jni/{abi}/{QNN.library}",
            hint="take a phone of another ABI (arm64-v8a), or another version of the package",
        )
