"""Limits of a simulator's process, against plugins that crash, print or never end."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from edgepack.base.processes import WorkerPool, use_pool
from edgepack.errors import StepError
from edgepack.model.simulating import Simulator, find_simulator, open_simulated

from tests.support.nets import tiny_models

BEGIN = "def get_ep_name(): return 'Broken'\n"


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Return a function that opens a model with a plugin of some code, whose process it gets."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(code: str, limit_s: float = 60) -> None:
        (tmp_path / "broken_plugin.py").write_text(BEGIN + code, encoding="utf-8")
        simulator = Simulator("broken-plugin", "1.0", "broken_plugin")
        model = tiny_models.relu(tmp_path / "m.onnx")
        with open_simulated(simulator, model, {}, {}, limit_s=limit_s):
            raise AssertionError("it has to be refused")

    with use_pool(WorkerPool()):  # processes that see the plugin
        yield run


def test_simulator_when_its_library_is_no_library_is_named(opened, tmp_path):
    with pytest.raises(StepError, match=r"^broken-plugin 1.0: .*no-such.so"):
        opened(f"def get_library_path(): return {str(tmp_path / 'no-such.so')!r}")


def test_simulator_when_it_crashes_tells_its_last_words(opened):
    code = "import os, sys\ndef get_library_path():\n print('torn', flush=True)\n os.abort()"
    with pytest.raises(StepError, match=r"(?s)^broken-plugin 1.0: .*signal 6.*torn") as caught:
        opened(code)
    assert "is shipped without this proof" in caught.value.hint


def test_simulator_when_it_never_ends_is_killed_at_its_limit(opened, tmp_path):
    code = (
        "import os, pathlib, time\ndef get_library_path():\n"
        f" pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        " time.sleep(600)"
    )
    with pytest.raises(StepError, match=r"^broken-plugin 1.0: took longer than 4 s"):
        opened(code, limit_s=4)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_simulator_when_it_wants_more_memory_than_there_is_is_refused(opened):
    with pytest.raises(StepError, match=r"^broken-plugin 1.0: "):
        opened("def get_library_path(): return str(bytearray(1 << 45))")


def test_simulator_has_a_limit_of_memory_that_this_machine_has(opened):
    code = (
        "import resource\n"
        "def get_library_path():\n"
        "    raise OSError('limit %d' % resource.getrlimit(resource.RLIMIT_DATA)[0])"
    )
    with pytest.raises(StepError, match=r"limit \d+") as caught:
        opened(code)
    [limit] = re.findall(r"limit (\d+)", caught.value.problem)
    assert 0 < int(limit) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_simulator_when_the_user_has_a_limit_of_memory_keeps_to_it():
    code = (
        "import resource; from edgepack.model import simulating;"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30)); simulating._limit_memory();"
        "print(resource.getrlimit(resource.RLIMIT_DATA))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"({2**30}, {2**30})"


def test_simulator_when_it_is_not_installed_is_none():
    assert find_simulator("no-such-plugin", "no_such_plugin") is None
