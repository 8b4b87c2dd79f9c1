"""A Python with PyTorch: Debian sid's, in a root file system that is made once and kept.

Its torch has no CUDA and takes a twelfth of what PyPI's does. Its Python runs on this machine's
kernel and in this machine's file system, with the loader and the libraries of that root.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.errors import ToolError

from tests.support.servers.debian_roots import debian_root, locked

VARIABLE = "EDGEPACK_TORCH_PYTHON"
"""Names a Python with torch, onnx and onnxscript that is there already."""
_KEPT = Path(__file__).resolve().parents[2] / ".torch"
_PACKAGES = ("python3-torch", "python3-torchvision")
_VERSION = "3.14"
_EXPORTER = (
    "onnx==1.23.2", "onnxscript==0.7.2", "onnx-ir==1.1.0", "ml-dtypes==0.6.0", "protobuf==7.36.2",
)  # fmt: skip
_INSTALL_S = 900.0
# Debian's links to BLAS and LAPACK lead through /etc/alternatives, which is this machine's here.
_RUN = """#!/bin/sh
root='{root}'
lib=$root/usr/lib/{machine}-linux-gnu
export PYTHONHOME="$root/usr" PYTHONPATH='{packages}'
exec "$lib/{loader}" --library-path "$lib/blas:$lib/lapack:$lib:$root/usr/lib" --argv0 "$0" \\
  "$root/usr/bin/python{version}" "$@"
"""
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def make_torch_python() -> Path:
    """Return a Python with torch, torchvision, onnx and onnxscript; it is made if it is not there.

    Raises:
        ToolError: It cannot be made: this is not root, or something is not within reach.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named)
    machine = os.uname().machine
    root = debian_root(_KEPT, "sid", _PACKAGES)
    packages, python = _KEPT / "packages", _KEPT / "python"
    with locked(_KEPT):
        if not python.is_file():
            _install(packages)
            text = _RUN.format(
                root=root,
                machine=machine,
                loader=_LOADERS[machine],
                packages=packages,
                version=_VERSION,
            )
            new = python.with_suffix(".new")
            new.write_text(text, encoding="utf-8")
            new.chmod(0o755)
            new.rename(python)
    return python


def _install(packages: Path) -> None:
    """Install what PyTorch's exporter needs, for the Python of the root, by this Python's pip."""
    shutil.rmtree(packages, ignore_errors=True)
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    argv += ["--no-deps", "--only-binary=:all:", "--implementation=cp"]
    argv += [f"--python-version={_VERSION}", f"--target={packages}", *_EXPORTER]
    done = run_program(argv, timeout_s=_INSTALL_S)
    if done.exit_code:
        raise ToolError(
            f"pip cannot install {', '.join(_EXPORTER)}{done.last_lines}",
            hint="see that this machine reaches a package index",
        )
