"""The C++ library under compilers: no warnings, and places as onnxruntime has them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.base.resources import find_ondevice_dir
from edgepack.errors import ToolError

from tests.mobile.proofs import NotHeldError, Proof, require
from tests.mobile.swift_rootfs import toolchain
from tests.native.programs import HERE, WARNINGS, compile_program, find_compilers

INCLUDE = find_ondevice_dir() / "cpp" / "include"
_SLOT = re.compile(r"EDGEPACK_SLOT\((\w+), (\d+), (\d+),")
_ASSERTS = """
#include <cstddef>
#include <tuple>
#include <onnxruntime_c_api.h>
#include <edgepack/detail/ort.hpp>

template <class Function> struct Arity;
template <class R, class... A>
struct Arity<R(A...)> {{ static constexpr int value = sizeof...(A); }};
template <class R, class... A>
struct Arity<R (*)(A...)> : Arity<R(A...)> {{}};
template <class R, class... A>
struct Arity<R (*)(A...) noexcept> : Arity<R(A...)> {{}};
template <class Function>
constexpr int arity_of(edgepack::detail::api::Slot<Function>) {{ return Arity<Function>::value; }}

#define CHECK(name, place) \\
  static_assert(offsetof(OrtApi, name) == place * sizeof(void*), #name " is elsewhere"); \\
  static_assert(arity_of(edgepack::detail::api::name) == Arity<decltype(OrtApi::name)>::value, \\
                #name " takes other arguments")
{checks}
"""


def compile_all(_work: Path) -> str:
    """No compiler of this machine says anything about the headers, with all that it could say."""
    for compiler in find_compilers():
        compile_program("describe.cc", compiler=compiler)
        compile_program("calls.c", compiler=compiler)
    return ", ".join(find_compilers())


def compile_each(work: Path) -> str:
    """Each header compiles alone, and in two files of one program."""
    headers = sorted(path.relative_to(INCLUDE) for path in INCLUDE.rglob("*.hpp"))
    for number, header in enumerate(headers):
        source = work / f"{number}.cc"
        source.write_text(f"#include <{header}>\n#include <{header}>\n")
        compile_file(source, "-fsyntax-only")
    text = "#include <edgepack/edgepack.hpp>\n"
    (work / "one.cc").write_text(text + "int main() { return 0; }\n")
    (work / "two.cc").write_text(text)
    compile_file(
        work / "one.cc", str(work / "two.cc"), "-ldl", "-pthread", "-o", str(work / "both")
    )
    return f"{len(headers)} headers"


def compile_file(source: Path, *more: str) -> None:
    """Compile a file with this machine's first compiler, warnings being errors."""
    argv = [find_compilers()[0], "-std=c++17", *WARNINGS, "-I", str(INCLUDE), str(source), *more]
    done = run_program(argv, timeout_s=600)
    require(done.exit_code == 0, done.stderr.decode("utf-8", "replace")[:3000])


def check_places(work: Path) -> str:
    """Each function lies where onnxruntime's own header has it, and takes as many arguments.

    Those that are newer than the header are looked at by what they return: ``cpp_models``.
    """
    include = toolchain().root / "usr" / "include"
    header = next(include.rglob("onnxruntime_c_api.h"), None)
    if header is None:
        raise ToolError(f"{include} has no onnxruntime_c_api.h", hint="remove that folder")
    found = re.search(r"#define ORT_API_VERSION (\d+)", header.read_text(encoding="utf-8"))
    version = int(found[1]) if found else 0
    ours = (INCLUDE / "edgepack" / "detail" / "ort.hpp").read_text(encoding="utf-8")
    slots = [(name, int(place), int(since)) for name, place, since in _SLOT.findall(ours)]
    known = [(name, place) for name, place, since in slots if since <= version]
    require(len(known) > 50, f"only {len(known)} functions are known to that header")
    compile_places(work, header.parent, known)
    wrong = [(known[0][0], known[0][1] + 1), *known[1:]]
    try:
        compile_places(work, header.parent, wrong)
    except NotHeldError as error:
        require("is elsewhere" in str(error), f"a wrong place gives another error: {error}")
    else:
        raise NotHeldError("a wrong place is not noticed")
    return f"{len(known)} of {len(slots)}, against API {version}"


def compile_places(work: Path, include: Path, places: list[tuple[str, int]]) -> None:
    """Compile what asserts places of functions."""
    checks = "\n".join(f"CHECK({name}, {place});" for name, place in places)
    (work / "places.cc").write_text(_ASSERTS.format(checks=checks))
    compile_file(
        work / "places.cc", "-isystem", str(include), "-fsyntax-only", "-Wno-ignored-attributes"
    )


def check_clang(work: Path) -> str:
    """Debian's clang says nothing either."""
    shutil.copytree(INCLUDE, work / "include")
    shutil.copy(HERE / "cpp" / "describe.cc", work)
    argv = ["clang++", "-std=c++17", *WARNINGS, "-I", "include", "-fsyntax-only", "describe.cc"]
    toolchain().run(argv, folder=work)
    return toolchain().run(["clang++", "--version"], folder=work).text.splitlines()[0]


PROOFS = (
    Proof("compilers", compile_all),
    Proof("each header", compile_each),
    Proof("clang", check_clang),
    Proof("places of onnxruntime's functions", check_places),
)
