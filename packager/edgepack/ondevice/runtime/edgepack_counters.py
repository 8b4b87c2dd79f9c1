"""Counts what a loaded model does, for who asks for it; no inputs, no names of anybody.

Counted are loads, inferences, how long they take, errors by kind, and of some calls whether their
inputs lie outside the ranges that int8 was calibrated with. Calls count in memory; a thread adds
what is new to a small file (``edgepack_ring.py``) every five minutes and when the program ends.
Whatever goes wrong there is said once on stderr, and no inference fails or waits for it: the counts
stay in memory and are added later.

Needs Python 3.8 or newer on Linux or macOS, and nothing else.
"""

from __future__ import annotations

import atexit
import bisect
import contextlib
import glob
import logging
import os
import re
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
)

if __package__:
    from . import edgepack_ring as ring
else:  # a bundle's, in the folder of the loader
    sys.path.append(str(Path(__file__).resolve().parent))
    import edgepack_ring as ring  # type: ignore[import-not-found,no-redef]

VARIABLE = "EDGEPACK_STATS"
"""The environment variable that names the folder of the files."""
TEXTFILES_VARIABLE = "EDGEPACK_STATS_TEXTFILES"
"""That of node_exporter's textfile collector."""
BOUNDS_MS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
"""Upper ends of the histogram's buckets, included; one more has what is above."""
CHECK_EVERY = 17
"""Of how many calls one is checked against the ranges. A prime: periods of callers do not fit."""
FIRST_S = 15.0
"""After which time a program's counts are written first: one that is shorter writes once."""
EVERY_S = 300.0
KEPT = 8
"""Files of a project's releases that are kept, the newest ones."""
_JOIN_S = 5.0
_MOST = 4
"""Variants, kinds of errors and inputs that are told apart; others are one, ``other``."""
_MOST_PASSED_OVER = 8
_NAME_CHARACTERS = 40
_REASON_CHARACTERS = 96
_BOUNDS_NS = [round(bound * 1_000_000) for bound in BOUNDS_MS]
_BUCKETS = [str(number) for number in range(len(BOUNDS_MS) + 1)]
_NUMBERS = ("inferences", "took_ns", "checked")
_BY_NAME = ("buckets", "errors", "outside")
_LIMITED = ("errors", "outside", "variants")
_PATH = re.compile(
    r"(?<![\w.])(?:~|[A-Za-z]:)?[/\\][^\s'\",;:)]*"
    # Names in it may have spaces: it goes on to the last slash that is within a word.
    r"(?:[^'\",;:)/\\]*[^\s'\",;:)/\\][/\\][^\s'\",;:)]*)*"
)
_LOG = logging.getLogger("edgepack")

Counts = Dict[str, Any]


class About(NamedTuple):
    """What is counted: a release of a bundle and the variant in use."""

    model: str
    version: str
    release: str
    variant: str
    passed_over: Sequence[Tuple[str, str]]
    has_ranges: bool
    """Whether the variant knows ranges of its inputs."""


def make_plain(text: str, most: int) -> str:
    """Return printable ASCII of at most so many characters; paths, which may name people, go."""
    text = _PATH.sub("PATH", text)
    text = text.encode("ascii", "replace").decode("ascii")
    return re.sub(r"[^ -~]|[\"\\]", "?", text)[:most]


class Counters:
    """The counters of one loaded model; threads may share them.

    Args:
        folder: Of the files, which may not be there yet.
        about: What is counted.
        owner: The model. The thread ends after it is gone.
        errors: What an inference raises.
        textfiles: A folder for ``NAME.prom``, for node_exporter's textfile collector.

    Attributes:
        path: The file that the counts are added to.
    """

    def __init__(
        self,
        folder: str,
        about: About,
        owner: object,
        errors: Tuple[Type[Exception], ...],
        textfiles: str = "",
    ) -> None:
        self.about = about
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", about.model)[:64]
        self._folder, self._stem = os.path.abspath(os.path.expanduser(folder)), stem
        self.path = os.path.join(self._folder, f"{stem}-{about.release}{ring.SUFFIX}")
        self._textfiles = os.path.abspath(os.path.expanduser(textfiles)) if textfiles else ""
        self._textfile_name = f"edgepack-{stem}-{about.release}.prom"
        self._is_cleared = False
        self._owner, self._errors = weakref.ref(owner), errors
        self._told: Set[str] = set()
        self._begin()
        _OPEN.add(self)
        self._count({"loads": 1})

    def _begin(self) -> None:
        """Begin without counts and without a thread, as in a process that was forked."""
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._ended = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._calls = 0
        self._new: Counts = {}

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._keep, name="edgepack-stats", daemon=True)
        self._thread.start()

    def watch(self, call: Callable[..., Any], *given: Any) -> Any:
        """Call what is one inference, count it or what it raises, and return what it returns."""
        began_ns = time.perf_counter_ns()
        try:
            found = call(*given)
        except self._errors as error:
            self._count({"errors": {make_plain(type(error).__name__, _NAME_CHARACTERS): 1}})
            raise
        took_ns = time.perf_counter_ns() - began_ns
        bucket = _BUCKETS[bisect.bisect_left(_BOUNDS_NS, took_ns)]
        with self._lock:  # as _count, but this is each call's time
            new = self._new
            new["inferences"] = new.get("inferences", 0) + 1
            new["took_ns"] = new.get("took_ns", 0) + took_ns
            buckets = new.setdefault("buckets", {})
            buckets[bucket] = buckets.get(bucket, 0) + 1
            if self._thread is None:
                self._start_thread()
        return found

    def is_check_due(self) -> bool:
        """Whether the next call is one that is to be checked against the ranges."""
        if not self.about.has_ranges:
            return False
        with self._lock:
            self._calls += 1
            return self._calls % CHECK_EVERY == 1

    def count_checked(self, outside: Sequence[str]) -> None:
        """Count a call that was checked, and the inputs that had values outside their ranges."""
        names = {make_plain(name, _NAME_CHARACTERS): 1 for name in outside}
        self._count({"checked": 1, "outside": names})

    def _count(self, counts: Counts) -> None:
        with self._lock:
            add_counts(self._new, counts)
            if self._thread is None:
                self._start_thread()

    def _keep(self) -> None:
        wait_s = FIRST_S
        while not self._ended.wait(wait_s) and self._owner() is not None:
            self.flush()
            wait_s = EVERY_S
        self.flush()

    def close(self) -> None:
        """Have the thread write what is new and end; a disk that hangs is not waited for."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def flush(self) -> None:
        """Add what is new to the file, if it takes a write now; else it stays in memory."""
        with self._flushing:
            with self._lock:
                new, self._new = self._new, {}
            if not new:
                return
            try:
                self._make_place()
                record = ring.update(self.path, lambda before: self._sum_up(before, new))
            except (ring.Later, OSError) as error:
                if isinstance(error, OSError):
                    add_counts(new, {"failed_writes": 1})
                    self._tell(error)
                with self._lock:
                    add_counts(self._new, new)
                return
            if self._textfiles:
                self._write_textfile(record)

    def _tell(self, error: OSError) -> None:
        """Say what is wrong, once."""
        said = f"what {self.about.model} does is not counted on disk: {error}"
        if said not in self._told:
            self._told.add(said)
            _LOG.warning(said)

    def _make_place(self) -> None:
        """Make the folder, and room for a file: of many releases only the newest are kept."""
        if self._textfiles and not self._is_cleared:
            self._is_cleared = True
            # Of other releases; who still runs one writes it again.
            folder = glob.escape(self._textfiles)
            for path in glob.glob(os.path.join(folder, f"edgepack-{self._stem}-{'?' * 16}.prom*")):
                if not os.path.basename(path).startswith(self._textfile_name):
                    _remove(path)
        if os.path.exists(self.path):
            return
        os.makedirs(self._folder, exist_ok=True)
        there = glob.glob(os.path.join(glob.escape(self._folder), f"{self._stem}-{'?' * 16}.ring"))
        for path in sorted(there, key=_find_age_s)[KEPT - 1 :]:
            _remove(path)

    def _sum_up(self, before: Counts, new: Counts) -> Counts:
        new = dict(new)
        before = before if _is_ours(before) else {}
        now_s = int(time.time())
        names = ("loads", "failed_writes")
        whole: Counts = {name: new.pop(name) for name in names if name in new}
        totals = {
            "loads": before.get("loads", 0),
            "failed_writes": before.get("failed_writes", 0),
            "variants": before.get("variants", {}),
        }
        add_counts(totals, {**whole, "variants": {make_plain(self.about.variant, 40): new}})
        reasons = {
            make_plain(name, _NAME_CHARACTERS): make_plain(why, _REASON_CHARACTERS)
            for name, why in self.about.passed_over[:_MOST_PASSED_OVER]
        }
        return {
            "model": make_plain(self.about.model, 64),
            "version": make_plain(self.about.version, _NAME_CHARACTERS),
            "release": self.about.release,
            "bounds_ms": BOUNDS_MS,
            "since_s": before.get("since_s", now_s),
            "written_s": now_s,
            "passed_over": reasons if "loads" in whole else before.get("passed_over", reasons),
            **totals,
        }

    def _write_textfile(self, record: Counts) -> None:
        # As node_exporter's README asks: written elsewhere and renamed, in the same folder.
        path = os.path.join(self._textfiles, self._textfile_name)
        partial = f"{path}.{os.getpid()}"
        try:
            with open(partial, "w", encoding="ascii") as file:
                file.write(format_textfile(record))
            os.replace(partial, path)
        except OSError as error:
            self._tell(error)
            _remove(partial)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)


def _is_ours(record: Counts) -> bool:
    """Return whether a record of the file has the form of this module."""
    variants = record.get("variants")
    return (
        record.get("bounds_ms") == list(BOUNDS_MS)
        and all(isinstance(record.get(n), int) for n in ("loads", "failed_writes", "since_s"))
        and _are_all(record.get("passed_over"), str)
        and isinstance(variants, dict)
        and all(isinstance(found, dict) and _has_kinds(found) for found in variants.values())
    )


def _has_kinds(found: Counts) -> bool:
    return _are_all({name: found.get(name, 0) for name in _NUMBERS}, int) and all(
        _are_all(found.get(name, {}), int) for name in _BY_NAME
    )


def _are_all(values: Any, kind: type) -> bool:
    return isinstance(values, dict) and all(isinstance(value, kind) for value in values.values())


def _find_age_s(path: str) -> float:
    try:
        return -os.stat(path).st_mtime
    except OSError:
        return 0.0


def add_counts(into: Counts, more: Mapping[str, Any], most: int = 100) -> None:
    """Add numbers to those of the same names, however deep; what is of more kinds is ``other``."""
    for name, value in more.items():
        key = name if name in into or len(into) < most else "other"
        if isinstance(value, dict):
            add_counts(into.setdefault(key, {}), value, _MOST if name in _LIMITED else 100)
        else:
            into[key] = into.get(key, 0) + value


def format_textfile(record: Counts) -> str:
    """Return a record in Prometheus's text format, without times, which node_exporter refuses.

    Source: the section on the textfile collector in node_exporter's README; the format in
    Prometheus's documentation, exposition formats.
    """
    whole = {name: record[name] for name in ("model", "version", "release")}
    lines: List[str] = []

    def add(name: str, kind: str, about: str, values: Sequence[Tuple[str, Counts, Any]]) -> None:
        lines.append(f"# HELP {name} {about}")
        lines.append(f"# TYPE {name} {kind}")
        for suffix, labels, value in values:
            pairs = {**whole, **labels}.items()
            said = ",".join(f'{key}="{make_plain(text, 100)}"' for key, text in pairs)
            lines.append(f"{name}{suffix}{{{said}}} {value}")

    variants = [({"variant": name}, found) for name, found in record["variants"].items()]
    add("edgepack_loads_total", "counter", "Times that a program opened the bundle.",
        [("", {}, record["loads"])])  # fmt: skip
    add("edgepack_inference_seconds", "histogram", "How long inferences took.",
        [one for labels, found in variants for one in _list_histogram(labels, found)])  # fmt: skip
    add("edgepack_inference_errors_total", "counter", "Inferences that failed, by kind.",
        [("", {**labels, "kind": kind}, count) for labels, found in variants
         for kind, count in found.get("errors", {}).items()])  # fmt: skip
    add("edgepack_checked_total", "counter", "Calls whose inputs were held against the ranges.",
        [("", labels, found.get("checked", 0)) for labels, found in variants])  # fmt: skip
    add("edgepack_outside_total", "counter", "Of them, those with values outside, by input.",
        [("", {**labels, "input": name}, count) for labels, found in variants
         for name, count in found.get("outside", {}).items()])  # fmt: skip
    add("edgepack_passed_over", "gauge", "Variants that did not work here at the last load.",
        [("", {"variant": name, "reason": why}, 1)
         for name, why in record["passed_over"].items()])  # fmt: skip
    return "\n".join(lines) + "\n"


def _list_histogram(labels: Counts, found: Counts) -> List[Tuple[str, Counts, Any]]:
    values: List[Tuple[str, Counts, Any]] = []
    count = 0
    for number, bound_ms in enumerate(BOUNDS_MS):
        count += found.get("buckets", {}).get(str(number), 0)
        values.append(("_bucket", {**labels, "le": repr(bound_ms / 1000)}, count))
    whole = found.get("inferences", 0)
    values.append(("_bucket", {**labels, "le": "+Inf"}, whole))
    values.append(("_sum", labels, found.get("took_ns", 0) / 1e9))
    values.append(("_count", labels, whole))
    return values


_OPEN: "weakref.WeakSet[Counters]" = weakref.WeakSet()


def _close_all() -> None:
    for counters in list(_OPEN):
        counters.close()


def _begin_all() -> None:
    for counters in list(_OPEN):
        counters._begin()  # noqa: SLF001


atexit.register(_close_all)
os.register_at_fork(after_in_child=_begin_all)
