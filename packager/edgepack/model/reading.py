"""Reads and writes ``.onnx`` files; it never opens a file outside the model's folder."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.errors import ModelError

if TYPE_CHECKING:
    import onnx

# Above this, weights go to a file beside the model: protobuf messages end at 2 GiB.
INLINE_LIMIT_BYTES = 1 << 30


def read_model(path: Path) -> onnx.ModelProto:
    """Read a model with its external data, all of it in memory.

    Raises:
        ModelError: The file is missing, empty, truncated, not ONNX, or its external data is
            missing, too short, or lies outside the model's folder.
    """
    from onnx.external_data_helper import load_external_data_for_model

    model = read_structure(path)
    for tensor in list_external_tensors(model):
        _check_external(tensor, path)
    load_external_data_for_model(model, str(path.resolve().parent))
    return model


def read_structure(path: Path) -> onnx.ModelProto:
    """Read a model without its external data.

    Raises:
        ModelError: The file is missing, empty, truncated or not ONNX.
    """
    import onnx
    from google.protobuf.message import DecodeError

    data = _read_bytes(path)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise _make_not_onnx_error(path, data) from error
    if model.ir_version <= 0 or not (model.graph.node or model.graph.input or model.graph.output):
        raise _make_not_onnx_error(path, data)
    return model


# Smaller files, and smaller tensors, are read as they are.
_LARGE_FILE_BYTES = 1 << 22
_LARGE_TENSOR_BYTES = 1 << 16


def read_outline(path: Path) -> onnx.ModelProto:
    """Read a model as :func:`read_structure` does, but for the values of large weights in its file.

    Those are floats of the main graph, which keep their names, types and shapes. So they take no
    memory; reading them would take twice their size, because protobuf copies.

    Raises:
        ModelError: As :func:`read_structure`.
    """
    from google.protobuf.message import DecodeError

    if path.is_file() and str(path).isprintable() and path.stat().st_size > _LARGE_FILE_BYTES:
        with (
            contextlib.suppress(OSError, ValueError, IndexError, DecodeError, RecursionError),
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            model = _merge_outline(data)
            if model.ir_version > 0 and model.graph.node:
                return model
    # read_structure explains what is wrong with a file.
    return read_structure(path)


# Numbers of fields. Source: onnx.proto, messages ModelProto, GraphProto and TensorProto.
_GRAPH, _INITIALIZER = 7, 5
_VALUES = {4, 5, 7, 9, 10, 11}
_FLOATS = {1, 10, 11}
"""Element types FLOAT, FLOAT16 and DOUBLE. Integers may be zero points, which say something."""


def _merge_outline(data: mmap.mmap) -> onnx.ModelProto:
    """Merge a model from the fields of its file, which protobuf allows one at a time.

    Source: https://protobuf.dev/programming-guides/encoding/ ("Last One Wins").
    """
    import onnx

    model = onnx.ModelProto()
    for number, begin, inside, end in _walk_fields(data, 0, len(data)):
        if number != _GRAPH:
            model.MergeFromString(data[begin:end])
            continue
        for part, part_begin, part_inside, part_end in _walk_fields(data, inside, end):
            if part == _INITIALIZER and part_end - part_inside > _LARGE_TENSOR_BYTES:
                tensor = model.graph.initializer.add()
                for kind, start, _, stop in _walk_fields(data, part_inside, part_end):
                    if kind not in _VALUES:
                        tensor.MergeFromString(data[start:stop])
                if tensor.data_type not in _FLOATS:
                    tensor.ParseFromString(data[part_inside:part_end])
            else:
                model.graph.MergeFromString(data[part_begin:part_end])
    return model


def _walk_fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field of a message: its number, and where it, its content and the next begin.

    Raises:
        ValueError: The bytes are not a message.
        IndexError: It is cut off.
    """
    while at < end:
        begin = at
        key, at = _read_varint(data, at)
        size = 0
        match key & 7:
            case 0:
                _, stop = _read_varint(data, at)
                size = stop - at
            case 1:
                size = 8
            case 2:
                size, at = _read_varint(data, at)
            case 5:
                size = 4
            case kind:
                raise ValueError(f"there is no wire type {kind}")
        if at + size > end:
            raise IndexError("a field ends behind its message")
        yield key >> 3, begin, at, at + size
        at += size


def _read_varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return a number of seven bits in each byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _read_bytes(path: Path) -> bytes:
    if not str(path).isprintable():
        raise ModelError(
            f"the name {str(path)!r} cannot be written down", hint="rename the file: plain text"
        )
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelError(
                f"{str(path)!r} is not a regular file", hint="save the model to a file first"
            )
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"there is no model {str(path)!r}", hint="check the path") from error
    except IsADirectoryError as error:
        raise ModelError(
            f"{str(path)!r} is a folder", hint="name the .onnx file inside it"
        ) from error
    except OSError as error:
        raise ModelError(
            f"cannot read {str(path)!r}: {error.strerror}",
            hint="check the permissions of the file and of the folders above it",
        ) from error
    if not data:
        raise ModelError(f"{str(path)!r} is empty", hint="export the model again")
    # Source: onnxruntime.fbs, file_identifier "ORTM" at byte 4 (flatbuffers).
    if data[4:8] == b"ORTM":
        raise ModelError(
            f"{str(path)!r} is an ORT-format file, already converted for one runtime",
            hint="give the .onnx file it was made from",
        )
    return data


# The first bytes of files that people mistake for ONNX models, and what to pass instead.
_OTHERS = (
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"),
    (b"\x89PNG", "a PNG picture", "give the .onnx file"),
    (b"\xff\xd8\xff", "a JPEG picture", "give the .onnx file"),
    (b"PK\x03\x04", "a ZIP archive", "unpack it, or, from PyTorch (.pt), use torch.onnx.export"),
    (b"\x1f\x8b", "a gzip archive", "unpack it: gunzip, or tar -xf"),
    (b"\x89HDF", "an HDF5 file", "convert the Keras model: python -m tf2onnx.convert --keras"),
    (b"\x80\x02", "a Python pickle", "load it in PyTorch and use torch.onnx.export"),
    (b"<", "HTML or XML, perhaps an error page", "download the model again"),
    (b"{", "JSON", "give the .onnx file"),
)


def _make_not_onnx_error(path: Path, data: bytes) -> ModelError:
    problem = f"{str(path)!r} ({len(data)} bytes) is not a whole ONNX model"
    if path.suffix in (".yaml", ".yml"):
        return ModelError(problem, hint=f"name a project file with --project {path.name}")
    # Source: schema.fbs of TensorFlow Lite, file_identifier "TFL3" at byte 4 (flatbuffers).
    if data[4:8] == b"TFL3":
        hint = "convert it: python -m tf2onnx.convert --tflite FILE --output model.onnx"
        return ModelError(f"{problem}, but TensorFlow Lite", hint=hint)
    for start, what, hint in _OTHERS:
        if data.startswith(start):
            return ModelError(f"{problem}, but {what}", hint=hint)
    return ModelError(
        problem,
        hint="it is cut off or another kind of file: export it again, and compare its size"
        " after copying",
    )


def list_external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor whose data lies in another file, in subgraphs and functions too."""
    import onnx

    for tensor in _walk_tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def _walk_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _walk_graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _walk_node_tensors(node)


def _walk_graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _walk_node_tensors(node)


def _walk_node_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _walk_graph_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _walk_graph_tensors(graph)


# Source: onnxruntime core/framework/tensorprotoutils.h, kTensorProtoMemoryAddressTag.
_IN_MEMORY = "_ORT_MEM_ADDR_"


def _check_external(tensor: onnx.TensorProto, model_path: Path) -> None:
    """Refuse external data that is not wholly inside a file inside the model's folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    folder = model_path.resolve().parent
    place = f"tensor {tensor.name!r} of {str(model_path)!r}"
    file = (folder / location).resolve()
    if _IN_MEMORY in location:
        raise ModelError(
            f"{place} wants its data from an address in this process's memory ({location!r})",
            hint="do not trust this file: such a place is only written by a program for itself;"
            " export the model with its data beside it",
        )
    if not location or Path(location).is_absolute() or not file.is_relative_to(folder):
        raise ModelError(
            f"{place} wants its data from {location!r}, outside the model's folder",
            hint="do not trust this file; export the model with its data beside it",
        )
    if not file.is_file():
        raise ModelError(
            f"{place} wants its data from {location!r}, which is not there",
            hint=f"copy {location!r} into {str(folder)!r}, beside the model",
        )
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", "0"))
    except ValueError as error:
        raise ModelError(
            f"{place} has an offset or length that is not a number", hint="export the model again"
        ) from error
    if offset < 0 or length < 0 or offset + length > file.stat().st_size:
        raise ModelError(
            f"{place} wants bytes {offset} to {offset + length} of {location!r},"
            f" which has {file.stat().st_size}",
            hint="the data file is cut off or belongs to another model: export both again",
        )


def list_external_files(model: onnx.ModelProto) -> list[str]:
    """Return the names of the files that hold external data, sorted."""
    return sorted(
        {
            entry.value
            for tensor in list_external_tensors(model)
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )


def hash_model(path: Path) -> str:
    """Return the sha256 of a model: of its file alone, or of its file and its external data.

    Raises:
        ModelError: As :func:`read_model`.
    """
    model = read_outline(path)
    for tensor in list_external_tensors(model):
        _check_external(tensor, path)
    digest = _hash_file(path)
    for name in list_external_files(model):
        digest.update(_hash_file(path.resolve().parent / name).digest())
    return digest.hexdigest()


def _hash_file(path: Path) -> hashlib._Hash:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")


def can_fit_message(model: onnx.ModelProto, limit_bytes: int = INLINE_LIMIT_BYTES) -> bool:
    """Return whether a model fits into one protobuf message.

    protobuf cannot even compute the size of a message of 2 GiB and more: it raises (protobuf 7,
    upb, observed 2026-11-21).
    """
    from google.protobuf.message import EncodeError

    try:
        size: int = model.ByteSize()
    except EncodeError:
        return False
    return size <= limit_bytes


def write_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model: one file, or, above 1 GiB, with its weights in ``<name>.data`` beside it."""
    import onnx

    large = not can_fit_message(model)
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=large,
        location=f"{path.name}.data" if large else None,
    )
