"""``make native-test``: what bundles for Linux carry for C++ and C is compiled and run.

::

    python -m tests.native.run [cpp] [c] [tools] [packages] [aarch64] [PROGRAM ...]

As :mod:`tests.mobile.run`, with the modules beside this file. Needs g++ or clang++, and the
onnxruntime wheel that edgepack itself uses, whose library is opened.

Exit codes: 0 all held, 1 something did not, 2 an argument is none of these.
"""

from __future__ import annotations

import sys

from tests.mobile.run import run_proofs

PLATFORMS = {
    "cpp": (
        "cpp_compilers",
        "cpp_models",
        "cpp_faults",
        "cpp_vectors",
        "cpp_run",
        "cpp_counters",
    ),
    "c": ("c_calls", "c_predict", "c_measure", "c_memory", "c_bindings"),
    "tools": ("cpp_sanitized", "cpp_tidy", "cpp_fuzz"),
    "packages": ("packages_cmake", "packages_debian"),
    "aarch64": ("cpp_aarch64",),
}
"""The modules with each platform's proofs, in the order in which they run."""


def main() -> int:
    return run_proofs("native", PLATFORMS, "Prove what bundles carry for C++ and C.")


if __name__ == "__main__":
    sys.exit(main())
