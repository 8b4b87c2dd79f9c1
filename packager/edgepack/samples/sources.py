"""Where samples come from: ``.npz``, image folders, ONNX test data, Python functions.

Each function yields samples one by one and returns labels beside them; none of them knows the
model. Checking against the model is :mod:`edgepack.samples.sample_set`'s.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.base.processes import run_supervised
from edgepack.base.worker import tell
from edgepack.errors import SamplesError, format_list, suggest_nearest
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.project.inputs import ImageInput
from edgepack.samples import hook
from edgepack.samples.constants import Constant, drop_constant_inputs
from edgepack.samples.images import (
    find_unreadable,
    list_image_files,
    read_image_pixels,
    read_image_tensor,
)
from edgepack.samples.sample_set import Sample
from edgepack.samples.spreading import choose_spread
from edgepack.samples.streams import STREAM, make_first_state

HOOK_TIMEOUT_S = 3600.0
_SHOWN = 5
MOST_LINES = 100
"""The most lines that are shown of what one call of a hook prints."""


def read_npz_samples(  # noqa: PLR0913  (a file, and all that a project says of it)
    path: Path,
    signature: Sequence[TensorSpec],
    labels_key: str | None,
    limit: int | None,
    constants: Sequence[Constant] = (),
    state: Sequence[TensorSpec] = (),
    *,
    others: Collection[str] = (),
) -> tuple[Iterator[Sample], Array | None]:
    """Return the samples of an ``.npz``, whose leading axis counts them, and its labels.

    Sample ``k`` is ``a[k:k+1]`` where the array has as many dimensions as the input, whose first is
    1 or symbolic, else ``a[k]``. Inputs that are constant are left out, and may be there once.
    With a ``state``, a stream begins where the numbers of the array ``stream`` change; if there is
    none, with each sample that holds a state. ``others`` are keys that hold no inputs.

    Raises:
        SamplesError: The file is not an ``.npz``, its arrays and labels differ in length, or it
            holds another value for an input that is constant.
    """
    arrays = {key: array for key, array in _read_npz(path).items() if key not in others}
    labels = arrays.pop(labels_key or "labels", None)
    if labels_key and labels is None:
        raise SamplesError(
            f"{str(path)!r} has no labels {labels_key!r}, only {sorted(arrays)}",
            hint="'labels' under 'samples' names the key that holds them",
        )
    shapes = {spec.name: spec.shape for spec in signature}
    arrays = drop_constant_inputs(path.name, arrays, constants)
    count = _find_common_length(path, arrays)
    marks = arrays.pop(STREAM, None) if state and STREAM not in shapes else None
    if labels is not None and (labels.ndim == 0 or len(labels) != count):
        raise SamplesError(
            f"{str(path)!r} has labels of shape {list(labels.shape)} for {count} samples",
            hint="give each sample one label",
        )
    taken = min(count, limit or count)
    zeros = make_first_state(state)

    def make_samples() -> Iterator[Sample]:
        for k in range(taken):
            inputs = {
                name: _take_sample(array, k, shapes.get(name)) for name, array in arrays.items()
            }
            if marks is not None:
                begins = k == 0 or bool(np.any(marks[k] != marks[k - 1]))
                others = {name: inputs[name] for name in inputs if name not in zeros}
                inputs = {**zeros, **inputs} if begins else others
            yield f"sample {k} of {path.name}", inputs

    return make_samples(), None if labels is None else labels[:taken]


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except FileNotFoundError as error:
        raise SamplesError(
            f"there is no file {str(path)!r}", hint="check 'path' under 'samples'"
        ) from error
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise SamplesError(
            f"cannot read {str(path)!r} as .npz: {error}",
            hint="write it with numpy.savez(path, INPUT_NAME=array); objects are not taken",
        ) from error


def read_npz_references(
    path: Path, keys: Mapping[str, str], outputs: Sequence[TensorSpec], chosen: Sequence[int]
) -> dict[int, dict[str, Array]]:
    """Return what a framework gave for some samples of an ``.npz``.

    Args:
        path: The file, whose arrays have the sample as leading axis.
        keys: By output of the model: the key in the file.
        outputs: Of the model: an output's axes say whether a sample keeps the leading one.
        chosen: The samples' numbers.

    Returns:
        By sample: its outputs, each with the shape that the model gives it.

    Raises:
        SamplesError: The file lacks a key or has fewer samples there, or the model has no such
            output.
    """
    arrays, shapes = _read_npz(path), {spec.name: spec.shape for spec in outputs}
    for output, key in keys.items():
        if output not in shapes:
            raise SamplesError(
                f"the model has no output {output!r}", hint=suggest_nearest(output, shapes)
            )
        if key not in arrays:
            raise SamplesError(
                f"{str(path)!r} has no array {key!r}, only {sorted(arrays)}",
                hint="'reference' maps outputs of the model to keys of the file",
            )
        if arrays[key].ndim == 0 or len(arrays[key]) <= max(chosen):
            raise SamplesError(
                f"{str(path)!r} has {key!r} of shape {list(arrays[key].shape)}, and samples up to"
                f" number {max(chosen)}",
                hint="the leading axis counts samples, as that of the inputs does",
            )
    return {
        k: {output: _take_sample(arrays[key], k, shapes[output]) for output, key in keys.items()}
        for k in chosen
    }


def read_onnx_references(
    folders: Sequence[Path], outputs: Sequence[str], chosen: Sequence[int]
) -> dict[int, dict[str, Array]]:
    """Return the outputs of ONNX test data, for those folders that have some.

    ``output_<n>.pb`` is the model's n-th output.

    Raises:
        SamplesError: A file is not a tensor.
    """
    found = {
        k: {
            name: _read_tensor(path)
            for n, name in enumerate(outputs)
            if (path := folders[k] / f"output_{n}.pb").exists()
        }
        for k in chosen
    }
    return {k: values for k, values in found.items() if values}


def _find_common_length(path: Path, arrays: dict[str, Array]) -> int:
    lengths = {name: len(a) if a.ndim else 0 for name, a in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise SamplesError(
            f"the arrays of {str(path)!r} hold different numbers of samples: {lengths}",
            hint="the leading axis counts samples and is the same for every input",
        )
    return next(iter(lengths.values()))


def _take_sample(array: Array, k: int, shape: tuple[int | str, ...] | None) -> Array:
    keep_axis = shape is None or (
        array.ndim == len(shape) > 0 and (shape[0] == 1 or isinstance(shape[0], str))
    )
    return array[k : k + 1] if keep_axis else array[k]


def select_images(folder: Path, limit: int | None, part: str) -> list[Path]:
    """Return the images of one part of a folder: ``all``, or one side of the 80 to 20 split.

    The split is by content, so that it stays when files are renamed and hardly moves when some
    are added. Two different images are enough for one in each part.

    Raises:
        SamplesError: There is no such folder, or nothing in this part.
    """
    return select_files(folder, limit, part, list_image_files)


def select_files(
    folder: Path,
    limit: int | None,
    part: str,
    list_files: Callable[[Path, int | None], list[Path]],
) -> list[Path]:
    """Return the files of one part of a folder, as :func:`select_images` does.

    ``list_files`` returns those of a kind, evenly spread over them with a limit.

    Raises:
        SamplesError: There is no such folder, or nothing in this part.
    """
    if part == "all":
        return list_files(folder, limit)
    digests = {path: _compute_digest(path) for path in list_files(folder, None)}
    held_out = _find_held_out(set(digests.values()))
    files = [
        path for path, digest in digests.items() if (digest in held_out) == (part == "evaluation")
    ]
    if not files:
        raise SamplesError(
            f"splitting {str(folder)!r} leaves no file for {part}",
            hint="add a different one, or name a folder for each of calibration and evaluation",
        )
    return choose_spread(files, limit)


def _find_held_out(digests: set[bytes]) -> set[bytes]:
    """Return the contents to evaluate with: one in five, and neither none nor all of several."""
    chosen = {digest for digest in digests if digest[0] % 5 == 0}
    return chosen if chosen and chosen != digests else {min(digests)}


def _compute_digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        raise SamplesError(
            f"cannot read {str(path)!r}: {error.strerror}", hint="check the file's permissions"
        ) from error


def read_image_samples(
    files: Sequence[Path], input_name: str, description: ImageInput
) -> Iterator[Sample]:
    """Yield one sample per image file.

    Raises:
        SamplesError: Some files are no whole images; all of them are named.
    """
    for path in files:
        with _naming_all(files):
            tensor = read_image_tensor(path, description)
        yield path.name, {input_name: tensor}


@contextmanager
def _naming_all(files: Sequence[Path]) -> Iterator[None]:
    """Have an error of one file name the others that cannot be read either."""
    try:
        yield
    except SamplesError as error:
        if len(broken := find_unreadable(files)) > 1:
            names = format_list([repr(path.name) for path in broken], _SHOWN)
            error.problem = f"{len(broken)} images cannot be read: {names}; {error.problem}"
        raise


def read_picture_samples(
    files: Sequence[Path], input_name: str, description: ImageInput, *, as_files: bool = False
) -> Iterator[Sample]:
    """Yield one sample per image file: its pixels, or the bytes of the file.

    Raises:
        SamplesError: Files are no images, all of which are named, or one is not one that models
            can decode or scale.
    """
    resize = description.model_dump()["resize"]
    for path in files:
        with _naming_all(files):
            pixels = read_image_pixels(path)
        height, width, _ = pixels.shape
        try:
            images.check_scaled(images.find_placement(width, height, resize))
        except ValueError as error:
            raise SamplesError(
                str(error), hint="cut it, or take it out of the folder", where=str(path)
            ) from error
        yield path.name, {input_name: _read_file_bytes(path) if as_files else pixels}


JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
"""The bytes that files of each format begin with."""


def _read_file_bytes(path: Path) -> Array:
    data = path.read_bytes()
    if not data.startswith((JPEG, PNG)):
        raise SamplesError(
            f"{str(path)!r} is neither JPEG nor PNG, which are what decode_image reads",
            hint="save it as one of the two, or leave 'extensions' out in edgepack.yaml",
        )
    return np.frombuffer(data, np.uint8)


def read_onnx_test_data(
    folders: Sequence[Path], signature: Sequence[TensorSpec], optional: Collection[str] = ()
) -> Iterator[Sample]:
    """Yield one sample per ONNX test data folder: ``input_<n>.pb`` is the model's n-th input.

    ``optional`` inputs need not have a file.

    Raises:
        SamplesError: A file is missing or is not a tensor.
    """
    for folder in folders:
        inputs: dict[str, Array] = {}
        for n, spec in enumerate(signature):
            path = folder / f"input_{n}.pb"
            if not (spec.name in optional and not path.exists()):
                inputs[spec.name] = _read_tensor(path)
        yield folder.name, inputs


def _read_tensor(path: Path) -> Array:
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper

    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
        return np.asarray(numpy_helper.to_array(tensor))
    except (OSError, DecodeError, ValueError, TypeError, KeyError) as error:
        raise SamplesError(
            f"cannot read {str(path)!r} as a tensor: {error}",
            hint="ONNX test data has input_0.pb, input_1.pb, ..., a TensorProto each",
        ) from error


def run_python_samples(
    name: str, project: Path, interpreter: str | None, limit: int | None, scratch: Path
) -> tuple[Iterator[Sample], Array | None]:
    """Return what a hook yields, after running it to its end in a separate process.

    Raises:
        SamplesError: The hook fails, labels only some samples, or its labels differ in shape.
    """
    run_hook(
        ["samples", name, str(scratch), *([str(limit)] if limit else [])], project, interpreter
    )
    labels = json.loads((scratch / "labels.json").read_text(encoding="utf-8"))
    labelled = sum(label is not None for label in labels)
    if labelled not in (0, len(labels)):
        raise SamplesError(
            f"{name} gives a label for {labelled} of {len(labels)} samples",
            hint="yield (inputs, label) for every sample, or for none",
        )
    samples = (
        (f"sample {n} of {name}", hook.load_arrays(scratch / f"{n}.npz"))
        for n in range(len(labels))
    )
    return samples, _make_label_array(name, labels) if labelled else None


def _make_label_array(name: str, labels: list[Any]) -> Array:
    try:
        return np.array(labels)
    except (ValueError, OverflowError) as error:
        raise SamplesError(
            f"the labels of {name} do not go into one array: {error}",
            hint="yield a number, or an array of the same shape, with every sample",
        ) from error


def run_hook(
    arguments: Sequence[str], project: Path, interpreter: str | None, about: str = ""
) -> None:
    """Run ``hook.py`` in the user's interpreter with the project's folder on the path.

    The user sees its output, or the last lines of a long one; ``about`` says with what it was
    called.

    Raises:
        SamplesError: It fails; the message has the last lines it printed.
    """
    result = run_supervised(
        [interpreter or sys.executable, hook.__file__, *arguments],
        timeout_s=HOOK_TIMEOUT_S,
        cwd=project,
    )
    if result.exit_code != 0:
        raise SamplesError(
            f"the hook {arguments[1]!r} failed with exit code {result.exit_code}"
            + result.last_lines,
            hint=f"run it yourself in {str(project)!r}; 'interpreter' in edgepack.yaml names the"
            " Python it needs",
        )
    printed = (result.text + result.stderr.decode("utf-8", "replace")).splitlines()
    called = f"{arguments[1]}{about and f' ({about})'}"
    if len(printed) > MOST_LINES:
        tell(f"{called}: {len(printed)} lines, of which these are the last {MOST_LINES}")
    for line in printed[-MOST_LINES:]:
        tell(f"{called}: {line}")
