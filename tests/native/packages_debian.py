"""Packages of bundles are installed, upgraded and removed in Debian, on its own processors.

The roots are those of the lab's boards, made once and kept where it keeps them. Programs of arm64
run under qemu-user, by binfmt_misc. There a root has no ``/sys``: onnxruntime's library looks for
the host's processor in it, and finds another than it runs on.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.builder.build import build
from edgepack.errors import ToolError
from edgepack.fleets.export import ExportSettings, export_bundle

from tests.lab.commands import say
from tests.lab.host import CannotRunError, emulation
from tests.lab.kinds import NATIVE, OLDER, Kind
from tests.lab.rootfs import find_rootfs, unpack
from tests.lab.run import cache_folder
from tests.mobile.proofs import ROOT, Proof, require
from tests.mobile.signatures import BUCKETS, SEVERAL_INPUTS
from tests.native.packages_cmake import ask_cmake, require_programs, run, run_well
from tests.native.programs import KEPT, TARGET, build_bundle, find_library

MAINTAINER = "Ada Byron <ada@byron.io>"
_WHEEL_TIMEOUT_S = 600.0


COMPILERS = {"x86-64": "x86_64-linux-gnu-g++", "aarch64": "aarch64-linux-gnu-g++"}


def make_twice(work: Path) -> str:
    """The same bundle gives the same packages, and ``build --deb --ipk`` those of ``export``."""
    project = next((KEPT / "bundles" / TARGET / BUCKETS.name).glob("project/*.yaml"))
    argv = [sys.executable, "-m", "edgepack", "build", project, "--out", work / "built"]
    run_well([*argv, "--deb", "--ipk"])
    names = []
    for form in ("deb", "ipk"):
        made = export_bundle(build_bundle(BUCKETS), form, work).path
        other = work / "built" / made.name
        require(made.read_bytes() == other.read_bytes(), f"{made.name} has other bytes")
        names.append(made.name)
    return ", ".join(names)


def look_through(work: Path) -> str:
    """lintian has neither errors nor warnings, and has one where nobody is the maintainer."""
    require_programs("lintian")
    bundle = build_bundle(BUCKETS)
    runtime = find_library()
    for number, vendored in enumerate((None, runtime)):
        settings = ExportSettings(maintainer=MAINTAINER, vendor_runtime=vendored)
        package = export_bundle(bundle, "deb", work / str(number), settings).path
        found = list_tags(package)
        require(not found, f"{package.name}: {'; '.join(found)}")
    found = list_tags(export_bundle(bundle, "deb", work / "nobody").path)
    require(any("localhost" in tag for tag in found), f"a package of nobody: {found}")
    return run_well(["lintian", "--version"]).strip()


def list_tags(package: Path) -> list[str]:
    """Return lintian's errors and warnings of a package."""
    done = run(["lintian", "--allow-root", package])
    return [line for line in done.text.splitlines() if line.startswith(("E:", "W:"))]


@cache
def find_aarch64_library() -> Path:
    """Return the library of onnxruntime's wheel for aarch64, fetched once."""
    kept = KEPT / "aarch64"
    if not (found := list(kept.glob("onnxruntime/capi/libonnxruntime.so.1*"))):
        version = find_library().name.removeprefix("libonnxruntime.so.")
        argv = ["pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        argv += ["--platform=manylinux_2_28_aarch64", "--dest", str(kept)]
        python = str(ROOT / ".venv" / "bin" / "python")
        run_well([python, "-m", *argv, f"onnxruntime=={version}"], PATH=os.environ["PATH"])
        shutil.unpack_archive(next(kept.glob("*.whl")), kept, "zip")
        found = list(kept.glob("onnxruntime/capi/libonnxruntime.so.1*"))
    return found[0]


class Root:
    """A Debian of the lab's, in which packages are installed."""

    def __init__(self, kind: Kind, work: Path) -> None:
        (work / "made").mkdir()
        self.folder = work / "root"
        unpack(find_rootfs(cache_folder(), work / "made", say, kind), self.folder)

    def run(self, *words: str) -> tuple[int, str]:
        """Run a program inside, and return its exit code and what it printed."""
        argv = ["chroot", str(self.folder), *words]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
        done = run_program(argv, timeout_s=_WHEEL_TIMEOUT_S, environment=environment)
        return done.exit_code, done.text + done.stderr.decode("utf-8", "replace")

    def run_well(self, *words: str) -> str:
        """Return what a program inside prints.

        Raises:
            NotHeldError: It failed.
        """
        code, said = self.run(*words)
        require(code == 0, f"{' '.join(words)}: exit code {code}: {said[-2000:]}")
        return said

    def install(self, package: Path) -> None:
        """Bring a package inside and install it."""
        shutil.copy(package, self.folder / "tmp" / package.name)
        self.run_well("dpkg", "-i", f"/tmp/{package.name}")


def compile_self_test(kind: Kind, bundle: Path, work: Path) -> Path:
    """Build a bundle's self-test for a system, with a toolchain file."""
    toolchain = work / "toolchain.cmake"
    toolchain.write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        f"set(CMAKE_SYSTEM_PROCESSOR {kind.machine})\n"
        f"set(CMAKE_CXX_COMPILER {COMPILERS[kind.arch]})\n"
    )
    build_folder = work / "build"
    words = [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DCMAKE_BUILD_TYPE=Debug"]
    run_well(["cmake", "-S", bundle / "cpp", "-B", build_folder, *words])
    run_well(["cmake", "--build", build_folder, "--target", "edgepack_self_test"])
    return build_folder / "edgepack_self_test"


def build_newer(target: str, work: Path) -> Path:
    """Build the next version of a bundle, and return its folder."""
    project = BUCKETS.write(work / "project", target)
    project.write_text(project.read_text().replace('"1.0.0"', '"1.1.0-rc1"'))
    build(project=project, out=work / "dist")
    return next(path for path in (work / "dist").iterdir() if path.is_dir())


def install(kind: Kind, library: Path, work: Path) -> str:
    """Install, upgrade and remove packages; a program in C++ runs with what they bring."""
    require_programs("cmake", COMPILERS[kind.arch], "mmdebstrap")
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    bundle = build_bundle(BUCKETS, kind.target)
    settings = ExportSettings(maintainer=MAINTAINER, vendor_runtime=library)
    root = Root(kind, work)
    before = list_files(root.folder)
    shutil.copy(compile_self_test(kind, bundle, work), root.folder / "usr/local/bin")
    place, test = f"/usr/lib/edgepack/{BUCKETS.name}", "/usr/local/bin/edgepack_self_test"
    root.install(export_bundle(bundle, "deb", work, settings).path)
    said = root.run_well(test, place)
    require("buckets 1.0.0: cpu-fp32 is right on onnxruntime" in said, said)
    other = build_bundle(SEVERAL_INPUTS, kind.target)
    package = export_bundle(other, "deb", work, ExportSettings(maintainer=MAINTAINER)).path
    root.install(package)  # it brings no onnxruntime
    code, said = root.run(test, f"/usr/lib/edgepack/{SEVERAL_INPUTS.name}")
    require(code == 1 and "libonnxruntime" in said, f"an onnxruntime from nowhere: {said}")
    check_found(root, work)
    newer = build_newer(kind.target, work / "newer")
    root.install(export_bundle(newer, "deb", work, settings).path)
    said = root.run_well(test, place)
    require("buckets 1.1.0-rc1: cpu-fp32 is right" in said, said)
    older = run(["chroot", root.folder, "dpkg", "--compare-versions", "1.1.0~rc1", "gt", "1.1.0"])
    require(older.exit_code == 1, "rc1 is newer than its release")
    for name in (BUCKETS.name, SEVERAL_INPUTS.name):
        root.run_well("dpkg", "--purge", f"edgepack-{name}-{kind.target}")
    left = [path for path in list_files(root.folder) - before if "edgepack" in path]
    left = [path for path in left if not path.startswith(("tmp/", "usr/local/bin/"))]
    require(not left, f"removing leaves {left}")
    return f"{kind.release}, {root.run_well('uname', '-m').strip()}"


def check_found(root: Root, work: Path) -> None:
    """CMake finds both installed bundles, and says where they lie on the device."""
    for signature in (BUCKETS, SEVERAL_INPUTS):
        named = f"-DCMAKE_FIND_ROOT_PATH={root.folder}"
        said = ask_cmake(work / f"ask-{signature.name}", signature, "1.0", named)
        macro = signature.name.upper().replace("-", "_")
        wanted = f'EDGEPACK_BUNDLE_{macro}="/usr/lib/edgepack/{signature.name}"'
        require(said == wanted, f"found {said}, not {wanted}")
    text = (root.folder / f"usr/share/pkgconfig/{BUCKETS.name}.pc").read_text()
    require(f"bundle=/usr/lib/edgepack/{BUCKETS.name}\n" in text, text)


def list_files(folder: Path) -> set[str]:
    """Return the files and folders of a root, as paths in it."""
    found = set()
    for where, folders, files in os.walk(folder):
        inside = Path(where).relative_to(folder)
        found |= {str(inside / name) for name in (*folders, *files)}
    return found


def install_here(work: Path) -> str:
    """On this machine's processor."""
    return install(replace(NATIVE, target="linux-x86-64"), find_library(), work)


def install_emulated(work: Path) -> str:
    """On an emulated processor."""
    try:
        with emulation():
            return install(replace(OLDER, target="linux-aarch64"), find_aarch64_library(), work)
    except CannotRunError as error:
        raise ToolError(str(error), hint="allow this machine binfmt_misc") from error


def follow_recipe(work: Path) -> str:
    """What a recipe's do_install installs is found by CMake; bitbake itself is not there."""
    require_programs("cmake")
    bundle = build_bundle(BUCKETS)
    recipe = export_bundle(bundle, "yocto", work).path.read_text()
    body = recipe.split("do_install() {\n")[1].split("\n}\n")[0]
    (work / "layer").mkdir()
    shutil.unpack_archive(next(work.rglob("*.tar.gz")), work / "layer")
    [source] = (work / "layer").iterdir()
    places = {"nonarch_libdir": "/usr/lib", "datadir": "/usr/share", "PATH": os.environ["PATH"]}
    run_well(["sh", "-euc", body], D=str(work / "image"), S=str(source), **places)
    said = ask_cmake(work / "ask", BUCKETS, "1.0", f"-DCMAKE_FIND_ROOT_PATH={work / 'image'}")
    require('"/usr/lib/edgepack/buckets"' in said, said)
    installed = work / "image/usr/lib/edgepack/buckets"
    for path in (path for path in bundle.rglob("*") if path.is_file()):
        copy = installed / path.relative_to(bundle)
        is_same = copy.is_file() and copy.read_bytes() == path.read_bytes()
        require(is_same, f"{copy} is missing or another file")
    return "as many files as the bundle has"


PROOFS = (
    Proof("packages have the same bytes", make_twice),
    Proof("lintian", look_through),
    Proof("install, upgrade, remove on amd64", install_here),
    Proof("install, upgrade, remove on arm64", install_emulated),
    Proof("what a recipe installs", follow_recipe),
)
