"""A clock that knows whose code runs. Python loads a module of this name when it starts.

Does nothing unless EDGEPACK_BENCH_PROFILE names a folder. Then every thread of every process gets
a profile function that charges the time between two events, calls and returns, to one category:

====== ========= ==================================================================
number category  what
====== ========= ==================================================================
0      own       edgepack's code, and all of Python's own library that it calls:
                 files, json, processes, operators on arrays
1      library   installed packages and all that they call, hashing, compression
2      imports   everything below an import
3      waiting   for another thread or process
4      profiler  this function itself
====== ========= ==================================================================

The sums lie in a file that is mapped into memory, a row for each thread, so they are all there
even after a SIGKILL, which is how worker processes end.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import threading
import time

FOLDER = os.environ.get("EDGEPACK_BENCH_PROFILE", "")
OWN, LIBRARY, IMPORTS, WAITING, PROFILER = range(5)
ROW_BYTES = 5 * 8
MAX_THREADS = 64

_WAITS = {
    ("_thread", "acquire"),
    ("_queue", "get"),
    ("posix", "waitpid"),
    ("select", "poll"),
    ("select", "select"),
    ("time", "sleep"),
}
_HASH_AND_COMPRESSION = ("_hashlib", "zlib", "_sha256", "_sha2")


def file_category(path, inherited):
    """Return whose a Python file is; Python's own library works for whoever calls it."""
    if inherited == IMPORTS or path.startswith("<frozen importlib"):
        return IMPORTS
    if f"{os.sep}site-packages{os.sep}" in path:
        return LIBRARY
    if f"{os.sep}edgepack{os.sep}" in path:
        return OWN
    return inherited


def builtin_category(frame, function, inherited):
    """Return whose a function written in C is."""
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or type(owner).__module__
    if inherited == IMPORTS:
        return IMPORTS
    if (module, function.__name__) in _WAITS or _reads_answer(frame, function):
        return WAITING
    known = module.partition(".")[0]
    if known in _HASH_AND_COMPRESSION or known not in sys.stdlib_module_names | {"__main__"}:
        return LIBRARY
    return inherited


def _reads_answer(frame, function):
    """Tell whether this is a read that waits for the other end of a worker's pipe."""
    in_worker = frame.f_code.co_filename.endswith(f"{os.sep}base{os.sep}worker.py")
    return in_worker and function.__name__ == "read"


def thread_profiler(totals, row):
    """Return a profile function for one thread that adds seconds to its row."""
    clock = time.perf_counter
    categories = [OWN]
    last = clock()

    def profile(frame, event, function):
        nonlocal last
        now = clock()
        totals[row + categories[-1]] += now - last
        if event == "call":
            categories.append(file_category(frame.f_code.co_filename, categories[-1]))
        elif event == "c_call":
            categories.append(builtin_category(frame, function, categories[-1]))
        elif len(categories) > 1:
            categories.pop()
        last = clock()
        totals[row + PROFILER] += last - now

    return profile


def start():
    """Profile this process's threads, now and to come."""
    # pathlib is not imported here: that would be time before the clock runs.
    with open(f"{FOLDER}{os.sep}{os.getpid()}.seconds", "w+b") as file:  # noqa: PTH123
        file.truncate(ROW_BYTES * MAX_THREADS)
        totals = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
    rows = itertools.count(0, 5)

    def profile_new_thread(frame, event, function):
        profile = thread_profiler(totals, next(rows))
        sys.setprofile(profile)
        profile(frame, event, function)

    threading.setprofile(profile_new_thread)
    sys.setprofile(thread_profiler(totals, next(rows)))


if FOLDER:
    start()
