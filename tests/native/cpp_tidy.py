"""clang-tidy has nothing to say about the C++ of bundles; ``.clang-tidy`` has what it looks for.

Needs clang-tidy 19 (Debian: clang-tidy-19).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from edgepack.base.processes import ProgramResult, run_program
from edgepack.base.resources import find_ondevice_dir
from edgepack.errors import ToolError

from tests.mobile.proofs import ROOT, Proof, require

CODE = find_ondevice_dir() / "cpp"
SOURCES = ("src/edgepack_c.cc", "samples/edgepack_run.cc")
"""Together they include every header."""
TIMEOUT_S = 1200.0
PLANTED = """#include <edgepack/detail/text.hpp>
#include <utility>
std::size_t count(std::string text) {
  const std::string taken = std::move(text);
  return taken.size() + text.size();
}
"""


def find_tidy() -> str:
    """Return clang-tidy.

    Raises:
        ToolError: There is none.
    """
    for name in ("clang-tidy-19", "clang-tidy"):
        if shutil.which(name):
            return name
    raise ToolError("there is no clang-tidy on PATH", hint="install clang-tidy-19")


def tidy(*sources: Path) -> ProgramResult:
    """Look at files and the headers of edgepack that they include."""
    argv = [find_tidy(), "--quiet", f"--config-file={ROOT / '.clang-tidy'}", *map(str, sources)]
    flags = ["-std=c++17", "-I", str(CODE / "include")]
    return run_program([*argv, "--", *flags], timeout_s=TIMEOUT_S)


def find_nothing(_work: Path) -> str:
    """It finds nothing."""
    done = tidy(*(CODE / name for name in SOURCES))
    require(done.exit_code == 0, f"{done.text[:4000]}{done.last_lines}")
    return f"{len(SOURCES)} files and their headers"


def find_planted(work: Path) -> str:
    """It finds a text that is used after it was moved."""
    (work / "planted.cc").write_text(PLANTED)
    done = tidy(work / "planted.cc")
    require(done.exit_code != 0 and "bugprone-use-after-move" in done.text, done.text[:2000])
    return "a use after a move"


PROOFS = (
    Proof("clang-tidy finds nothing", find_nothing),
    Proof("clang-tidy finds what is planted", find_planted),
)
