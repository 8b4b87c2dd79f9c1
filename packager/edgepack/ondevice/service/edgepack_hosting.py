"""Bundles that are served: opened, proven by their golden outputs, and exchanged while they run.

A folder may be a link, as ``current`` of a device is. When it leads elsewhere the release there
is opened and proven beside the one that answers, and answers from then on; requests that came
before are still answered by the old one. A release that does not work is not taken; why is told.

Needs what the loader needs: Python 3.8, numpy and onnxruntime.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, Union

import numpy as np

if __package__:
    from ..runtime import edgepack_answers as answers
    from ..runtime import edgepack_loader as loader
    from ..runtime import edgepack_meaning as meanings
    from . import edgepack_media as media
else:  # a bundle's, in the folder beside the loader
    sys.path[:0] = [str(Path(__file__).resolve().parents[number]) for number in (0, 1)]
    import edgepack_answers as answers  # type: ignore[import-not-found,no-redef]
    import edgepack_loader as loader  # type: ignore[import-not-found,no-redef]
    import edgepack_meaning as meanings  # type: ignore[import-not-found,no-redef]
    import edgepack_media as media  # type: ignore[import-not-found,no-redef]

Arrays = Dict[str, np.ndarray]
LoadError = loader.LoadError
FAILURES: Tuple[Type[Exception], ...] = (LoadError, *loader.ORT_ERRORS)
"""What running a bundle raises where it does not work."""
_BROKEN: Tuple[Type[Exception], ...] = (
    *FAILURES,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    TypeError,
)
"""What opening a folder raises that may hold anything."""
_PIPELINE = "pipeline"
"""``kind`` in the manifest of a bundle of several models."""


def read_name(folder: Path) -> str:
    """Return the project of a bundle.

    Raises:
        LoadError: The folder is none.
    """
    try:
        name = json.loads((folder / "manifest.json").read_bytes())["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{folder} is no complete bundle: {error}") from error
    return str(name)


class Tensor(NamedTuple):
    """What a model takes or gives."""

    name: str
    dtype: str
    shape: Tuple[Union[int, str], ...]


class Release:
    """One opened bundle. Its golden outputs were right on this machine.

    Args:
        folder: The bundle's, without links.

    Attributes:
        name: Of the project.
        version: Of the bundle.
        digest: sha256 of its manifest, by which devices and registries know it.
        variant: In use; of several models all of them, as ``part=variant``.
        passed_over: Variants that come before it, each with the reason.
        inputs: What it takes.
        outputs: What it gives.
        load_s: How long opening and proving took.

    Raises:
        LoadError: No variant works here, or the folder is no bundle.
    """

    def __init__(self, folder: Path) -> None:
        began_s = time.monotonic()
        try:
            text = (folder / "manifest.json").read_bytes()
            manifest: Mapping[str, Any] = json.loads(text)
        except (OSError, ValueError) as error:
            raise LoadError(f"{folder} is no complete bundle: manifest.json: {error}") from error
        self.folder = folder
        self.digest = hashlib.sha256(text).hexdigest()
        self.name: str = manifest["name"]
        self.version: str = manifest["version"]
        self.inputs = _list_tensors(manifest["inputs"])
        self.passed_over: List[Tuple[str, str]] = []
        self.model: Any = None
        self._pipeline: Any = None
        if manifest.get("kind") == _PIPELINE:
            self._pipeline = _load_pipeline(folder)
            self.outputs = [Tensor(*spec) for spec in self._pipeline.output_specs]
            self.variant: str = self._pipeline.combination
            for part, model in self._pipeline.parts.items():
                self.passed_over += [(f"{part}={n}", why) for n, why in model.passed_over]
        else:
            self.model = loader.load(folder)
            self.outputs = _list_tensors(manifest["outputs"])
            self.model.bundle.meaning.read_files()
            self.model.counts_outside = True
            self.variant = self.model.variant
            self.passed_over = list(self.model.passed_over)
        self.load_s = time.monotonic() - began_s

    @property
    def takes(self) -> List[str]:
        """What answers are given to: ``image``, ``text`` and ``audio``, as content types begin.

        An input without a description may be a picture's pixels. Several models take pictures,
        where a stage cuts them.
        """
        if self.model is None:
            given = {spec.name for spec in self._pipeline.inputs}
            return ["image"] if self._pipeline.chain.pictures & given else []
        meaning = self.model.bundle.meaning
        found = {"image": True, "text": meaning.takes_texts, "audio": meaning.takes_sounds}
        return [kind for kind, is_taken in found.items() if is_taken]

    def check_options(self, options: "answers.AnswerOptions") -> None:
        """Raise ValueError where answers are not made by options: those of several models."""
        if self.model is None and options != answers.AnswerOptions():
            raise ValueError("a bundle of several models has no options for answers")

    def make_feed(self, given: Any) -> Any:
        """Return what :meth:`make_answers` takes for what a client sent; ``arrays`` of it run.

        Args:
            given: A picture's pixels, or its file where the model decodes it; a text; a sound's
                file.

        Raises:
            ValueError: It is not what the one needed input takes, or there are several.
            TypeError: Likewise.
        """
        if self.model is None:
            return meanings.Feed(self._pipeline.check_inputs(given), None)
        feed = self.model.make_feed(_rewrite(given) if self.decodes else given)
        self.model.check_sizes(feed.arrays)
        return feed

    def make_answers(
        self, outputs: Arrays, feed: Any, options: "answers.AnswerOptions"
    ) -> Dict[str, Any]:
        """Return answers as lists and dicts of JSON.

        Raises:
            ValueError: An output is not as it is described.
        """
        if self.model is not None:
            found = self.model.make_answers(outputs, feed, options)
            return {name: answers.make_json(answer) for name, answer in found.items()}
        return {
            name: _make_json(answer)
            for name, answer in self._pipeline.make_answers(outputs).items()
        }

    @property
    def decodes(self) -> bool:
        """Whether checking a request reads pictures: its model takes their files."""
        return self.model is not None and bool(self.model.bundle.meaning.files)

    def check(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return what :meth:`run` takes for the inputs of a request.

        Raises:
            ValueError: A name, dtype or shape is not what the model takes, or it is larger than any
                model of the variant; or a picture's file cannot be read.
        """
        if self.model is not None:
            checked: Arrays = self.model.check_inputs(inputs)
            for name in self.model.bundle.meaning.files:
                checked[name] = _rewrite(checked[name])
            self.model.check_sizes(checked)
            return checked
        return dict(self._pipeline.check_inputs(inputs))

    def find_kind(self, feed: Arrays) -> Any:
        """Return what requests have to share to be one batch; None where none can be joined."""
        if self.model is None or self.model.joining.explain_fixed():
            return None
        return (self.digest, self.model.joining.find_kind(feed))

    def run(self, feeds: Sequence[Arrays]) -> List[Arrays]:
        """Return the outputs of each of some checked inputs of one kind.

        Of several models each call begins a stream: a connection is none.
        """
        if self.model is None:
            return [self._run_pipeline(feed) for feed in feeds]
        if len(feeds) == 1:
            return [self.model.run(feeds[0])]
        found: List[Arrays] = self.model.joining.run(feeds)
        return found

    def _run_pipeline(self, feed: Arrays) -> Arrays:
        self._pipeline.reset()
        outputs: Arrays = self._pipeline(feed)
        return outputs

    def warm_up(self, joined: int) -> int:
        """Run batches of up to so many golden samples; return the largest that is as right as one.

        So the first requests find ready what is made at the first run of a size.
        """
        if joined < 2 or self.model is None or self.model.joining.explain_fixed():
            return 1
        feed = self.model.check_inputs(self.model.bundle.read_golden_inputs(0))
        proven = [n for n in range(2, joined + 1) if self.model.joining.is_proven(feed, n)]
        return max(proven, default=1)


def _load_pipeline(folder: Path) -> Any:
    # Bundles of one model do not have it.
    try:
        if __package__:
            from ..runtime import edgepack_pipeline as pipelines
        else:
            import edgepack_pipeline as pipelines  # type: ignore[import-not-found,no-redef]
    except ModuleNotFoundError as error:
        raise LoadError(
            f"{folder} is of several models, and this service runs the code of a bundle of one:"
            " start it again"
        ) from error
    return pipelines.load(folder)


def _rewrite(file: Any) -> np.ndarray:
    return np.frombuffer(media.rewrite_picture(bytes(file)), np.uint8)


def _make_json(answer: Any) -> Any:
    """Return an answer of several models: objects, an array, or a part's answer to each object."""
    if isinstance(answer, list) and not all(isinstance(a, answers.Detection) for a in answer):
        return [answers.make_json(each) for each in answer]
    return answers.make_json(answer)


def _list_tensors(entries: Sequence[Mapping[str, Any]]) -> List[Tensor]:
    return [Tensor(entry["name"], entry["dtype"], tuple(entry["shape"])) for entry in entries]


class Hosted:
    """A bundle's place in the service: the folder that is followed, and the release in use.

    Args:
        folder: The bundle's, or a link to it.
        joined: How many requests are joined to a batch at most.

    Attributes:
        release: In use; None until the first is proven.
        refused: Why the release that the folder leads to is not in use; empty where it is.
    """

    def __init__(self, folder: Path, joined: int = 1) -> None:
        self.folder = folder
        self.joined = joined
        self.release: Optional[Release] = None
        self.refused = ""
        self._seen: Optional[Tuple[str, bytes]] = None

    def is_current(self) -> bool:
        """Whether the folder leads to what was opened last, or tried."""
        return self._seen == self._look()

    def _look(self) -> Tuple[str, bytes]:
        """Return where the folder leads, and the manifest there; nothing of it where it is gone."""
        place = self.folder.resolve()
        try:
            return str(place), (place / "manifest.json").read_bytes()
        except OSError:
            return str(place), b""

    def open(self) -> None:
        """Open and prove what the folder leads to, and use it if it works.

        A folder that is gone is left to who removed it: what is in use stays.
        """
        self._seen = self._look()
        try:
            release = Release(Path(self._seen[0]))
            release.warm_up(self.joined)
        except _BROKEN as error:
            self.refused = str(error) if isinstance(error, FAILURES) else repr(error)
            return
        if self.release is not None and release.name != self.release.name:
            self.refused = f"it is {release.name!r}, and this was {self.release.name!r}"
            return
        self.release, self.refused = release, ""
