"""Sounds in ``.wav`` files, read as devices read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime import edgepack_sounds as sounds
from edgepack.project.inputs import SoundInput
from edgepack.samples.sample_set import Sample
from edgepack.samples.spreading import choose_spread

SUFFIXES = frozenset({".wav"})


def read_sound(path: Path) -> sounds.Sound:
    """Return the sound in a file.

    Raises:
        SamplesError: It is no ``.wav``, holds something else than PCM or floats, or nothing, or
            ends before its end.
    """
    try:
        return sounds.read(_read(path), repr(str(path)))
    except sounds.SoundError as error:
        raise SamplesError(str(error), hint=error.advice) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SamplesError(
            f"cannot read {str(path)!r}: {error.strerror}", hint="check the file's permissions"
        ) from error


def list_sound_files(folder: Path, limit: int | None = None) -> list[Path]:
    """Return the sounds under a folder, sorted by path; with a limit, evenly spread over them.

    Raises:
        SamplesError: There is no such folder, or no sound in it.
    """
    if not folder.is_dir():
        raise SamplesError(
            f"there is no folder {str(folder)!r}", hint="check 'sounds' in edgepack.yaml"
        )
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not files:
        raise SamplesError(
            f"there are no sounds in {str(folder)!r}",
            hint="sounds end in .wav; convert others: ffmpeg -i OLD -c:a pcm_s16le NEW.wav",
        )
    return choose_spread(files, limit)


def read_described_sound(path: Path, described: SoundInput) -> Array:
    """Return the values of a sound that is as the project says: float32 ``(channels, N)``.

    Raises:
        SamplesError: It has another rate or number of channels, or as :func:`read_sound`.
    """
    try:
        return sounds.read_described(_read(path), described.model_dump(), repr(str(path)))
    except sounds.SoundError as error:
        raise SamplesError(str(error), hint=error.advice) from error


def read_sound_tensor(path: Path, described: SoundInput, dtype: str, rank: int) -> Array:
    """Return what an input of a dtype and a rank gets of a sound: its beginning, then silence.

    Raises:
        SamplesError: As :func:`read_described_sound`.
    """
    try:
        return sounds.make_tensor(_read(path), described.model_dump(), dtype, rank, repr(str(path)))
    except sounds.SoundError as error:
        raise SamplesError(str(error), hint=error.advice) from error


def _find_rank(spec: TensorSpec) -> int:
    return 2 if spec.shape is None else len(spec.shape)


def read_sound_samples(
    files: Sequence[Path], folder: Path, spec: TensorSpec, described: SoundInput
) -> Iterator[Sample]:
    """Yield one sample per file: its beginning, filled up with silence.

    Raises:
        SamplesError: As :func:`read_described_sound`.
    """
    for path in files:
        name = path.relative_to(folder).as_posix()
        tensor = read_sound_tensor(path, described, spec.dtype, _find_rank(spec))
        yield name, {spec.name: tensor}


def read_sound_streams(
    files: Sequence[Path],
    folder: Path,
    spec: TensorSpec,
    described: SoundInput,
    first: Mapping[str, Array],
) -> Iterator[Sample]:
    """Yield the windows of each file in order; each file is a stream.

    Args:
        files: The sounds.
        folder: In which they lie.
        spec: Of the input that takes them.
        described: With ``length``. What is left of a file behind its last window is left out.
        first: What the first window of a file holds beside: the state.

    Raises:
        SamplesError: A file is shorter than a window, or as :func:`read_described_sound`.
    """
    length = described.length or 0
    for path in files:
        values = read_described_sound(path, described)
        if values.shape[1] < length:
            raise SamplesError(
                f"{str(path)!r} has {values.shape[1]} values, and a window has {length}",
                hint="remove it, or give a longer sound",
            )
        begins = range(0, values.shape[1] - length + 1, described.hop or length)
        for number, begin in enumerate(begins):
            part = values[:, begin : begin + length]
            window = sounds.shape_window(part, spec.dtype, _find_rank(spec))
            name = f"{path.relative_to(folder).as_posix()}, window {number}"
            yield name, {spec.name: window, **(first if not number else {})}
