"""CMake and pkg-config find a bundle, wherever it lies, and what they build opens it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgepack.base.processes import ProgramResult, run_program
from edgepack.errors import ToolError

from tests.mobile.proofs import Proof, require
from tests.mobile.signatures import BUCKETS, SEVERAL_INPUTS, Signature
from tests.native.programs import (
    COMPILE_TIMEOUT_S,
    WARNINGS,
    build_bundle,
    find_compilers,
    find_library,
    require_exported,
)

ODD = replace(SEVERAL_INPUTS, name="8bit.net-v2_X")
"""A project whose name is no identifier, neither of C nor of CMake."""
_PROGRAM = """#include <edgepack/edgepack.hpp>
#include <iostream>
int main(int, char** words) {{
  edgepack::Options options;
  options.runtime = words[1];
  std::cout << edgepack::Model::open({macro}, options).variant() << "\\n";
}}
"""
_LISTS = """cmake_minimum_required(VERSION 3.16)
project(user LANGUAGES CXX)
"""
_USE = """find_package({name} {version} CONFIG REQUIRED)
add_executable(program{number} {number}.cc)
target_link_libraries(program{number} PRIVATE {name}::{name})
"""
_ASK = """cmake_minimum_required(VERSION 3.16)
project(user LANGUAGES CXX)
find_package({name} {version} CONFIG REQUIRED)
get_target_property(found {name}::{name} INTERFACE_COMPILE_DEFINITIONS)
get_target_property(options {name}::{name} INTERFACE_COMPILE_OPTIONS)
message(STATUS "found ${{{name}_VERSION}} ${{found}} ${{options}}")
"""


def require_programs(*names: str) -> None:
    """Raise ToolError for a program that this machine lacks."""
    for name in names:
        if shutil.which(name) is None:
            raise ToolError(f"there is no {name} on PATH", hint=f"apt-get install {name}")


def run(argv: Sequence[str | Path], **more: str) -> ProgramResult:
    """Run a program, with more in its environment."""
    return run_program(
        list(map(str, argv)), timeout_s=COMPILE_TIMEOUT_S, environment={"LC_ALL": "C", **more}
    )


def run_well(argv: Sequence[str | Path], **more: str) -> str:
    """Return what a program prints.

    Raises:
        NotHeldError: It failed.
    """
    done = run(argv, **more)
    require(done.exit_code == 0, f"{argv[0]} failed: {done.text[-2000:]}{done.last_lines}")
    return done.text


def build_with_cmake(source: Path, build: Path, *words: str) -> None:
    """Configure and build a folder, without optimizations, which take most of the time."""
    flags = f"-DCMAKE_CXX_FLAGS={' '.join(WARNINGS)}"
    run_well(["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Debug", flags, *words])
    run_well(["cmake", "--build", build, "--parallel", "2"])


def build_own(work: Path) -> str:
    """A bundle builds its sample, self-test and C library, and ctest runs the golden samples."""
    require_programs("cmake", "ctest")
    bundle, build = build_bundle(BUCKETS), work / "build"
    build_with_cmake(bundle / "cpp", build, f"-DEDGEPACK_RUNTIME={find_library()}")
    said = run_well(["ctest", "--test-dir", build, "--verbose"])
    require("buckets 1.0.0: cpu-fp32 is right on onnxruntime" in said, said)
    require((build / "edgepack_run").exists(), "there is no edgepack_run")
    run_well(["cmake", "-S", bundle / "cpp", "-B", build, "-DBUILD_SHARED_LIBS=ON"])
    run_well(["cmake", "--build", build, "--target", "edgepack_c"])
    require_exported(build / "libedgepack_c.so")
    wrong = shutil.copytree(bundle, work / "wrong")
    for output in wrong.glob("golden/0/cpu-fp32/*"):
        output.write_bytes(bytes(output.stat().st_size))
    test = build / "edgepack_self_test"
    done = run([test, "--runtime", find_library(), wrong])
    require(done.exit_code == 1, f"wrong golden samples pass: {done.text}")
    require("dB near the golden one" in done.last_lines, done.last_lines)
    require(run([test]).exit_code == 2, "no bundle is no wrong argument")
    return "sample, self-test, C library; wrong golden samples are not right"


def find(work: Path) -> str:
    """find_package finds bundles by prefix and by folder, moved ones too, two in one project."""
    require_programs("cmake")
    odd = shutil.copytree(build_bundle(ODD), work / "moved here")
    used = ((BUCKETS, "1.0", "BUCKETS"), (ODD, "1", "8BIT_NET_V2_X"))
    lists = _LISTS
    for number, (signature, version, macro) in enumerate(used):
        lists += _USE.format(name=signature.name, version=version, number=number)
        (work / f"{number}.cc").write_text(_PROGRAM.format(macro=f"EDGEPACK_BUNDLE_{macro}"))
    (work / "CMakeLists.txt").write_text(lists)
    folder = f"-D{ODD.name}_DIR={odd / 'share/cmake' / ODD.name}"
    prefix = f"-DCMAKE_PREFIX_PATH={build_bundle(BUCKETS)}"
    build_with_cmake(work, work / "build", prefix, folder)
    for number in range(len(used)):
        said = run_well([work / "build" / f"program{number}", find_library()])
        require(said == "cpu-fp32\n", said)
    return "two bundles in one project, one of them moved"


def ask_cmake(work: Path, signature: Signature, version: str, *words: str) -> str:
    """Return the macro of a bundle that CMake looks for; empty where it takes none."""
    work.mkdir(parents=True)
    (work / "CMakeLists.txt").write_text(_ASK.format(name=signature.name, version=version))
    done = run(["cmake", "-S", work, "-B", work / "build", *words])
    if done.exit_code == 0:
        [line] = [line for line in done.text.splitlines() if line.startswith("-- found ")]
        require("-ffp-contract=off" in line, line)
        return line.split()[3]
    require("version" in done.stderr.decode(), done.last_lines)
    return ""


def compare_versions(work: Path) -> str:
    """Versions of the same first number that are not newer than the bundle's are taken."""
    require_programs("cmake")
    prefix = f"-DCMAKE_PREFIX_PATH={build_bundle(BUCKETS)}"
    cases = {
        "": True, "1": True, "1.0.0 EXACT": True, "1.0...1.5": True, "0.9...<1.1": True,
        "1.0.1": False, "1.1": False, "2.0": False, "0.9": False, "1.0.1 EXACT": False,
        "0.1...<1.0": False, "1.1...2": False,
    }  # fmt: skip
    for number, (version, is_taken) in enumerate(cases.items()):
        said = ask_cmake(work / str(number), BUCKETS, version, prefix)
        require(bool(said) == is_taken, f"{version}: {said or 'not taken'}")
    return f"{len(cases)} versions"


def find_by_pkg_config(work: Path) -> str:
    """pkg-config says what a compiler needs, and where the bundle is."""
    require_programs("pkg-config")
    bundle = shutil.copytree(build_bundle(ODD), work / "moved")
    place = {"PKG_CONFIG_PATH": str(bundle / "share" / "pkgconfig")}
    asked = ["pkg-config", "--cflags", "--libs", f"{ODD.name} = 1.0.0"]
    flags = run_well(asked, **place).split()
    where = run_well(["pkg-config", "--variable=bundle", ODD.name], **place).strip()
    require("-ffp-contract=off" in flags, f"pkg-config says {flags}")
    require(Path(where).resolve() == bundle.resolve(), f"the bundle is said to be {where}")
    require(run(["pkg-config", f"{ODD.name} >= 1.1"], **place).exit_code != 0, "1.0 is 1.1")
    source = work / "program.cc"
    source.write_text(_PROGRAM.format(macro="BUNDLE"))
    argv = [find_compilers()[0], "-std=c++17", source, "-o", work / "program", *flags]
    run_well([*argv, f'-DBUNDLE="{where}"'])
    said = run_well([work / "program", find_library()])
    require(said == "cpu-fp32\n", said)
    return " ".join(flag for flag in flags if not flag.startswith("-I"))


PROOFS = (
    Proof("CMake builds what a bundle has", build_own),
    Proof("find_package finds bundles", find),
    Proof("find_package compares versions", compare_versions),
    Proof("pkg-config finds a bundle", find_by_pkg_config),
)
