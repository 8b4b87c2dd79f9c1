"""Time what a program waits for when it calls ``predict``: the call as a whole, and its phases.

It is given what a user has: for an input that the bundle describes as an image a picture, for one
that it describes as tokens a text, each made of the first golden sample, so that there is something
in the answers. A picture has :data:`CAMERA`'s size, unless the model itself takes pictures of any
size. Whole calls and calls in phases take turns, so that what disturbs one disturbs the other.

Needs Python 3.8 or newer and what the loader needs; where Pillow is there, decoding is timed, too.
"""

from __future__ import annotations

import io
import json
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import edgepack_binding as binding  # type: ignore[import-not-found]
import edgepack_images as images  # type: ignore[import-not-found]
import edgepack_loader as loader  # type: ignore[import-not-found]
import edgepack_resizing as resizing  # type: ignore[import-not-found]
import edgepack_sysfs as sysfs  # type: ignore[import-not-found]
import numpy as np

CAMERA = (1280, 720)
"""Width and height in pixels of pictures: HD video, as cameras of boards give it."""
JPEG_QUALITY = 90
LEAST_ROUNDS, MOST_ROUNDS = 3, 300
"""A round is a whole call and one in phases."""
PHASES = ("decode", "preprocess", "copy_in", "run", "copy_out", "answers")
"""In the order in which they happen; ``decode`` comes before ``predict``, the others are in it."""
MAX_PROBLEM = 1000

Json = Dict[str, Any]


class Given(NamedTuple):
    """What ``predict`` is given."""

    values: Dict[str, Any]
    """By input."""
    files: Dict[str, bytes]
    """By input, the JPEG that a picture is decoded from before."""
    words: str
    """What that is."""
    undecoded: str
    """Why there is no such file."""

    def decode(self) -> Dict[str, Any]:
        """Return what ``predict`` is given, with pictures out of their files."""
        return {**self.values, **{name: _decode(file) for name, file in self.files.items()}}


def time_phases(model: Any, warm_up_s: float, duration_s: float) -> Json:
    """Return how long calls of ``predict`` took, and their phases.

    Args:
        model: As the loader gives it.
        warm_up_s: For how long rounds are not kept.
        duration_s: For how long they are.
    """
    try:
        given = make_given(model.bundle)
        call = Call(model, given)
        rounds = call.make_rounds(warm_up_s, duration_s)
    except (ValueError, TypeError, loader.LoadError, *loader.ORT_ERRORS) as error:
        why = " ".join(str(error).split())[:MAX_PROBLEM]
        not_measured: Json = sysfs.make_not_measured(f"no call of predict could be timed: {why}")
        return not_measured
    names = (*PHASES, "predict")
    times: Json = dict(zip(names, map(list, zip(*rounds))))  # noqa: B905 (unknown to Python 3.8)
    untimed = {"decode": given.undecoded, "copy_in": call.uncopied, "copy_out": call.uncopied}
    for name, why in untimed.items():
        if why:
            times[name] = sysfs.make_not_measured(why)
    found = {f"{name}_ns": each for name, each in times.items()}
    return {"given": given.words, "found": call.count_found(), **found}


class Call:
    """Calls of ``predict`` for one thing that is given.

    Attributes:
        uncopied: Why copies are not timed; empty where they are.
    """

    def __init__(self, model: Any, given: Given) -> None:
        self._model, self._given = model, given
        self._values = given.decode()
        self._bound: Any = None
        self.uncopied = self._bind()

    def _bind(self) -> str:
        """Keep inputs and outputs on the device where it has a memory of its own, or say why not.

        Then copies are in ``run``, as they are in :meth:`Model.predict`.
        """
        if binding.find_memory(self._model.entry) == binding.HOST:
            return "it computes in the memory that the program has its tensors in"
        try:
            self._bound = self._model.bind(self._model.make_feed(self._values).arrays)
            self._bound.run()
        except (ValueError, *loader.ORT_ERRORS) as error:
            self._bound = None
            return f"the copies are in the run: {' '.join(str(error).split())}"[:MAX_PROBLEM]
        return ""

    def count_found(self) -> str:
        """Return how many classes or objects are in the answers, by output."""
        answers = self._model.predict(self._values).items()
        return ", ".join(f"{name}: {len(found)}" for name, found in answers if type(found) is list)

    def make_rounds(self, warm_up_s: float, duration_s: float) -> List[Tuple[int, ...]]:
        """Return the nanoseconds of each phase, and then of a whole call, in each round."""
        warm = time.monotonic() + warm_up_s
        self._make_round()
        while time.monotonic() < warm:
            self._make_round()
        end = time.monotonic() + duration_s
        rounds = [self._make_round() for _ in range(LEAST_ROUNDS)]
        while len(rounds) < MOST_ROUNDS and time.monotonic() < end:
            rounds.append(self._make_round())
        return rounds

    def _make_round(self) -> Tuple[int, ...]:
        return (*self._time_phases(), self._time_whole())

    def _time_phases(self) -> List[int]:
        at = [time.perf_counter_ns()]
        values = self._given.decode()
        at.append(time.perf_counter_ns())
        feed = self._model.make_feed(values)
        at.append(time.perf_counter_ns())
        bound = self._bound
        if bound is None:
            at.append(time.perf_counter_ns())
            outputs = self._model.run(feed.arrays)
            at.append(time.perf_counter_ns())
        else:
            bound.write(feed.arrays)
            at.append(time.perf_counter_ns())
            bound.run()
            at.append(time.perf_counter_ns())
            outputs = bound.read()
        at.append(time.perf_counter_ns())
        self._model.make_answers(outputs, feed)
        at.append(time.perf_counter_ns())
        return [at[number + 1] - from_ns for number, from_ns in enumerate(at[:-1])]

    def _time_whole(self) -> int:
        began = time.perf_counter_ns()
        self._model.predict(self._values)
        return time.perf_counter_ns() - began


def _find_described(bundle: Any) -> Dict[str, Any]:
    """Return the inputs that are pictures or texts, with their descriptions."""
    described: Mapping[str, Any] = bundle.manifest.get("input_descriptions") or {}
    return {
        name: each for name, each in described.items() if each.get("image") or each.get("tokens")
    }


def make_given(bundle: Any) -> Given:
    """Return what a user would give, made of the first golden sample.

    Raises:
        ValueError: Nothing can be made of it.
    """
    sample = bundle.read_golden_inputs(0)
    described = _find_described(bundle)
    values: Dict[str, Any] = {}
    pictures: Dict[str, Any] = {}
    words = []
    for name in bundle.meaning.needed:
        about = described.get(name, {})
        values[name] = sample[name]
        if about.get("image"):
            values[name] = pictures[name] = _make_picture(sample[name], about["image"])
        elif about.get("tokens"):
            values[name] = _make_text(sample[name], bundle, about["tokens"]["file"])
            words.append(f"a text of {len(values[name])} characters")
    files, undecoded = _encode_pictures(pictures)
    words += [_format_picture(each, files.get(name)) for name, each in pictures.items()]
    return Given(values, files, ", ".join(words) or "tensors", undecoded)


def _format_picture(picture: Any, file: Optional[bytes]) -> str:
    if isinstance(picture, bytes):
        return f"a picture's file of {len(picture) / 1e3:.0f} kB"
    of = f" (JPEG of {len(file) / 1e3:.0f} kB)" if file else ""
    return f"a picture of {picture.shape[1]} x {picture.shape[0]}{of}"


def _make_picture(array: np.ndarray, described: Mapping[str, Any]) -> Any:
    """Return what became a sample: of a model that takes pictures or files that very one."""
    if array.ndim == 1:
        return array.tobytes()
    if array.dtype == np.uint8:
        return array
    return make_picture(array, described, *CAMERA)


def make_picture(
    array: np.ndarray, described: Mapping[str, Any], width: int, height: int
) -> np.ndarray:
    """Return a picture that becomes nearly this tensor again, as far as it shows the picture.

    Args:
        array: As ``edgepack_images.make_tensor`` gives it.
        described: ``image`` of the input.
        width: Of the picture, in pixels.
        height: Of the picture, in pixels.

    Returns:
        uint8 ``(height, width, 3)``, RGB. What the tensor does not show is its edge, repeated.
    """
    values = array[0].astype(np.float32)
    if described["layout"] == "NCHW":
        values = values.transpose(1, 2, 0)
    if described["std"]:
        values = values * np.asarray(described["std"], np.float32)
    if described["mean"]:
        values = values + np.asarray(described["mean"], np.float32)
    values = values / np.float32(described["scale"] or 1.0)
    pixels = np.clip(np.rint(np.nan_to_num(values)), 0, 255).astype(np.uint8)
    if described["order"] == "GRAY":
        pixels = np.repeat(pixels, 3, axis=2)
    elif described["order"] == "BGR":
        pixels = pixels[:, :, ::-1]
    place = images.find_placement(width, height, described["resize"])
    rows, columns = place.rows, place.columns
    shown = pixels[
        rows.start + place.top : rows.stop + place.top,
        columns.start + place.left : columns.stop + place.left,
    ]
    around = ((rows.start, place.height - rows.stop), (columns.start, place.width - columns.stop))
    scaled = np.pad(shown, (*around, (0, 0)), mode="edge")
    return np.asarray(resizing.resize_pixels(scaled, width, height))


def _make_text(ids: np.ndarray, bundle: Any, file: str) -> str:
    """Return the text of token ids, or of UTF-8 where the model makes the ids itself.

    Raises:
        ValueError: None of them is a word.
    """
    if ids.dtype == np.uint8:
        return ids.tobytes().decode("utf-8")
    tokenizer = json.loads((bundle.folder / "files" / file).read_bytes().decode("utf-8"))
    prefix = tokenizer["model"]["continuing_subword_prefix"]
    words = {number: word for word, number in tokenizer["model"]["vocab"].items()}
    for added in tokenizer.get("added_tokens") or []:
        words.pop(added["id"], None)
    text = ""
    for number in ids.reshape(-1).tolist():
        word = words.get(number, "")
        text += word[len(prefix) :] if word.startswith(prefix) else f" {word}"
    text = " ".join(text.split())
    if not text:
        raise ValueError(f"the first golden sample has no words of {file}")
    return text


def _encode_pictures(pictures: Mapping[str, Any]) -> Tuple[Dict[str, bytes], str]:
    """Return the pictures as files, or why there are none."""
    if not pictures:
        return {}, "no input is a picture"
    if any(isinstance(picture, bytes) for picture in pictures.values()):
        return {}, "the model does it itself: it is in the run"
    try:
        return {name: _encode(picture) for name, picture in pictures.items()}, ""
    except (ImportError, OSError) as error:
        return {}, f"there is no Pillow that reads JPEG: {error}"


def _encode(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def _decode(file: bytes) -> np.ndarray:
    """Return a picture as uint8 ``(H, W, 3)``, as docs/answers.md shows it."""
    from PIL import Image, ImageOps

    photo = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB")
    return np.asarray(photo)
