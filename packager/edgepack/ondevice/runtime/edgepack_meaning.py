"""Makes a bundle's inputs and reads its outputs, as the manifest describes them.

Needs Python 3.8 or newer and numpy; nothing else.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

if __package__:
    from . import edgepack_answers as answers
    from . import edgepack_images as images
    from . import edgepack_layouts as layouts
    from . import edgepack_shapes as shapes
    from . import edgepack_sounds as sounds
    from . import edgepack_wordpiece as wordpiece
else:  # a bundle's
    import edgepack_answers as answers  # type: ignore[import-not-found,no-redef]
    import edgepack_images as images  # type: ignore[import-not-found,no-redef]
    import edgepack_layouts as layouts  # type: ignore[import-not-found,no-redef]
    import edgepack_shapes as shapes  # type: ignore[import-not-found,no-redef]
    import edgepack_sounds as sounds  # type: ignore[import-not-found,no-redef]
    import edgepack_wordpiece as wordpiece  # type: ignore[import-not-found,no-redef]

Given = Union[Mapping[str, Any], np.ndarray, str, bytes]
"""Pictures, texts, sounds and tensors by input, or the only one itself."""


class Feed(NamedTuple):
    """The model's inputs."""

    arrays: Dict[str, np.ndarray]
    place: Optional[images.Placement]
    """The picture's place in the input; None unless there is exactly one picture of known size."""


def has_few(shape: Sequence[Union[int, str]]) -> bool:
    """Return whether a sample of an output has a known, small number of values.

    Args:
        shape: Of the output; a first axis without a fixed size counts the samples.
    """
    sizes = [1 if isinstance(size, str) and not axis else size for axis, size in enumerate(shape)]
    fixed = [size for size in sizes if isinstance(size, int)]
    return len(fixed) == len(sizes) and math.prod(fixed) <= MOST_DECISIONS


class Meaning:
    """Makes tensors of pictures and texts, and answers of tensors. Threads may share it.

    Args:
        manifest: The bundle's.
        inputs: What the model takes.
        read: Returns the text of one of the bundle's files by its name in the project.
    """

    def __init__(
        self,
        manifest: Mapping[str, Any],
        inputs: shapes.InputShapes,
        read: Callable[[str], str],
    ) -> None:
        described: Mapping[str, Mapping[str, Any]] = manifest.get("input_descriptions") or {}
        self._specs = {spec.name: spec for spec in inputs.inputs}
        self._images = {n: d["image"] for n, d in described.items() if d.get("image")}
        self._texts = {n: d["tokens"] for n, d in described.items() if d.get("tokens")}
        self._sounds = {n: d["sound"] for n, d in described.items() if d.get("sound")}
        self._outputs: Dict[str, Any] = dict(manifest.get("output_descriptions") or {})
        for spec in manifest.get("outputs", ()):
            described_so = self._outputs.get(spec["name"], _RAW)["kind"]
            if described_so == "probability" and not has_few(spec["shape"]):
                self._outputs[spec["name"]] = _RAW
        self._read_too = {n: layouts.list_read_too(d) for n, d in self._outputs.items()}
        self._made = {tokens[key] for tokens in self._texts.values() for key in _BESIDE_IDS}
        self.needed = [spec.name for spec in inputs.needed if spec.name not in self._made]
        self._read = read

    @property
    def files(self) -> List[str]:
        """The inputs that are a picture's file, which the model decodes itself."""
        return [name for name in self._images if len(self._specs[name].shape) == 1]

    def make_feed(self, given: Given) -> Feed:
        """Return tensors for what a caller gives.

        Args:
            given: By input, or the one itself where only one is needed: a picture as uint8
                ``(H, W, 3)``, RGB, for one that is described as an image, or a file's bytes where
                the model decodes them itself; a text for one that is described as tokens; the
                bytes of a ``.wav`` file, or its tensor, for one that is described as sound; for any
                other its tensor.

        Raises:
            ValueError: A picture or sound is none, a picture too long and thin for a model that
                scales it itself, a sound not as it is described; or an input is given that is made
                of a text.
            TypeError: A text is none.
        """
        if not isinstance(given, Mapping):
            if len(self.needed) != 1:
                raise ValueError(
                    f"the model has several inputs: pass a dict with {', '.join(self.needed)}"
                )
            given = {self.needed[0]: given}
        arrays: Dict[str, np.ndarray] = {}
        places = []
        for name, value in given.items():
            if name in self._images:
                arrays[name], place = self._make_picture(name, value)
                places.append(place)
            elif name in self._texts:
                arrays.update(self._make_tokens(name, value))
            elif name in self._sounds and isinstance(value, (bytes, bytearray, memoryview)):
                spec = self._specs[name]
                arrays[name] = sounds.make_tensor(
                    bytes(value), self._sounds[name], spec.dtype, len(spec.shape)
                )
            elif name in self._made:
                raise ValueError(f"the input {name!r} is made of the text: leave it out")
            else:
                arrays[name] = np.asarray(value)
        return Feed(arrays, places[0] if len(places) == 1 else None)

    def _make_picture(self, name: str, value: Any) -> Tuple[np.ndarray, Optional[images.Placement]]:
        """Return a picture's tensor, or the picture where the model does the rest itself."""
        spec, described = self._specs[name], self._images[name]
        if len(spec.shape) == 1:
            # The model decodes the file itself: where the picture lies is not known.
            return _read_bytes(value), None
        pixels = np.asarray(value)
        images.check(pixels)
        place = images.find_placement(pixels.shape[1], pixels.shape[0], described["resize"])
        if spec.dtype == "uint8":
            images.check_scaled(place)
            return pixels, place
        return images.make_tensor(pixels, described).astype(spec.dtype, copy=False), place

    def _make_tokens(self, name: str, text: object) -> Dict[str, np.ndarray]:
        if not isinstance(text, str):
            raise TypeError(f"the input {name!r} is a text, not a {type(text).__name__}")
        tokens, spec = self._texts[name], self._specs[name]
        if spec.dtype == "uint8":
            # The model makes the tokens itself.
            return {name: np.frombuffer(self._in_model[name].encode_text(text), np.uint8)}
        fixed = isinstance(spec.shape[-1], int)
        encoded = self._tokenizers[name].encode(text, tokens["length"], pad=fixed)
        values = {name: encoded.input_ids}
        values.update({tokens[key]: getattr(encoded, key) for key in _BESIDE_IDS})
        return {
            key: np.array([ids], self._specs[key].dtype)
            for key, ids in values.items()
            if key in self._specs
        }

    def make_answers(
        self,
        outputs: Mapping[str, np.ndarray],
        feed: Feed,
        options: Optional[answers.AnswerOptions] = None,
    ) -> Dict[str, answers.Answer]:
        """Return what the outputs of a feed mean; those without a description are as they are.

        Outputs that others are read with have no answer of their own.

        Raises:
            ValueError: An output has not the shape that its description wants, or options allow a
                label that it has not.
        """
        found: Dict[str, answers.Answer] = {}
        without = {read for several in self._read_too.values() for read in several}
        for name in (name for name in outputs if name not in without):
            described = {**self._outputs.get(name, _RAW), **self._priors.get(name, {})}
            output = layouts.join_outputs([outputs[each] for each in self.list_read(name)])
            mask = feed.arrays.get(described.get("mask") or "")
            found[name] = answers.make_answer(
                output, described, self._labels.get(name, []), feed.place, mask, options
            )
        return found

    @property
    def takes_pictures(self) -> bool:
        """Whether an input is described as an image."""
        return bool(self._images)

    @property
    def takes_texts(self) -> bool:
        """Whether an input is described as tokens."""
        return bool(self._texts)

    @property
    def takes_sounds(self) -> bool:
        """Whether an input is described as sound."""
        return bool(self._sounds)

    @property
    def detections(self) -> List[str]:
        """The outputs whose answer is objects in a picture."""
        return [name for name, each in self._outputs.items() if each["kind"] == "detection"]

    def find_kind(self, name: str) -> str:
        """Return the kind of an output: ``raw`` of one without a description."""
        return str(self._outputs.get(name, _RAW)["kind"])

    def list_read(self, name: str) -> List[str]:
        """Return an output, and those that it is read with."""
        return [name, *self._read_too.get(name, ())]

    def find_labels(self, name: str) -> List[str]:
        """Return an output's labels by index; empty where it has none."""
        return self._labels.get(name, [])

    def read_files(self) -> None:
        """Read all files that descriptions name now, so that the bundle may be removed later.

        Raises:
            LoadError: One is missing.
        """
        _ = self._labels, self._priors
        for name in self._texts:
            _ = self._in_model if self._specs[name].dtype == "uint8" else self._tokenizers

    @cached_property
    def _labels(self) -> Dict[str, List[str]]:
        files = {name: d["labels"] for name, d in self._outputs.items() if d.get("labels")}
        return {name: answers.read_labels(self._read(file)) for name, file in files.items()}

    @cached_property
    def _priors(self) -> Dict[str, Dict[str, np.ndarray]]:
        files = {name: d["priors"] for name, d in self._outputs.items() if d.get("priors")}
        return {
            name: {"prior_boxes": layouts.read_priors(self._read(file))}
            for name, file in files.items()
        }

    @cached_property
    def _in_model(self) -> Dict[str, wordpiece.InModel]:
        return {
            name: wordpiece.InModel.parse(self._read(tokens["file"]))
            for name, tokens in self._texts.items()
        }

    @cached_property
    def _tokenizers(self) -> Dict[str, wordpiece.WordPiece]:
        return {
            name: wordpiece.WordPiece.parse(self._read(tokens["file"]))
            for name, tokens in self._texts.items()
        }


def _read_bytes(file: Any) -> np.ndarray:
    """Return an image file's bytes as uint8 ``(N,)``.

    Other bytes are refused here: on those the decoding operator ends the process
    (onnxruntime-extensions 0.15.2, tried).
    """
    raw = isinstance(file, (bytes, bytearray, memoryview))
    data = np.frombuffer(file, np.uint8) if raw else np.asarray(file)
    begins = data.ndim == 1 and data.dtype == np.uint8 and data[:8].tobytes().startswith(_FILES)
    if not begins:
        raise ValueError(
            "the picture is not the bytes of a JPEG or PNG file, which the model decodes itself:"
            " pathlib.Path('picture.jpg').read_bytes() is that"
        )
    return data


_BESIDE_IDS = ("attention_mask", "token_type_ids")
_FILES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
"""What JPEG and PNG files begin with."""
_RAW: Mapping[str, Any] = {"kind": "raw"}
MOST_DECISIONS = 1000
"""Probabilities whose answer is decisions: of more, the answer is the tensor."""
