"""Reads files in onnxruntime's own format, and makes their layout the same every time.

The schema is ``onnxruntime/core/flatbuffers/schema/ort.fbs``; onnxruntime's Python package brings
readers for it (1.31.1, read 2026-11-21).
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgepack.errors import BugError, StepError

Operator = tuple[str, int, str]
"""Domain, the version that the operator has had its present form since, and name."""

_ALIGNMENT = 64
"""At least what flatbuffers and tensors in them are aligned to."""
_MODEL_FIELD = 6
"""Where a session's vtable has its ``model``: field 1, at 4 + 2 * field."""


def normalize_file(data: bytes) -> bytes:
    """Return an ORT-format file with the same content, laid out in one way only.

    onnxruntime writes a table of kernel types from a hash map whose order changes with memory
    addresses: switching address randomization off is not enough, because the environment's size
    and the lengths of paths move memory too (tried with 1.31.1, 2026-11-21). The table's entries
    are sorted, but their places in the file are not. It lies before the model, which never
    points back to it, so it is written anew in the sorted order and the model is kept as it is.
    """
    session = _read_root(data)
    model = _find_table(session.Model()).Pos
    # A table begins with the distance back to its vtable, which may lie right before it.
    vtable = model - int.from_bytes(data[model : model + 4], "little", signed=True)
    start = min(model, vtable)
    front = bytearray(_make_front(session))
    # Places in a flatbuffer are aligned from its end, whose distance from the model stays.
    front += bytes(-(len(front) + len(data) - start) % _ALIGNMENT)
    table = _find_table(_read_root(bytes(front)))
    field = table.Pos + table.Offset(_MODEL_FIELD)
    front[field : field + 4] = (len(front) + model - start - field).to_bytes(4, "little")
    return bytes(front) + data[start:]


def _make_front(session: Any) -> bytes:  # noqa: ANN401  (onnxruntime's readers have no types)
    """Return a session's file without its model; the place of the model holds 1."""
    builder = importlib.import_module("flatbuffers").Builder(1024)
    table = _load_schema("KernelTypeStrResolver")
    resolver = session.KernelTypeStrResolver()
    count = resolver.OpKernelTypeStrArgsLength()
    operators = [_add_operator(builder, resolver.OpKernelTypeStrArgs(i)) for i in range(count)]
    vector = _add_vector(builder, table.StartOpKernelTypeStrArgsVector, operators)
    table.Start(builder)
    table.AddOpKernelTypeStrArgs(builder, vector)
    kernels = table.End(builder)
    version = builder.CreateString(session.OrtVersion())
    root = _load_schema("InferenceSession")
    root.Start(builder)
    root.AddOrtVersion(builder, version)
    builder.PrependUint32Slot(1, 1, 0)
    root.AddKernelTypeStrResolver(builder, kernels)
    builder.Finish(root.End(builder), file_identifier=b"ORTM")
    return bytes(builder.Output())


def _add_operator(builder: Any, source: Any) -> int:  # noqa: ANN401
    table = _load_schema("OpIdKernelTypeStrArgsEntry")
    count = source.KernelTypeStrArgsLength()
    types = [_add_kernel_type(builder, source.KernelTypeStrArgs(i)) for i in range(count)]
    vector = _add_vector(builder, table.StartKernelTypeStrArgsVector, types)
    name = builder.CreateString(source.OpId())
    table.Start(builder)
    table.AddOpId(builder, name)
    table.AddKernelTypeStrArgs(builder, vector)
    return int(table.End(builder))


def _add_kernel_type(builder: Any, source: Any) -> int:  # noqa: ANN401
    table = _load_schema("KernelTypeStrArgsEntry")
    arguments = [_add_argument(builder, source.Args(i)) for i in range(source.ArgsLength())]
    vector = _add_vector(builder, table.StartArgsVector, arguments)
    name = builder.CreateString(source.KernelTypeStr())
    table.Start(builder)
    table.AddKernelTypeStr(builder, name)
    table.AddArgs(builder, vector)
    return int(table.End(builder))


def _add_argument(builder: Any, source: Any) -> int:  # noqa: ANN401
    table = _load_schema("ArgTypeAndIndex")
    table.Start(builder)
    table.AddArgType(builder, source.ArgType())
    table.AddIndex(builder, source.Index())
    return int(table.End(builder))


def _add_vector(builder: Any, start: Callable[[Any, int], int], offsets: Sequence[int]) -> int:  # noqa: ANN401
    start(builder, len(offsets))
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def count_saved_optimizations(data: bytes) -> int:
    """Return how many optimizations an ORT-format file leaves to the session."""
    saved = _read_root(data).Model().Graph().RuntimeOptimizations()
    if saved is None:
        return 0
    return sum(
        saved.Records(i).RuntimeOptimizationRecordsLength() for i in range(saved.RecordsLength())
    )


def find_kernels(data: bytes) -> set[Operator]:
    """Return every operator whose kernel a file may ask for, also by saved optimizations."""
    resolver = _read_root(data).KernelTypeStrResolver()
    found = set()
    for i in range(resolver.OpKernelTypeStrArgsLength()):
        domain, name, version = resolver.OpKernelTypeStrArgs(i).OpId().decode().split(":")
        found.add((domain or "ai.onnx", int(version), name))
    return found


def find_operators(files: Iterable[Path]) -> dict[Operator, str]:
    """Return the operators of the nodes of ORT-format files, with their types as JSON, or "".

    Raises:
        StepError: onnxruntime's reader does not know a type of theirs.
    """
    from onnxruntime.tools import ort_format_model

    found: dict[str, dict[int, set[str]]] = {}
    types = ort_format_model.OperatorTypeUsageManager()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it leaves closing to Python
            for file in files:
                ort_format_model.OrtFormatModelProcessor(str(file), found, types).process()
    except _READER_ERRORS as error:
        raise StepError(
            f"onnxruntime cannot list the file's operators: {type(error).__name__}: {error}",
            hint="the model has types that ORT format does not know: ship it as .onnx",
        ) from error
    return {
        (domain, version, name): types.get_config_entry(domain, name) or ""
        for domain, versions in found.items()
        for version, names in versions.items()
        for name in names
    }


_READER_ERRORS = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)
"""What onnxruntime's reader raises at what it does not know."""


def write_config(entries: Mapping[Operator, str], path: Path) -> None:
    """Write a reduced-operator config, a line for each domain and version, sorted.

    The form is that of onnxruntime's ``reduced_build_config_parser.py``:
    ``ai.onnx;13;Flatten,Gemm{"inputs": {"0": ["float"]}}``.
    """
    lines: dict[tuple[str, int], list[str]] = {}
    for (domain, version, name), types in sorted(entries.items()):
        lines.setdefault((domain, version), []).append(f"{name}{types}")
    text = "".join(f"{d};{v};{','.join(names)}\n" for (d, v), names in lines.items())
    path.write_text(text, encoding="utf-8")


def read_config(path: Path) -> dict[Operator, dict[str, Any]]:
    """Read a reduced-operator config, whose operators map to their types, ``{}`` for all types.

    Raises:
        StepError: It is not one, or onnxruntime's own parser does not take it.
    """
    from onnxruntime.tools.reduced_build_config_parser import parse_config

    entries: dict[Operator, dict[str, Any]] = {}
    try:
        parse_config(str(path), enable_type_reduction=True)
        for line in path.read_text(encoding="utf-8").splitlines():
            domain, version, rest = line.split(";", 2)
            entries |= {(domain, int(version), n): t for n, t in _parse_operators(rest)}
    except (OSError, *_READER_ERRORS) as error:
        raise BugError(f"{path.name} is not a list of operators: {error}") from error
    return entries


def _parse_operators(text: str) -> Iterable[tuple[str, dict[str, Any]]]:
    decoder = json.JSONDecoder()
    while text:
        end = min(i for i in (text.find(","), text.find("{"), len(text)) if i >= 0)
        name, text = text[:end], text[end:]
        types: dict[str, Any] = {}
        if text.startswith("{"):
            types, end = decoder.raw_decode(text)
            text = text[end:]
        yield name, types
        text = text.removeprefix(",")


def _find_table(reader: Any) -> Any:  # noqa: ANN401
    return reader._tab  # noqa: SLF001  (flatbuffers' readers tell nowhere else where they are)


def _read_root(data: bytes) -> Any:  # noqa: ANN401
    return _load_schema("InferenceSession").InferenceSession.GetRootAs(data, 0)


def _load_schema(table: str) -> Any:  # noqa: ANN401
    """Return onnxruntime's module for a table of its schema."""
    importlib.import_module("onnxruntime.tools.ort_format_model")  # makes the next one findable
    return importlib.import_module(f"ort_flatbuffers_py.fbs.{table}")
