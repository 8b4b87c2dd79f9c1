"""What is looked at in files of PyTorch before PyTorch reads them; archives are written here."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from edgepack.converters.registry import find_converter
from edgepack.converters.torch_export import TORCH_EXPORT
from edgepack.errors import ModelError

WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
PLAIN = {"config": {"l.weight": {"path_name": "weight_0", "use_pickle": False}}}
PROGRAM: dict[str, bytes] = {
    "data/weights/weight_0": bytes(64),
    WEIGHTS: json.dumps(PLAIN).encode(),
    CONSTANTS: b'{"config": {}}',
    "models/model.json": b"{}",
    "data/sample_inputs/model.pt": b"",
    "archive_format": b"pt2",
}


def write(path: Path, files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """Write an archive as PyTorch does: all in one folder."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(f"net/{name}", data)
    return path


def test_a_program_is_taken_under_any_of_pytorchs_names(tmp_path: Path) -> None:
    for name in ("net.pt2", "NET.PT2", "net.pt", "net.pth"):
        path = write(tmp_path / name, PROGRAM)
        assert find_converter(path) is TORCH_EXPORT
        TORCH_EXPORT.look(path)


def _config(name: str, path_name: str, *, use_pickle: object) -> bytes:
    entry = {"path_name": path_name, "use_pickle": use_pickle}
    return json.dumps({"config": {name: entry}}).encode()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({WEIGHTS: _config("l.weight", "weight_0", use_pickle=True)}, "pickled tensors.*l.weight"),
        ({WEIGHTS: _config("l.weight", "weight_0", use_pickle=1)}, "pickled tensors.*l.weight"),
        ({WEIGHTS: b'{"config": {"l.weight": 3}}'}, "pickled tensors.*l.weight"),
        ({WEIGHTS: b'{"config": {"l.weight": {"path_name": "weight_0"}}}'}, "pickled tensors"),
        ({CONSTANTS: _config("c", "tensor_0", use_pickle=True)}, "pickled tensors.*'?c"),
        ({"data/constants/custom_obj_0": b""}, "holds code: data/constants/custom_obj_0"),
        ({"data/constants/opaque_obj_0": b""}, "holds code: data/constants/opaque_obj_0"),
        ({"data/aotinductor/model/net.so": b"\x7fELF"}, "holds code: data/aotinductor/model"),
        ({"models/other.json": b"{}"}, r"models/model.json, models/other.json, and one"),
        ({WEIGHTS: b"{"}, "no whole .pt2"),
        ({WEIGHTS: b"[]"}, "no entries"),
        ({WEIGHTS: b"\xff\xfe"}, "no whole .pt2"),
    ],
)
def test_what_holds_code_or_is_broken_is_refused(
    tmp_path: Path, changed: dict[str, bytes], problem: str
) -> None:
    path = write(tmp_path / "net.pt2", {**PROGRAM, **changed})
    with pytest.raises(ModelError, match=problem) as found:
        TORCH_EXPORT.look(path)
    assert found.value.where == "net.pt2"


def test_an_archive_that_would_fill_memory_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    bomb = {**PROGRAM, "data/weights/weight_1": bytes(200 * 1024 * 1024)}
    path = write(tmp_path / "net.pt2", bomb, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1024 * 1024
    with pytest.raises(ModelError, match="made to fill memory"):
        TORCH_EXPORT.look(path)
    # What was packed again, and holds little, is taken.
    TORCH_EXPORT.look(write(tmp_path / "packed.pt2", PROGRAM, zipfile.ZIP_DEFLATED))


def test_a_cut_file_is_one_error_wherever_it_was_cut(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.pt2", PROGRAM).read_bytes()
    path = tmp_path / "net.pt2"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"no whole \.pt2.*(bytes|empty)"):
            TORCH_EXPORT.look(path)


def _legacy_checkpoint() -> bytes:
    return pickle.dumps({"weight": [1.0]}, protocol=2)


def look(path: Path) -> None:
    """Do as a build does before PyTorch reads a file."""
    converter = find_converter(path)
    assert converter is TORCH_EXPORT
    converter.look(path)


@pytest.mark.parametrize(
    ("name", "files", "problem"),
    [
        ("net.pt", {"data.pkl": b"", "version": b"3"}, "this is a checkpoint"),
        ("net.pth", {"data.pkl": b"", "version": b"3"}, "this is a checkpoint"),
        ("net.ckpt", {"data.pkl": b""}, "this is a checkpoint"),
        ("net.pt", {"data.pkl": b"", "constants.pkl": b""}, "this is TorchScript"),
        ("net.pt", {"data.pkl": b"", "code/__torch__.py": b""}, "this is TorchScript"),
        ("net.pt2", {"data.pkl": b""}, "this is a checkpoint"),
        ("net.pt2", {"data/aotinductor/model/net.so": b""}, "AOTInductor compiled"),
        ("net.pt2", {"readme.txt": b""}, "zip archive of net/readme.txt"),
    ],
)
def test_what_is_no_program_is_refused_with_the_command_that_exports_one(
    tmp_path: Path, name: str, files: dict[str, bytes], problem: str
) -> None:
    path = write(tmp_path / name, files)
    with pytest.raises(ModelError, match=problem) as found:
        look(path)
    assert "torch.export.save(torch.export.export(model.eval(), (example,)" in found.value.hint
    assert "framework: torch" in found.value.hint


def test_a_program_in_the_format_of_before_is_named(tmp_path: Path) -> None:
    path = tmp_path / "old.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version", "8.1")
        archive.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(ModelError, match=r"saved by PyTorch 2\.7 or older"):
        TORCH_EXPORT.look(path)


@pytest.mark.parametrize("name", ["model.pkl", "model.pickle", "model.joblib", "MODEL.PKL"])
def test_pickles_are_refused_and_not_read(tmp_path: Path, name: str) -> None:
    stream = io.BytesIO()
    pickle.Pickler(stream).dump(_Touch(tmp_path / "was-read"))
    path = tmp_path / name
    path.write_bytes(stream.getvalue())
    with pytest.raises(ModelError, match="run the code in it") as found:
        find_converter(path)
    assert "framework: sklearn" in found.value.hint
    assert "skl2onnx.to_onnx" in found.value.hint
    assert not (tmp_path / "was-read").exists()


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_checkpoint_of_before_archives_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pth"
    path.write_bytes(_legacy_checkpoint())
    with pytest.raises(ModelError, match=r"checkpoint of before PyTorch 1\.6"):
        find_converter(path)


def test_onnx_and_folders_are_left_to_others(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08")
    (tmp_path / "folder.pt").mkdir()
    assert find_converter(tmp_path / "model.onnx") is None
    assert find_converter(tmp_path / "folder.pt") is None
