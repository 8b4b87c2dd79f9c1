"""The process runs of a search on disk, so that one that was cut off goes on where it was."""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path

from edgepack.base.files import writing
from edgepack.base.schema import StrictModel
from edgepack.records.tuning import RunTimes


class JournaledRun(StrictModel):
    """One process run: what it found, or why its candidate is out, and how long it took."""

    key: str
    """Of the candidate's settings and of how long the run had to be."""
    found: RunTimes | None = None
    problem: str = ""
    took_s: float


class Journal:
    """Gives back the runs of an earlier search in their order, and then writes new ones down.

    A search with the same seed asks for the same runs in the same order, so it comes to the same
    place. A line that was cut off in the middle ends what is taken.

    Args:
        path: The file; None writes nothing down.

    Raises:
        ToolError: The file cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._kept: dict[str, deque[JournaledRun]] = defaultdict(deque)
        self.taken = 0
        """How many runs were given back."""
        if path is None or not path.is_file():
            return
        with writing("the runs of the search", path):
            whole = b""
            for line in path.read_bytes().split(b"\n"):
                try:
                    run = JournaledRun.model_validate_json(line)
                except ValueError:
                    break
                self._kept[run.key].append(run)
                whole += line + b"\n"
            path.write_bytes(whole)

    def take(self, key: str) -> JournaledRun | None:
        """Return the next run of a key that was made before; None where it has to be made."""
        kept = self._kept[key]
        if not kept:
            return None
        self.taken += 1
        return kept.popleft()

    def add(self, run: JournaledRun) -> None:
        """Write a run down.

        Raises:
            ToolError: The file cannot be written.
        """
        if self._path is None:
            return
        with writing("the runs of the search", self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(run.model_dump_json() + "\n")

    def drop(self) -> None:
        """Remove the file: the search has come to its end."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
