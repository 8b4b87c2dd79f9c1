"""A convolution with each provider, in this machine's real onnxruntime."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from edgepack.devices.inventory import load_device
from edgepack.devices.provisioning.proving import find_broken_providers
from edgepack.devices.transports import connect
from edgepack.errors import RemoteCommandError
from edgepack.project.profile import load_profile

from tests.support.servers.dropbear_server import DropbearServer, require_dropbear
from tests.support.servers.loopback import ssh_device

HAS = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")

# The real onnxruntime, with GPUs that misbehave as such have been reported to: no kernel for this
# GPU, all nodes left to the CPU, wrong numbers.
MISBEHAVING = """
import json, sys
sys.path.remove("FOLDER")
del sys.modules["onnxruntime"]
import onnxruntime
real = onnxruntime.InferenceSession

class InferenceSession:
    def __init__(self, model, options, providers):
        [(self.name, settings)] = providers
        self.fault = {faults!r}.get(self.name, "")
        assert "{{cache}}" not in str(settings)
        self.session = real(model, options, providers=["CPUExecutionProvider"])
    def get_providers(self):
        return [self.name, "CPUExecutionProvider"]
    def disable_fallback(self):
        pass
    def run(self, names, inputs):
        if self.fault == "crash":
            import os, signal
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "kernel":
            raise RuntimeError("CUDA error 209: no kernel image is available for execution")
        factor = 1.5 if self.fault == "numbers" else 1.0
        return [factor * y for y in self.session.run(names, inputs)]
    def end_profiling(self):
        path = self.session.end_profiling()
        text = open(path).read()
        if self.fault != "nodes":
            text = text.replace("CPUExecutionProvider", self.name)
        open(path, "w").write(text)
        return path

onnxruntime.InferenceSession = InferenceSession
"""


def find(has: tuple[str, ...] = HAS, python: str = sys.executable) -> dict[str, str]:
    with connect(load_device("local")) as transport:
        return find_broken_providers(python, load_profile("jetson"), has, "local", transport)


def write_python(tmp_path: Path, source: str) -> str:
    """Return the Python of an environment that has another module for onnxruntime."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "onnxruntime.py").write_text(source.replace("FOLDER", str(packages)))
    (packages / "real.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return str(environment / "bin" / "python")


def test_providers_whose_library_cannot_be_loaded_are_broken() -> None:
    found = find()
    assert list(found) == list(HAS[:2])
    for name, why in found.items():
        library = f"libonnxruntime_providers_{name.removesuffix('ExecutionProvider').lower()}.so"
        assert re.search(rf"its library cannot be loaded: .*{library}: cannot open", why)


def test_provider_that_is_not_listed_or_the_cpu_alone_is_not_tried() -> None:
    assert find(("CPUExecutionProvider",), python="/no/such/python") == {}
    assert list(find(("CUDAExecutionProvider", "OtherExecutionProvider"))) == [HAS[1]]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("", ""),
        ("kernel", "CUDA error 209: no kernel image is available for execution"),
        ("nodes", "it took no node of a convolution"),
        ("numbers", "a convolution is off by 50 %"),
        ("crash", "it crashes: signal 11"),
    ],
)
def test_provider_that_computes_nothing_right_is_broken_and_no_other(
    tmp_path: Path, fault: str, why: str
) -> None:
    faults = {"TensorrtExecutionProvider": fault}
    source = MISBEHAVING.format(faults=faults)
    broken = find(python=write_python(tmp_path, source))
    assert broken == ({"TensorrtExecutionProvider": why} if why else {})


def test_runtime_that_computes_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    python = write_python(tmp_path, "import os; os.abort()")
    with pytest.raises(RemoteCommandError, match="computing with the installed runtime failed"):
        find(python=python)


@pytest.mark.slow(reason="starts a server of its own")
def test_it_fits_what_dropbear_takes(tmp_path: Path) -> None:
    require_dropbear()
    with DropbearServer(tmp_path / "server", bare=False) as server:
        device = ssh_device(server, root=str(tmp_path / "root"))
        with connect(device) as transport:
            profile = load_profile("jetson")
            found = find_broken_providers(sys.executable, profile, HAS, "board", transport)
    assert list(found) == list(HAS[:2])
