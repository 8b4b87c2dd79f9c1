"""PyTorch: programs of ``torch.export`` in ``.pt2`` files, converted by ``torch.onnx``."""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgepack.converters.base import LOOSE_NETS, Converter
from edgepack.converters.locks import TORCH
from edgepack.errors import ModelError, format_list

EXPORT = (
    "export it where its code is: torch.export.save(torch.export.export(model.eval(),"
    ' (example,)), "model.pt2")'
)
_FUNCTION = 'or name a function that makes it: model: {python: "module:make", framework: torch}'
# PyTorch stores and does not compress (PyTorchFileWriter), so that what is in a file is no more
# than the file; some of it may be there twice, for archives that were packed again.
_MOST_TIMES, _MOST_SPARE = 4, 64 * 1024 * 1024
_MOST_CONFIG = 64 * 1024 * 1024
_SHOWN = 4


def _recognise(path: Path) -> bool:
    """Take programs under any of PyTorch's names; what is no program is refused by its content."""
    if not path.is_file():
        return False
    suffix = path.suffix.lower()
    return suffix == ".pt2" or (suffix in (".pt", ".pth") and is_program(path))


def is_program(path: Path) -> bool:
    """Return whether a file is an archive of ``torch.export``, by the names in it."""
    return any(name.endswith("models/model.json") for name in list_names(path))


def list_names(path: Path) -> list[str]:
    """Return the names in a zip archive; none if it is no whole one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return []


def _look(path: Path) -> None:
    """Look at what is in the archive, without PyTorch.

    The layout is that of torch/csrc/export/pt2_archive_constants.h of PyTorch 2.14: a folder with
    ``models/model.json``, ``data/weights/`` and ``data/constants/``, each with a
    ``..._config.json`` whose entries say ``use_pickle``, ``data/sample_inputs/`` and
    ``data/aotinductor/``, which is compiled code. Constants named
    ``custom_obj_`` and ``opaque_obj_`` are pickled objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _require_fitting(path, archive)
            names = [name.partition("/")[2] for name in archive.namelist()]
            _require_program(path, names)
            _require_no_code(path, names)
            for name in archive.namelist():
                if re.search(r"/data/(weights|constants)/model_\w+_config\.json$", name):
                    _require_plain(path, _read_entries(path, archive, name))
    # RuntimeError: what is in it is encrypted.
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise ModelError(
            f"this is no whole .pt2, which is a zip archive: {_explain(path, error)}",
            hint="download or copy it again, and compare its size; a pointer of Git LFS is a small"
            " text",
            where=path.name,
        ) from error
    except OSError as error:
        raise ModelError(
            f"cannot read it: {error.strerror}", hint="check its rights", where=path.name
        ) from error


def _explain(path: Path, error: Exception) -> str:
    size = path.stat().st_size
    return f"{size} bytes, {error}" if size else "it is empty"


def _require_fitting(path: Path, archive: zipfile.ZipFile) -> None:
    held, size = sum(each.file_size for each in archive.infolist()), path.stat().st_size
    if held > _MOST_TIMES * size + _MOST_SPARE:
        raise ModelError(
            f"its {len(archive.infolist())} files are {held} bytes, and it has {size}: PyTorch does"
            " not compress, so that this archive was made to fill memory",
            hint=EXPORT,
            where=path.name,
        )


def _require_program(path: Path, names: Iterable[str]) -> None:
    """Raise unless there is one program, under its usual name."""
    programs = [name for name in names if re.fullmatch(r"models/[^/]+\.json", name)]
    if programs == ["models/model.json"]:
        return
    if programs:
        raise ModelError(
            f"it holds {format_list(programs, _SHOWN)}, and one 'models/model.json' is read",
            hint="save one program in it with torch.export.save",
            where=path.name,
        )
    raise ModelError(explain_archive(path), hint=f"{EXPORT}, {_FUNCTION}", where=path.name)


def explain_archive(path: Path) -> str:
    """Return what a file of PyTorch's is that holds no program, by the names in its archive."""
    names = list_names(path)
    inner = {name.partition("/")[2] for name in names}
    if "serialized_exported_program.json" in names:
        return "it was saved by PyTorch 2.7 or older, in a format that newer ones do not read"
    if "constants.pkl" in inner or any(name.startswith("code/") for name in inner):
        return "this is TorchScript (torch.jit.save), and no program of torch.export"
    if "data.pkl" in inner:
        return (
            "this is a checkpoint (torch.save): weights, or pickled objects that are code, and no"
            " program"
        )
    if any(name.startswith("data/aotinductor/") for name in inner):
        return "it holds code that AOTInductor compiled, and no program"
    if names:
        return f"it is a zip archive of {format_list(names, _SHOWN)}, and no program"
    return "it is no archive of PyTorch's: a checkpoint of before PyTorch 1.6, or another file"


def _require_no_code(path: Path, names: Iterable[str]) -> None:
    code = [
        name
        for name in names
        if name.startswith("data/aotinductor/")
        or re.match(r"data/constants/(custom|opaque)_obj_", name)
    ]
    if code:
        raise ModelError(
            f"it holds code: {format_list(code, _SHOWN)}",
            hint="save the program alone, without compiled code and without objects among its"
            f" constants; or {_FUNCTION.removeprefix('or ')}",
            where=path.name,
        )


def _require_plain(path: Path, entries: dict[str, Any]) -> None:
    """Raise if weights or constants are pickled, which is code, and not plain numbers."""
    pickled = [name for name, entry in entries.items() if _is_pickled(entry)]
    if pickled:
        raise ModelError(
            f"it holds pickled tensors, which are code: {format_list(pickled, _SHOWN)}",
            hint="save it with plain tensors: subclasses of torch.Tensor are pickled, as those of"
            f" torchao are; {_FUNCTION}",
            where=path.name,
        )


def _is_pickled(entry: Any) -> bool:  # noqa: ANN401  (whatever the file holds)
    """Return whether an entry says that it is pickled, or does not say that it is not."""
    return not (isinstance(entry, dict) and entry.get("use_pickle") is False)


def _read_entries(path: Path, archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    if archive.getinfo(name).file_size > _MOST_CONFIG:
        raise ModelError(
            f"its {name!r} has {archive.getinfo(name).file_size} bytes",
            hint=EXPORT,
            where=path.name,
        )
    found: object = json.loads(archive.read(name))
    entries = found.get("config") if isinstance(found, dict) else None
    if not isinstance(entries, dict):
        raise ModelError(f"its {name!r} has no entries", hint=EXPORT, where=path.name)
    return entries


TORCH_EXPORT = Converter(
    name="torch",
    words="PyTorch",
    recognise=_recognise,
    script="edgepack_torch",
    packages=("torch", "onnxscript", "onnx-ir", "onnx", "torchvision"),
    lock=TORCH,
    tolerance=LOOSE_NETS,
    look=_look,
    own=("torch", "onnx", "onnxscript"),
    makes="(module.eval(), example_inputs) or (module.eval(), example_inputs, dynamic_shapes)",
)
