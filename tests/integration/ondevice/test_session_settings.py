"""Session settings of a manifest reach onnxruntime, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from edgepack.base.resources import find_ondevice_dir
from edgepack.builder.build import build
from edgepack.ondevice.runtime import edgepack_providers as providers
from onnx import TensorProto, helper, numpy_helper

from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import import_loader

ARCH = os.uname().machine
SIZE = 1 << 22
"""Floats of an input: enough for a run's memory to stand out, and for two threads to share it."""
# What a process prints: the options of its session, its threads, and what a run did.
_PROGRAM = """
import json, os, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
import edgepack_providers as providers

def read(key):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(key)))

sessions = []
for session in json.loads(sys.argv[3]):
    entry = {"providers": [{"name": "CPUExecutionProvider", "options": {}}], "placement": "all",
             "requires": {"cpu": []}, "model_sha256": "0" * 64,
             "session": {"intra_op_num_threads": 1, "config": {}, **session}}
    threads = len(os.listdir("/proc/self/task"))
    sessions.append(providers.open_session(Path(sys.argv[2]), entry, Path(sys.argv[2]).parent))
    threads = len(os.listdir("/proc/self/task")) - threads
opened = sessions[-1].get_session_options()
values = np.full(int(sys.argv[4]), 1e-36, np.float32)
before = read("VmRSS")
(out,) = sessions[-1].run(None, {"x": values})
del values
print(json.dumps({
    "mode": opened.execution_mode.name, "inter": opened.inter_op_num_threads,
    "arena": opened.enable_cpu_mem_arena, "pattern": opened.enable_mem_pattern,
    "log": opened.log_severity_level, "threads": threads, "zeros": float((out == 0).mean()),
    "kept_kb": read("VmRSS") - before,
}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a net that multiplies by 0.001: its products of 1e-36 are below the normal floats."""
    small = numpy_helper.from_array(np.array([1e-3], np.float32), "small")
    nodes = [
        helper.make_node("Mul", ["x", "small"], ["product"]),
        helper.make_node("Abs", ["product"], ["size"]),
        helper.make_node("Sin", ["size"], ["wave"]),
        helper.make_node("ReduceMax", ["wave"], ["y"], keepdims=1),
    ]
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [SIZE]), ("y", [1]))
    ]
    graph = helper.make_graph(nodes, "net", tensors[:1], tensors[1:], [small])
    path = tmp_path_factory.mktemp("settings") / "net.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path
    )
    return path


def open_in_process(model: Path, *sessions: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Open sessions in a process and run the last; return what it printed, and its stderr."""
    folder = find_ondevice_dir() / "runtime"
    argv = [sys.executable, "-c", _PROGRAM, str(folder), str(model), json.dumps(sessions)]
    argv.append(str(SIZE))
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found, done.stderr


def test_session_when_a_manifest_sets_nothing_has_the_defaults(model: Path):
    found, said = open_in_process(model, {})
    assert (found["mode"], found["inter"], found["threads"]) == ("ORT_SEQUENTIAL", 0, 0)
    assert (found["arena"], found["pattern"], found["log"]) == (True, True, 3)
    assert said == ""


def test_session_when_a_manifest_sets_all_has_them(model: Path):
    given = {
        "execution_mode": "parallel",
        "inter_op_num_threads": 3,
        "enable_cpu_mem_arena": False,
        "enable_mem_pattern": False,
        "log_severity_level": 0,
    }
    found, said = open_in_process(model, given)
    assert (found["mode"], found["inter"]) == ("ORT_PARALLEL", 3)
    assert (found["arena"], found["pattern"], found["log"]) == (False, False, 0)
    # The thread that calls is one of the three.
    assert found["threads"] == 2
    assert "Creating and using per session threadpools" in said


def test_inter_op_threads_are_none_in_the_sequential_mode_and_one_makes_it_sequential(model: Path):
    """The facts that profiles are refused for."""
    found, _ = open_in_process(model, {"inter_op_num_threads": 3})
    assert (found["inter"], found["threads"]) == (3, 0)
    found, _ = open_in_process(model, {"execution_mode": "parallel", "inter_op_num_threads": 1})
    assert (found["mode"], found["threads"]) == ("ORT_SEQUENTIAL", 0)


def test_memory_of_a_run_when_there_is_no_arena_is_given_back(model: Path):
    kept, _ = open_in_process(model, {})
    given_back, _ = open_in_process(model, {"enable_cpu_mem_arena": False})
    tensor_kb = SIZE * 4 / 1024
    assert kept["kept_kb"] > tensor_kb / 2
    assert given_back["kept_kb"] < tensor_kb / 2


@pytest.mark.skipif(ARCH != "x86_64", reason="onnxruntime sets denormals on x86 alone")
def test_denormals_are_zero_where_the_first_session_of_a_process_says_so(model: Path):
    as_zero = {"config": {"session.set_denormal_as_zero": "1"}}
    assert open_in_process(model, {})[0]["zeros"] == 0
    assert open_in_process(model, as_zero)[0]["zeros"] == 1
    # What the documentation says of processes with several sessions.
    assert open_in_process(model, {}, as_zero)[0]["zeros"] == 0
    assert open_in_process(model, as_zero, {})[0]["zeros"] == 1


@pytest.mark.parametrize(
    ("session", "said"),
    [
        ({"execution_mode": "paralel"}, "execution_mode is 'paralel': it takes one of sequential"),
        ({"graph_optimization_level": "o3"}, "graph_optimization_level is 'o3': it takes one of"),
    ],
)
def test_setting_when_its_word_is_unknown_is_refused_by_the_loader(
    model: Path, session: dict[str, Any], said: str
):
    entry = {
        "providers": [{"name": "CPUExecutionProvider", "options": {}}],
        "placement": "all",
        "session": {"intra_op_num_threads": 1, "config": {}, **session},
    }
    with pytest.raises(providers.Refused, match=said):
        providers.open_session(model, entry, model.parent)


def test_settings_of_a_project_are_those_of_its_bundles_session(tmp_path: Path):
    session = "{enable_mem_pattern: false, enable_cpu_mem_arena: false, log_severity_level: 4}"
    variant = f"{{backend: cpu, recipe: fp32, session: {session}}}"
    project = tiny_models.write_project(
        tmp_path, f"targets: [{{id: host, variants: [{variant}]}}]", samples=False
    )
    built = build(project=project, out=tmp_path / "dist").bundles[0].bundle
    [entry] = json.loads((built.path / "manifest.json").read_text())["variants"]
    assert entry["session"] == {
        "intra_op_num_threads": 0,
        "enable_cpu_mem_arena": False,
        "enable_mem_pattern": False,
        "log_severity_level": 4,
        "config": {},
    }
    opened = providers.open_session(built.path / entry["model"], entry, tmp_path)
    options = opened.get_session_options()
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.log_severity_level == 4
    assert import_loader().load(built.path).variant == "cpu-fp32"
