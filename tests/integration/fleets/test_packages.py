"""Packages of bundles, and recipes: dpkg installs them, and the hook stops wrong bundles."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from edgepack.bundle.archive import write_archive
from edgepack.cli.main import run
from edgepack.errors import BundleError, ToolError, UsageError
from edgepack.fleets import packages
from edgepack.fleets.export import ExportSettings, export_bundle

from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.tools import require_tool, unpack


@pytest.fixture(autouse=True)
def _tool() -> None:
    require_tool("dpkg-deb")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="dpkg installs files of root")


def ask(*argv: str | Path) -> str:
    return subprocess.run(argv, capture_output=True, check=True, text=True).stdout


PACKAGE = "edgepack-tiny-linux-x86-64"


class Root:
    """A root that dpkg installs into; scripts run in this machine's own root."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        for name in ("etc/default", "var/lib/dpkg/updates", "var/lib/dpkg/info"):
            (folder / name).mkdir(parents=True)
        (folder / "var/lib/dpkg/status").touch()
        (folder / "etc/default/edgepack").write_text(f"EDGEPACK_PYTHON={python}\n")

    def dpkg(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        options = [f"--root={self.folder}", "--force-script-chrootless", "--force-not-root"]
        log = [f"--log={self.folder}/log"]
        return subprocess.run(
            ["dpkg", *options, *log, *argv], capture_output=True, check=False, text=True,
            env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        )  # fmt: skip

    def find_state(self, package: str = PACKAGE) -> str:
        argv = ["dpkg-query", f"--admindir={self.folder}/var/lib/dpkg", "-W", "-f=${Status}"]
        return ask(*argv, package)


def test_package_when_dpkg_reads_it_is_whole(bundle: Path, tmp_path: Path) -> None:
    found = export_bundle(bundle, "deb", tmp_path / "out")
    assert found.path == tmp_path / "out" / f"{PACKAGE}_1.0.0_all.deb"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [found.path.name]
    said = ask("dpkg-deb", "-I", found.path)
    for line in (f"Package: {PACKAGE}\n", "Version: 1.0.0", "Architecture: all", found.digest):
        assert line in said
    listed = ask("dpkg-deb", "-c", found.path).splitlines()
    assert all(line.split()[1] == "root/root" for line in listed)
    names = {line.split()[5].removeprefix("./") for line in listed}
    files = {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file()}
    assert {f"usr/lib/edgepack/tiny/{name}" for name in files} < names
    assert {"usr/", "usr/lib/edgepack/tiny/models/"} < names
    ask("dpkg-deb", "-R", found.path, tmp_path / "raw")
    for line in (tmp_path / "raw/DEBIAN/md5sums").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.md5((tmp_path / "raw" / name).read_bytes()).hexdigest() == digest
    manifest = tmp_path / "raw/usr/lib/edgepack/tiny/manifest.json"
    assert hashlib.sha256(manifest.read_bytes()).hexdigest() == found.digest


def test_package_when_it_is_made_twice_has_the_same_bytes(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = export_bundle(bundle, "deb", tmp_path / "one").path.read_bytes()
    copy = shutil.copytree(bundle, tmp_path / "copy")
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    write_archive(copy, tmp_path / "tiny.tar.gz", root="tiny")
    assert (
        export_bundle(tmp_path / "tiny.tar.gz", "deb", tmp_path / "two").path.read_bytes() == first
    )
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    dated = export_bundle(bundle, "deb", tmp_path / "three").path
    assert dated.read_bytes() != first
    assert "2023-11-14" in ask("dpkg-deb", "-c", dated)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH is 'yesterday'"):
        export_bundle(bundle, "deb", tmp_path / "four")


@needs_root
def test_package_when_it_is_installed_runs_there_and_goes_again(
    bundle: Path, tmp_path: Path
) -> None:
    found = export_bundle(bundle, "deb", tmp_path)
    root = Root(tmp_path / "root")
    done = root.dpkg("-i", found.path)
    assert done.returncode == 0, done.stderr
    assert root.find_state() == "install ok installed"
    place = root.folder / "usr/lib/edgepack/tiny"
    program = "from edgepack_loader import load; print(load().variant)"
    argv = [sys.executable, "-B", "-c", program]
    assert subprocess.run(argv, cwd=place, capture_output=True, check=True).stdout
    assert root.dpkg("-V", PACKAGE).stdout == ""
    assert root.dpkg("-r", PACKAGE).returncode == 0
    assert not (root.folder / "usr/lib/edgepack").exists()


@needs_root
def test_package_when_a_project_has_other_signs_is_configured(bundle: Path, tmp_path: Path) -> None:
    change_manifest(bundle, lambda manifest: manifest.update(name="My_Detector"))
    found = export_bundle(bundle, "deb", tmp_path)
    assert found.path.name == "edgepack-my-detector-linux-x86-64_1.0.0_all.deb"
    root = Root(tmp_path / "root")
    done = root.dpkg("-i", found.path)
    assert done.returncode == 0, done.stderr
    assert "edgepack-progress" in done.stderr  # it was tested
    assert (root.folder / "usr/lib/edgepack/My_Detector/manifest.json").exists()


@needs_root
def test_package_when_it_replaces_another_leaves_no_byte_code(bundle: Path, tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    assert root.dpkg("-i", export_bundle(bundle, "deb", tmp_path).path).returncode == 0
    place = root.folder / "usr/lib/edgepack/tiny"

    def say(code: str) -> str:
        """Change the loader, and return what root's program of the installed one prints."""
        path = bundle / "edgepack_names.py"
        path.write_text(f"{path.read_text()}VERSION_HERE = {code!r}\n")
        change_manifest(bundle, lambda manifest: list_anew(manifest, path))
        done = root.dpkg("-i", export_bundle(bundle, "deb", tmp_path).path)
        assert done.returncode == 0, done.stderr
        program = "import edgepack_names; print(edgepack_names.VERSION_HERE)"
        return subprocess.run(
            [sys.executable, "-c", program], cwd=place, env={}, capture_output=True, check=True,
            text=True,
        ).stdout.strip()  # fmt: skip

    text = (bundle / "edgepack_names.py").read_text()
    assert say("one") == "one"
    assert list(place.rglob("__pycache__"))
    (bundle / "edgepack_names.py").write_text(text)
    assert say("two") == "two"
    assert root.dpkg("-r", PACKAGE).returncode == 0
    assert not (root.folder / "usr/lib/edgepack").exists()


def list_anew(manifest: dict[str, Any], path: Path) -> None:
    [entry] = [each for each in manifest["files"] if each["path"] == path.name]
    data = path.read_bytes()
    entry.update(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


@needs_root
def test_package_when_it_is_of_another_target_stands_in_for_the_first(
    bundle: Path, tmp_path: Path
) -> None:
    first = export_bundle(bundle, "deb", tmp_path).path
    change_manifest(bundle, lambda manifest: manifest.update(target="linux-other"))
    second = export_bundle(bundle, "deb", tmp_path).path
    assert first.exists()
    assert second.name == "edgepack-tiny-linux-other_1.0.0_all.deb"
    root = Root(tmp_path / "root")
    assert root.dpkg("-i", first).returncode == 0
    done = root.dpkg("-i", second)
    assert "conflicting packages - not installing edgepack-tiny-linux-other" in done.stderr
    assert root.find_state() == "install ok installed"
    status = f"Dir::State::status={root.folder}/var/lib/dpkg/status"
    planned = ask("apt-get", "-s", "-y", "-o", status, "install", second)
    assert f"Remv {PACKAGE} " in planned
    assert "Inst edgepack-tiny-linux-other " in planned
    assert root.dpkg("-r", PACKAGE).returncode == 0
    assert root.dpkg("-i", second).returncode == 0


def break_goldens(manifest: dict[str, Any]) -> None:
    for variant in manifest["variants"]:
        manifest["goldens"][0]["outputs"][variant["id"]][0]["path"] = "golden/1-y.bin"


@needs_root
def test_package_when_its_goldens_are_wrong_is_not_installed(bundle: Path, tmp_path: Path) -> None:
    good = export_bundle(bundle, "deb", tmp_path / "good").path
    change_manifest(bundle, break_goldens)
    found = export_bundle(bundle, "deb", tmp_path)
    root = Root(tmp_path / "root")
    done = root.dpkg("-i", found.path)
    assert done.returncode == 1
    assert "no variant" in done.stderr
    assert "dB near the golden one" in done.stderr
    assert root.find_state() == "install ok half-configured"
    assert root.dpkg("-i", good).returncode == 0
    assert root.find_state() == "install ok installed"


@needs_root
@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ("", 0, "is not tested: python3 has no numpy"),
        ("EDGEPACK_PYTHON=/nowhere/python3\n", 1, "/nowhere/python3"),
    ],
)
def test_package_when_there_is_no_runtime_says_that_it_is_not_tested(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, code: int,
    said: str,
) -> None:  # fmt: skip
    found = export_bundle(bundle, "deb", tmp_path)
    root = Root(tmp_path / "root")
    (root.folder / "etc/default/edgepack").write_text(settings)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    done = root.dpkg("-i", found.path)
    assert done.returncode == code
    assert said in done.stderr


@pytest.mark.parametrize(
    ("version", "made"), [("1.0-rc1", "1.0~rc1"), ("2.0+b1", "2.0+b1"), ("v1", ""), ("1_0", "")]
)
def test_version_when_debian_orders_otherwise_is_changed_or_refused(
    bundle: Path, tmp_path: Path, version: str, made: str
) -> None:
    change_manifest(bundle, lambda manifest: manifest.update(version=version))
    if not made:
        with pytest.raises(UsageError, match=f"version '{version}' is none"):
            export_bundle(bundle, "deb", tmp_path)
        return
    path = export_bundle(bundle, "deb", tmp_path).path
    assert ask("dpkg-deb", "-f", path, "Version").strip() == made


def test_bundle_when_it_was_altered_or_is_a_phones_is_refused(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle / "README.md").write_text("more")
    with pytest.raises(BundleError):
        export_bundle(bundle, "deb", tmp_path / "out")
    (bundle / "README.md").unlink()
    assert run(["export", str(bundle), "--format", "deb", "--to", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["project"] == "tiny"
    change_manifest(bundle, lambda manifest: manifest.update(family="web", target="web"))
    with pytest.raises(UsageError, match="is for web"):
        export_bundle(bundle, "deb", tmp_path / "out")
    assert not (tmp_path / "out").exists()


X86_64, AARCH64 = 62, 183


def write_runtime(path: Path, machine: int = X86_64, entry: bytes = b"OrtGetApiBase") -> Path:
    """Write what an ELF library has at its beginning, and the name of a function."""
    header = b"\x7fELF" + bytes([2, 1]) + bytes(10) + bytes([3, 0, machine, 0])
    path.write_bytes(header + bytes(44) + b"\0" + entry + b"\0")
    return path


def test_runtime_when_it_is_vendored_lies_where_cpp_looks(bundle: Path, tmp_path: Path) -> None:
    library = write_runtime(tmp_path / "any.so")
    settings = ExportSettings(vendor_runtime=library, depends=["libfoo1 (>= 2) | libfoo2:any"])
    path = export_bundle(bundle, "deb", tmp_path / "out", settings).path
    assert path.name == f"{PACKAGE}_1.0.0_amd64.deb"
    assert "libfoo1 (>= 2) | libfoo2:any, libc6" in ask("dpkg-deb", "-f", path, "Depends")
    ask("dpkg-deb", "-x", path, tmp_path / "raw")
    place = tmp_path / "raw/usr/lib/edgepack/tiny/cpp/lib/libonnxruntime.so.1"
    assert place.read_bytes() == library.read_bytes()
    assert "Microsoft" in (tmp_path / f"raw/usr/share/doc/{PACKAGE}/copyright").read_text()
    ipk = export_bundle(bundle, "ipk", tmp_path / "out", settings).path
    assert ipk.name == f"{PACKAGE}_1.0.0_x86_64.ipk"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"machine": AARCH64}, "it is built for aarch64, not for x86-64"),
        ({"machine": 8}, "it is built for another processor"),
        ({"entry": b"Other"}, "it does not export the function OrtGetApiBase"),
        (b"text", "it is no ELF file"),
        (None, "it cannot be read: No such file or directory"),
    ],
)
def test_runtime_when_it_is_none_for_the_target_is_refused(
    bundle: Path, tmp_path: Path, given: Any, said: str
) -> None:
    library = tmp_path / "libonnxruntime.so"
    if isinstance(given, bytes):
        library.write_bytes(given)
    elif given:
        write_runtime(library, **given)
    with pytest.raises(UsageError, match=said) as caught:
        export_bundle(bundle, "deb", tmp_path / "out", ExportSettings(vendor_runtime=library))
    assert caught.value.where == "--vendor-runtime"
    assert not (tmp_path / "out").exists()


def test_runtime_when_the_target_is_not_known_is_refused(bundle: Path, tmp_path: Path) -> None:
    change_manifest(bundle, lambda manifest: manifest.update(target="linux-other"))
    settings = ExportSettings(vendor_runtime=write_runtime(tmp_path / "any.so"))
    with pytest.raises(UsageError, match="linux-other"):
        export_bundle(bundle, "deb", tmp_path / "out", settings)


@pytest.mark.parametrize("form", ["deb", "ipk", "yocto"])
def test_bundle_when_it_is_for_macos_is_no_package(bundle: Path, tmp_path: Path, form: Any) -> None:
    change_manifest(bundle, lambda manifest: manifest.update(target="macos-arm64"))
    with pytest.raises(UsageError, match=r"tiny is for .*, which takes no packages of Linux"):
        export_bundle(bundle, form, tmp_path / "out")


def test_package_when_nfpm_is_not_installed_says_how_to_get_it(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ToolError, match="nfpm, which is not installed") as caught:
        export_bundle(bundle, "deb", tmp_path / "out")
    assert "edgepack[packages]" in caught.value.hint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (ExportSettings(maintainer="A\nEssential: yes"), "is no line of a package"),
        (ExportSettings(maintainer="A $HOME <a@b.c>"), "is no line of a package"),
        (ExportSettings(depends=["libfoo1\nEssential: yes"]), "is no package to depend on"),
        (ExportSettings(depends=["libfoo1", "lib$HOME"]), "'lib.HOME' is no package"),
        (ExportSettings(depends=["Lib Foo, bar | baz"]), "is no package to depend on"),
        (ExportSettings(depends=["a b c"]), "is no package to depend on"),
        (ExportSettings(depends=["libfoo1 (2.0)"]), "is no package to depend on"),
        (ExportSettings(copyright=Path("/nowhere/copyright")), "/nowhere/copyright"),
    ],
)
def test_setting_when_a_package_cannot_have_it_is_refused(
    bundle: Path, tmp_path: Path, settings: ExportSettings, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        export_bundle(bundle, "deb", tmp_path / "out", settings)
    assert not list(tmp_path.glob("out/*"))


def test_setting_when_it_is_of_other_forms_is_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of the format oci has no vendor-runtime"):
        export_bundle(bundle, "oci", tmp_path, ExportSettings(vendor_runtime=tmp_path))


def test_ipk_when_it_is_unpacked_has_the_bundle_and_the_hook(bundle: Path, tmp_path: Path) -> None:
    settings = ExportSettings(maintainer="Ada <ada@example.com>", depends=["onnxruntime"])
    first = export_bundle(bundle, "ipk", tmp_path / "one", settings).path
    assert first.name == f"{PACKAGE}_1.0.0_all.ipk"
    os.utime(bundle / "manifest.json", (1, 1))
    second = export_bundle(bundle, "ipk", tmp_path / "two", settings).path
    assert second.read_bytes() == first.read_bytes()
    with tarfile.open(first) as outer:
        assert {name.removeprefix("./") for name in outer.getnames()} == {
            "debian-binary", "control.tar.gz", "data.tar.gz",
        }  # fmt: skip
        unpack(outer, tmp_path)
    for name in ("control", "data"):
        with tarfile.open(tmp_path / f"{name}.tar.gz") as inner:
            unpack(inner, tmp_path / name)
    lines = (tmp_path / "control/control").read_text().splitlines()
    for line in (f"Package: {PACKAGE}", "Version: 1.0.0", "Depends: onnxruntime"):
        assert line in lines
    assert "/usr/lib/edgepack/tiny" in (tmp_path / "control/postinst").read_text()
    place = tmp_path / "data/usr/lib/edgepack/tiny"
    for path in (path for path in bundle.rglob("*") if path.is_file()):
        assert (place / path.relative_to(bundle)).read_bytes() == path.read_bytes()


def test_hook_when_opkg_makes_an_image_tests_nothing(bundle: Path, tmp_path: Path) -> None:
    change_manifest(bundle, break_goldens)
    ask("dpkg-deb", "-R", export_bundle(bundle, "deb", tmp_path).path, tmp_path / "raw")
    argv = [tmp_path / "raw/DEBIAN/postinst", "configure"]
    done = subprocess.run(
        argv, env={"D": "/image", "PATH": os.environ["PATH"]}, capture_output=True, check=True,
        text=True,
    )  # fmt: skip
    assert "not tested" in done.stderr


def test_recipe_when_it_is_written_has_the_archive_and_its_hash(
    bundle: Path, tmp_path: Path
) -> None:
    change_manifest(bundle, lambda manifest: manifest.update(name="My_Detector", version="1.0-rc1"))
    path = export_bundle(bundle, "yocto", tmp_path, ExportSettings(depends=["libfoo"])).path
    name = "edgepack-my-detector-linux-x86-64"
    assert path == tmp_path / name / f"{name}_1.0~rc1.bb"
    text = path.read_text()
    [archive] = (path.parent / "files").iterdir()
    assert archive.name == "My_Detector-1.0-rc1-linux-x86-64.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert f'SRC_URI[sha256sum] = "{digest}"' in text
    assert 'RDEPENDS:${PN} = "libfoo"' in text
    listed = hashlib.md5((bundle / "manifest.json").read_bytes()).hexdigest()
    assert f"file://manifest.json;md5={listed}" in text
    assert 'RCONFLICTS:${PN} = "edgepack-my-detector"' in text
    assert not [word for word in text.split() if word.strip('"').startswith("@")]
    for depends in ('a"b\nX = "1', "libfoo | libbar"):
        with pytest.raises(UsageError, match="is no package to depend on"):
            export_bundle(bundle, "yocto", tmp_path / "more", ExportSettings(depends=[depends]))
    assert not (tmp_path / "more").exists()


def test_build_when_a_target_is_not_of_linux_packages_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}")
    build = ["build", "--project", str(project), "--deb", "--out"]
    asked = [*build, str(tmp_path / "dist")]
    for_phones = ["--target", "android-xnnpack", "--target", "macos-arm64", "--variant", "cpu-fp32"]
    assert run([*asked, "--target", "linux-x86-64", *for_phones]) == 0
    [package] = (tmp_path / "dist").glob("*.deb")
    assert str(package) in capsys.readouterr().out
    assert run([*asked, "--target", "linux-x86-64", "--variant", "cpu-fp32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exported"] == [str(package)]
    package.unlink()
    assert run([*asked, *for_phones]) == UsageError.exit_code
    assert "no bundle that was built is for Linux" in capsys.readouterr().err
    monkeypatch.setattr(packages.shutil, "which", lambda *_, **__: None)
    elsewhere = [str(tmp_path / "other"), "--target", "linux-x86-64"]
    assert run([*build, *elsewhere]) == ToolError.exit_code
    assert not (tmp_path / "other").exists()
    assert not list((tmp_path / "dist").glob("*.deb"))
