"""PyTorch's programs, and functions that make its modules, with a real PyTorch."""

from __future__ import annotations

import json
import os
import shutil
import socket
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from edgepack.base.arrays import Array
from edgepack.base.processes import run_program
from edgepack.cli.main import run
from edgepack.converters import running
from edgepack.converters.conversion import FUNCTION, Conversion
from edgepack.converters.registry import CONVERTERS
from edgepack.converters.running import Inside
from edgepack.errors import ModelError, StepError, ToolError
from edgepack.model.running import make_session, run_session
from edgepack.steps.base import run_step
from edgepack.steps.converted import Converted
from edgepack.steps.proofs.framework import FrameworkProof, compare_output
from onnx import numpy_helper

from tests.support import torch_python as torch_pythons

pytestmark = pytest.mark.slow(reason="starts PyTorch many times, seconds each")
SHARE = 1e-4
"""How far a value may be from PyTorch's here, in parts of the largest one."""
NETS = Path(torch_pythons.__file__).parent / "nets" / "torch_nets.py"


@pytest.fixture(scope="session")
def torch_python() -> str:
    """A Python with PyTorch and its exporter."""
    try:
        return str(torch_pythons.make_torch_python())
    except ToolError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must not skip these tests: {error}")
        pytest.skip(error.first_line)


@pytest.fixture(scope="session")
def saved(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``.pt2`` of each model, a checkpoint and TorchScript."""
    folder = tmp_path_factory.mktemp("saved")
    done = run_program([torch_python, str(NETS), str(folder)], timeout_s=300)
    assert done.exit_code == 0, done.last_lines
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of a project with the module ``nets``."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copyfile(NETS, folder / "nets.py")
    return folder


def from_file(python: str) -> Conversion:
    return Conversion("torch", (), python)


def from_function(python: str, name: str) -> Conversion:
    return Conversion("torch", (), python, confined=False, options=((FUNCTION, f"nets:{name}"),))


def _count(*shape: int) -> Array:
    """Return float32 numbers that differ, from -1 to 1."""
    return np.sin(np.arange(np.prod(shape))).astype(np.float32).reshape(shape)


def _texts(batch: int, length: int, shown: int) -> dict[str, Array]:
    mask = np.zeros((batch, length), np.int64)
    mask[:, :shown] = 1
    return {"ids": np.arange(batch * length).reshape(batch, length) % 50, "mask": mask}


@dataclass(frozen=True)
class Case:
    """A model of torch_nets, and what its ONNX has to be like."""

    inputs: Mapping[str, Sequence[int | str]]
    outputs: Mapping[str, Sequence[int | str]]
    feeds: Sequence[Mapping[str, Array]]
    operators: frozenset[str]
    """Some of those that it has: operators stay whole."""


TEXT = ["batch", "length"]
CASES = {
    "convnet": Case(
        {"image": ["batch", 3, 32, 32]},
        {"softmax": ["batch", 10]},
        [{"image": _count(n, 3, 32, 32)} for n in (1, 2, 8)],
        frozenset({"Conv", "HardSwish", "Softmax"}),
    ),
    "encoder": Case(
        {"ids": TEXT, "mask": TEXT},
        {"div": ["batch", 16]},
        [_texts(1, 2, 1), _texts(3, 9, 5), _texts(16, 64, 64)],
        frozenset({"LayerNormalization", "Softmax"}),
    ),
    "recurrent": Case(
        {"batch_left": [2, 5, 8], "batch_right": [2, 5, 12]},
        {"out": [2, 5, 12], "state.h": [1, 2, 12], "again": [2, 5, 12], "left": [2, 5, 8]},
        [{"batch_left": _count(2, 5, 8), "batch_right": 3 * _count(2, 5, 12)}],
        frozenset({"GRU", "LSTM"}),
    ),
    "mobile": Case(
        {"x": [1, 3, 64, 64]},
        {"linear_1": [1, 1000]},
        [{"x": _count(1, 3, 64, 64)}],
        frozenset({"Conv", "HardSwish", "HardSigmoid"}),
    ),
}


def _describe(values: Any) -> dict[str, list[int | str]]:
    return {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in values
    }


def _require_equal(inside: Inside, folder: Path, case: Case) -> None:
    """Run the framework and ONNX on the same inputs, and compare."""
    signature = json.loads((folder / "signature.json").read_text(encoding="utf-8"))
    expected = inside.run(signature, case.feeds)
    session = make_session(folder / "model.onnx")
    given = [run_session(session, feed) for feed in case.feeds]
    names = [f"sample {n}" for n in range(len(case.feeds))]
    assert [set(outputs) for outputs in expected] == [set(case.outputs)] * len(case.feeds)
    for output in case.outputs:
        found = compare_output(output, output, names, (expected, given))
        assert found.largest > 0
        assert found.farthest <= SHARE * found.largest


@pytest.mark.in_turns
@pytest.mark.parametrize("name", CASES)
def test_programs_compute_what_pytorch_computes(
    name: str, saved: Path, torch_python: str, tmp_path: Path
) -> None:
    case, source = CASES[name], saved / f"{name}.pt2"
    notes = run_step(Converted(from_file(torch_python)), {"source": source}, tmp_path)
    model = onnx.load(tmp_path / "model.onnx")
    symbols = {"batch", "length"}
    for found, wanted in (
        (_describe(model.graph.input), case.inputs),
        (_describe(model.graph.output), case.outputs),
    ):
        # A file keeps no names of sizes: there they are symbols of PyTorch's own.
        assert list(found) == list(wanted)
        for key, shape in wanted.items():
            assert [type(size) for size in found[key]] == [type(size) for size in shape]
            assert [s for s in found[key] if isinstance(s, int)] == [
                size for size in shape if size not in symbols
            ]
    assert case.operators <= {node.op_type for node in model.graph.node}
    assert notes.facts["confined"].startswith("Landlock")
    assert str(NETS).encode() not in (tmp_path / "model.onnx").read_bytes()
    _require_equal(from_file(torch_python).open(source), tmp_path, case)


@pytest.mark.parametrize("name", ["encoder", "recurrent"])
def test_functions_compute_what_their_modules_compute(
    name: str, project: Path, torch_python: str, tmp_path: Path
) -> None:
    case, conversion = CASES[name], from_function(torch_python, name)
    out = tmp_path / "out"
    out.mkdir()
    notes = run_step(Converted(conversion), {"source": project}, out)
    model = onnx.load(out / "model.onnx")
    assert _describe(model.graph.input) == case.inputs
    assert _describe(model.graph.output) == case.outputs
    assert notes.facts["confined"] == ""
    if name == "encoder":
        told = ["the dimension 'batch' is 1 to 16", "the dimension 'length' is 2 to 64"]
        assert notes.facts["notes"] == told
    _require_equal(conversion.open(project), out, case)


def test_a_converted_model_with_another_weight_is_found(
    saved: Path, torch_python: str, tmp_path: Path
) -> None:
    conversion = from_file(torch_python)
    inputs = {"source": saved / "convnet.pt2", "converted": tmp_path / "converted"}
    for folder in ("converted", "proof", "refuted"):
        (tmp_path / folder).mkdir()
    run_step(Converted(conversion), inputs, inputs["converted"])
    notes = run_step(FrameworkProof(conversion), inputs, tmp_path / "proof")
    [found] = notes.facts["outputs"]
    assert found["farthest"] < 1e-5 < found["largest"]
    model = onnx.load(inputs["converted"] / "model.onnx")
    weight = max(model.graph.initializer, key=lambda each: numpy_helper.to_array(each).size)
    changed = numpy_helper.to_array(weight) * np.float32(1.2)
    weight.CopyFrom(numpy_helper.from_array(changed, weight.name))
    onnx.save(model, inputs["converted"] / "model.onnx")
    with pytest.raises(StepError, match=r"computes something else than PyTorch.*'softmax'"):
        run_step(FrameworkProof(conversion), inputs, tmp_path / "refuted")


def test_a_project_with_a_function_is_built(
    project: Path, torch_python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(project / "samples.npz", input=_count(6, 2, 4))
    (project / "edgepack.yaml").write_text(
        "schema_version: 1\nname: lines\n"
        'model: {python: "nets:linear", framework: torch}\n'
        f"converters: {{torch: {{python: {torch_python}}}}}\n"
        "samples: {evaluation: {path: samples.npz}}\ntargets: [linux-x86-64]\n",
        encoding="utf-8",
    )
    argv = ["build", "--project", str(project / "edgepack.yaml")]
    models = []
    for out in (project / "one", project / "other"):
        assert run([*argv, "--out", str(out)]) == 0
        [manifest] = out.glob("*/manifest.json")
        models.append(json.loads(manifest.read_text(encoding="utf-8"))["model"])
    said = capsys.readouterr()
    assert said.err.count("nets:linear: making a linear layer") == 2
    assert said.out.count("converted from torch by") == 2
    assert models[0] == models[1]
    assert models[0]["name"] == "nets:linear"
    origin = models[0]["converted_from"]
    assert (origin["format"], origin["confined"]) == ("torch", "")
    assert (origin["samples"], origin["samples_from"]) == (6, "samples")
    assert origin["packages"]["torch"].startswith("2.")


def test_a_program_is_built_with_a_python_that_is_named(
    saved: Path, torch_python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["build", str(saved / "linear.pt2"), "--target", "linux-x86-64"]
    assert run([*argv, "--python", torch_python, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "converted from torch by" in said.out
    [manifest] = tmp_path.glob("*/manifest.json")
    model = json.loads(manifest.read_text(encoding="utf-8"))["model"]
    assert model["name"] == "linear.pt2"
    assert model["converted_from"]["confined"].startswith("Landlock")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("training", r"training mode.*\(the module itself, 0, 1\)"),
        ("number", "returns an object of type int"),
        ("raises", r"(?s)'nets:raises' ended with exit code 1.*no weights in weights\.pth"),
        ("leaves", "'nets:leaves' ended with exit code 0"),
        ("fills", r"(?s)'nets:fills' ended with exit code 1.*can't allocate memory"),
        ("nowhere", r"the module 'nets' has no function 'nowhere'"),
        ("custom", r"no counterpart of mylib::twist \(nets\.py:\d+ in forward\), 2 times"),
    ],
)
def test_a_function_that_makes_no_model_is_one_error(
    name: str, problem: str, project: Path, torch_python: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=problem) as found:
        run_step(Converted(from_function(torch_python, name)), {"source": project}, tmp_path)
    assert found.value.hint


@pytest.mark.in_turns
def test_a_function_that_hangs_is_stopped(project: Path, torch_python: str, tmp_path: Path) -> None:
    options = {"opset": 18, FUNCTION: "nets:hangs"}
    inside = Inside(CONVERTERS["torch"], torch_python, project, options, confined=False, most_s=40)
    with pytest.raises(ModelError, match="'nets:hangs' took longer than 40 s and was stopped"):
        inside.convert(tmp_path)


def _change(source: Path, target: Path, changes: Mapping[str, bytes]) -> Path:
    """Copy an archive with other contents for some names, which may be new."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        changed = {f"{root}/{name}": data for name, data in changes.items()}
        for name in old.namelist():
            if name not in changed:
                new.writestr(name, old.read(name))
        for name, data in changed.items():
            new.writestr(name, data)
    return target


def _read(source: Path, name: str) -> dict[str, Any]:
    with zipfile.ZipFile(source) as archive:
        [path] = [each for each in archive.namelist() if each.endswith(name)]
        found: dict[str, Any] = json.loads(archive.read(path))
        return found


def _make_other_version(source: Path, target: Path) -> None:
    about = _read(source, "models/model.json")
    about["schema_version"]["major"], about["torch_version"] = 99, "7.0.1"
    _change(source, target, {"models/model.json": json.dumps(about).encode()})


def _make_broken_graph(source: Path, target: Path) -> None:
    about = _read(source, "models/model.json")
    del about["graph_module"]["signature"]
    _change(source, target, {"models/model.json": json.dumps(about).encode()})


def _make_short_weight(source: Path, target: Path) -> None:
    _change(source, target, {"data/weights/weight_0": b"12"})


@pytest.mark.parametrize(
    ("name", "make", "problem"),
    [
        ("custom", shutil.copyfile, r"mylib::twist \(torch_nets\.py:\d+ in forward\)"),
        ("stateful", shutil.copyfile, "it changes 'total' while it runs"),
        ("linear", _make_other_version, r"saved by 7\.0\.1 in version 99 .* PyTorch 2\.\S+ here"),
        ("linear", _make_broken_graph, r"PyTorch 2\.\S+ here does not load it"),
        ("linear", _make_short_weight, r"PyTorch 2\.\S+ here does not load it"),
    ],
)
def test_a_program_that_cannot_be_taken_is_one_error(
    name: str, make: Any, problem: str, saved: Path, torch_python: str, tmp_path: Path
) -> None:
    make(saved / f"{name}.pt2", tmp_path / "net.pt2")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ModelError, match=problem) as found:
        run_step(Converted(from_file(torch_python)), {"source": tmp_path / "net.pt2"}, out)
    assert found.value.where == "net.pt2"


def test_files_of_pytorchs_that_are_no_programs_are_told_apart(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, problem in (("weights.pt", "a checkpoint"), ("script.pt", "TorchScript")):
        assert run(["build", str(saved / name), "--target", "linux-x86-64"]) == ModelError.exit_code
        said = capsys.readouterr().err
        assert problem in said
        assert "torch.export.save(torch.export.export(" in said


# What unpickling runs: it tries to leave its process, and says in an error how far it came.
HIDDEN = """
import os, socket
def attempt(do):
    try:
        do()
        return "done"
    except OSError as error:
        return type(error).__name__
def steal():
    with open({secret!r}) as file, open({target!r}, "w") as out:
        out.write(file.read())
raise RuntimeError("hidden code ran: " + " ".join([
    "read", attempt(lambda: open({secret!r}).close()),
    "write", attempt(steal),
    "connect", attempt(lambda: socket.create_connection(("127.0.0.1", {port}), 5).close()),
    "shell", str(os.system("touch {target}.shell"))]))
"""


@dataclass(frozen=True)
class Trap:
    """Pickles that run code, and what is seen outside of what it did."""

    pickled: bytes
    saved: bytes
    """As torch.save writes it."""
    target: Path
    server: socket.socket

    def list_traces(self) -> list[str]:
        """Return what is seen of it: the files that it wrote, and that it connected."""
        traces = sorted(path.name for path in self.target.parent.glob(f"{self.target.name}*"))
        self.server.settimeout(0.2)
        try:
            connection, _ = self.server.accept()
        except TimeoutError:
            return traces
        connection.close()
        return [*traces, "connected"]


@pytest.fixture
def trap(torch_python: str, tmp_path: Path) -> Iterator[Trap]:
    """Code in pickles that reads a secret, writes it down, and connects."""
    home = Path(os.environ["HOME"])
    secret, target = home / ".ssh" / "id_ed25519", home / "stolen"
    secret.parent.mkdir()
    secret.write_text("secret", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = HIDDEN.format(secret=str(secret), target=str(target), port=server.getsockname()[1])
        argv = [torch_python, str(NETS), str(tmp_path), code]
        assert run_program(argv, timeout_s=300).exit_code == 0
        pickled, torch_saved = tmp_path / "hidden.pkl", tmp_path / "hidden.pt"
        yield Trap(pickled.read_bytes(), torch_saved.read_bytes(), target, server)


def test_pickled_example_inputs_run_no_code(
    trap: Trap, saved: Path, torch_python: str, tmp_path: Path
) -> None:
    changes = {"data/sample_inputs/model.pt": trap.saved}
    path = _change(saved / "linear.pt2", tmp_path / "net.pt2", changes)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ModelError, match="pickled objects beside tensors") as found:
        run_step(Converted(from_file(torch_python)), {"source": path}, out)
    assert "hidden code ran" not in found.value.problem
    assert trap.list_traces() == []


def test_without_its_setting_pytorch_runs_them(
    trap: Trap,
    saved: Path,
    torch_python: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripts = shutil.copytree(running._INSIDE, tmp_path / "inside")
    script = scripts / "edgepack_torch.py"
    text = script.read_text(encoding="utf-8")
    line = '    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"\n'
    assert line in text
    script.write_text(text.replace(line, ""), encoding="utf-8")
    monkeypatch.setattr(running, "_INSIDE", scripts)
    changes = {"data/sample_inputs/model.pt": trap.saved}
    path = _change(saved / "linear.pt2", tmp_path / "net.pt2", changes)
    with pytest.raises(ModelError, match="hidden code ran: read PermissionError"):
        from_file(torch_python).open(path).convert(tmp_path)
    assert trap.list_traces() == []


def _hide_in_constants(trap: Trap, saved: Path, tmp_path: Path) -> Path:
    """Return a program with a constant that PyTorch unpickles, whatever its settings are."""
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True}
    config = json.dumps({"config": {"hidden": {**entry, "tensor_meta": None}}}).encode()
    changes = {
        "data/constants/model_constants_config.json": config,
        "data/constants/opaque_obj_0": trap.pickled,
    }
    return _change(saved / "linear.pt2", tmp_path / "net.pt2", changes)


def test_code_that_runs_reaches_nothing(
    trap: Trap, saved: Path, torch_python: str, tmp_path: Path
) -> None:
    path = _hide_in_constants(trap, saved, tmp_path)
    with pytest.raises(ModelError, match="it holds code: data/constants/opaque_obj_0"):
        CONVERTERS["torch"].look(path)
    # Past what was looked at: the code runs, and everything it tries fails.
    with pytest.raises(ModelError) as found:
        from_file(torch_python).open(path).convert(tmp_path)
    words = "hidden code ran: read PermissionError write PermissionError connect PermissionError"
    assert words in found.value.problem
    assert trap.list_traces() == []


def test_unconfined_it_does_all_of_that(
    trap: Trap, saved: Path, torch_python: str, tmp_path: Path
) -> None:
    path = _hide_in_constants(trap, saved, tmp_path)
    trusting = Conversion("torch", (), torch_python, confined=False)
    with pytest.raises(ModelError, match="read done write done connect done shell 0"):
        trusting.open(path).convert(tmp_path)
    assert trap.target.read_text(encoding="utf-8") == "secret"
    assert trap.list_traces() == ["stolen", "stolen.shell", "connected"]
