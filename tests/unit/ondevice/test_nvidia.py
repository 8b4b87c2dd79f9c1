"""Libraries of NVIDIA's wheels are loaded from where they lie; the real linker says which."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from edgepack.base.resources import find_ondevice_dir

RUNTIME = find_ondevice_dir() / "runtime"
# Loads a library by its name alone, as onnxruntime's providers do.
PROGRAM = """
import ctypes, sys, types
sys.path[:0] = sys.argv[1:3]
import edgepack_nvidia
ort = types.SimpleNamespace(preload_dlls=lambda: print("Failed to load libcudnn"))
edgepack_nvidia.preload(ort)
parser, resource = "libnvonnxparser.so.10", "libnvinfer_builder_resource_sm80.so.10.1"
print([ctypes.CDLL(parser).parse(), ctypes.CDLL(resource).build()])
"""


def compile_library(path: Path, soname: str, code: str, *needed: Path) -> Path:
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{soname}", "-o", str(path)]
    argv += ["-x", "none", *map(str, needed)]
    subprocess.run(argv, input=code.encode(), check=True)
    return path


def load(site: Path) -> str:
    argv = [sys.executable, "-c", PROGRAM, str(site), str(RUNTIME)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout or done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc here")
def test_libraries_that_need_each_other_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "nvidia").mkdir()
    folder = tmp_path / "tensorrt_libs"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('it is not imported')")
    assert "libnvonnxparser.so.10: cannot open shared object file" in load(tmp_path)
    infer = compile_library(
        folder / "libnvinfer.so.10", "libnvinfer.so.10", "int infer(void) { return 4; }"
    )
    compile_library(
        folder / "libnvonnxparser.so.10",
        "libnvonnxparser.so.10",
        "int infer(void); int parse(void) { return infer() + 1; }",
        infer,
    )
    name = "libnvinfer_builder_resource_sm80.so.10.1"
    compile_library(folder / name, name, "int build(void) { return 6; }")
    assert load(tmp_path) == "[5, 6]\n"
    (folder / "libnvinfer_plugin.so.10").write_bytes(b"no library")
    assert load(tmp_path) == "[5, 6]\n"
