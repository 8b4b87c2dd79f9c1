"""What an image or sound is labelled with: its class by its folder, or what a CSV has for it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.samples.images import list_image_files
from edgepack.samples.sounds import SUFFIXES as SOUNDS
from edgepack.samples.sounds import list_sound_files

T = TypeVar("T")
_INT64_MAX = 2**63 - 1


def read_image_labels(files: Sequence[Path], folder: Path, labels: str, project: Path) -> Array:
    """Return the class index of each file: from a CSV of ``file,label``, or from its folder.

    With ``folders`` the classes are all subfolders of ``folder`` that hold images, sorted, even
    if none of a class is among ``files``. In a CSV the file is the path within ``folder``, or a
    bare name that only one image has.

    Raises:
        SamplesError: An image is in no class's folder, or the CSV is missing or wrong, has no row
            for an image, or does not say which image a row is for.
    """
    if labels == "folders":
        classes = _list_classes(_list_alike(files, folder), folder)
        return np.array([classes.index(path.relative_to(folder).parts[0]) for path in files])
    return np.array(match_by_path(files, folder, _read_label_table(project / labels), labels))


def read_image_texts(files: Sequence[Path], folder: Path, labels: Path) -> Array:
    """Return the text of each image, from a CSV of ``file,text``, as it is there: ``(images,)``.

    Raises:
        SamplesError: As :func:`read_image_labels`; or a row has more than two columns.
    """
    table: dict[str, str] = {}
    for row in _read_rows(labels):
        if len(row) > 2:
            raise SamplesError(
                f"{str(labels)!r} has {len(row)} columns in the row of {row[0]!r}: {row[1:4]}",
                hint='a text with a comma is in quotes: a.png,"one, two"',
            )
        _add_label(labels, table, row[0], row[1])
    return np.array(match_by_path(files, folder, table, labels.name))


def read_image_numbers(files: Sequence[Path], folder: Path, labels: Path) -> Array:
    """Return the number of each image, from a CSV of ``file,number``: float64 ``(images,)``.

    Raises:
        SamplesError: As :func:`read_image_labels`.
    """
    table: dict[str, float] = {}
    for row in _read_rows(labels):
        try:
            _add_label(labels, table, row[0], float(row[1]))
        except ValueError:
            continue  # a header
    return np.array(match_by_path(files, folder, table, labels.name), np.float64)


def read_image_sets(
    files: Sequence[Path], folder: Path, labels: Path, classes: int | None
) -> Array:
    """Return the classes of each image, from a CSV with a row of ``file,label`` for each of them.

    Args:
        files: The images.
        folder: In which they lie.
        labels: The CSV; a row without a label is of an image without any class.
        classes: How many there are; None where only the labels tell.

    Returns:
        int64 ``(images, classes)``: 1 for each class that an image is of.

    Raises:
        SamplesError: As :func:`read_image_labels`; or a label is none of the classes.
    """
    table: dict[str, set[int]] = {}
    for row in _read_rows(labels):
        name, text = PurePosixPath(row[0].strip()).as_posix(), row[1].strip()
        if text.isdecimal():
            table.setdefault(name, set()).add(_parse_class_index(labels, name, text))
        elif not text:
            table.setdefault(name, set())
    found = match_by_path(files, folder, table, labels.name)
    most = max((max(each) for each in found if each), default=0)
    if classes is not None and most >= classes:
        raise SamplesError(
            f"{str(labels)!r} has the label {most}, and the model has {classes} classes, 0 to"
            f" {classes - 1}",
            hint="subtract 1 from each where yours begin at 1",
        )
    sets = np.zeros((len(found), classes or most + 1), np.int64)
    for number, own in enumerate(found):
        sets[number, list(own)] = 1
    return sets


def match_by_path(
    files: Sequence[Path], folder: Path, table: Mapping[str, T], labels: str
) -> list[T]:
    """Return what a table has for each image: by its path within the folder, or its name alone.

    Raises:
        SamplesError: It has no row for an image, or several, or a name without a folder fits
            several images.
    """
    same_name = Counter(path.name for path in _list_alike(files, folder))
    found = [_find_label(path.relative_to(folder), table, same_name[path.name]) for path in files]
    known = [label for label in found if label is not None]
    if len(known) < len(files):
        first = files[found.index(None)].relative_to(folder).as_posix()
        raise SamplesError(
            f"{labels!r} has no label for {len(files) - len(known)} files, {first!r} first",
            hint=f"it names each file as it lies in {str(folder)!r}: {first}",
        )
    return known


def _list_alike(files: Sequence[Path], folder: Path) -> list[Path]:
    """Return all images of a folder, or all sounds, as the files are."""
    are_sounds = files[0].suffix.lower() in SOUNDS
    return list_sound_files(folder) if are_sounds else list_image_files(folder)


def _list_classes(images: Sequence[Path], folder: Path) -> list[str]:
    loose = [path.name for path in images if path.parent == folder]
    if loose:
        raise SamplesError(
            f"{len(loose)} files lie in {str(folder)!r} itself, {loose[0]!r} first: they have no"
            " class",
            hint="move each into the folder of its class, or remove it",
        )
    return sorted({path.relative_to(folder).parts[0] for path in images})


def _find_label(path: Path, table: Mapping[str, T], same_name: int) -> T | None:
    """Look an image up by its path within the folder, then by its name alone."""
    exact = table.get(path.as_posix())
    if exact is not None:
        return exact
    rows = [row for row in table if PurePosixPath(row).name == path.name]
    if not rows:
        return None
    if len(rows) > 1 or same_name > 1:
        raise SamplesError(
            f"the label of {path.as_posix()!r} is ambiguous: {same_name} files have this name,"
            f" and the rows {rows}",
            hint=f"write the file with its folders: {path.as_posix()}",
        )
    return table[rows[0]]


def _read_rows(path: Path) -> list[list[str]]:
    """Return the rows of a CSV that have two columns or more."""
    try:
        # Spreadsheets begin UTF-8 files with a byte order mark.
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [row for row in csv.reader(file) if len(row) >= 2]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SamplesError(
            f"cannot read the labels {str(path)!r}: {error}",
            hint="'labels' names a CSV file with rows of file,label, or is 'folders'",
        ) from error


def _read_label_table(path: Path) -> dict[str, int]:
    """Return the labels by file, as a POSIX path; rows without a number, as a header, are left."""
    table: dict[str, int] = {}
    for file_name, text in ((row[0], row[1].strip()) for row in _read_rows(path)):
        if text.isdecimal():
            label = _parse_class_index(path, file_name, text)
            _add_label(path, table, file_name, label)
    if not table:
        raise SamplesError(
            f"{str(path)!r} has no row of file,label with a number for a label",
            hint="labels are class indices: cat.jpg,3",
        )
    return table


def _add_label(path: Path, table: dict[str, T], file_name: str, label: T) -> None:
    name = PurePosixPath(file_name.strip()).as_posix()
    if table.setdefault(name, label) != label:
        raise SamplesError(
            f"{str(path)!r} labels {name!r} with {table[name]} and with {label}",
            hint="keep one of the two rows",
        )


def _parse_class_index(path: Path, file_name: str, text: str) -> int:
    # Python refuses to read numbers of thousands of digits.
    if len(text) > len(str(_INT64_MAX)) or int(text) > _INT64_MAX:
        raise SamplesError(
            f"{str(path)!r} labels {file_name!r} with {text[:30]}, more than 64 bits hold",
            hint="labels are class indices: cat.jpg,3",
        )
    return int(text)
