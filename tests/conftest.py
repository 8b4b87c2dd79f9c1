"""Guards that hold for every test, and where the public models are found."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import sys
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import typer.main

from tests.support.doubles.kept_workers import kept_workers

# A shell's job in the background ignores Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The many processes that tests start read what this one has compiled.
sys.dont_write_bytecode = False
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# Threads that wait for work keep a CPU busy, and the other processes wait for it.
os.environ.setdefault("EDGEPACK_THREADS", "1")
# As in edgepack's workers, where the steps run that tests call here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("VECLIB_MAXIMUM_THREADS", "1")


def pytest_configure() -> None:
    """Let hypothesis try fewer examples where nothing takes long.

    It is loaded here, where Python may write what pytest makes of its modules.
    """
    from hypothesis import settings

    if "EDGEPACK_TEST_SLOW" not in os.environ:
        settings.register_profile("quick", settings.default, max_examples=30, deadline=None)
        settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector pass over what is loaded before the first test: it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


TURNS = 3


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what takes long by its nature, unless EDGEPACK_TEST_SLOW is set.

    EDGEPACK_TEST_TURN, a number below 3, takes a third of the longest: CI has another at each
    landing.
    """
    turn = os.environ.get("EDGEPACK_TEST_TURN")
    own = zlib.crc32(item.nodeid.encode()) % TURNS
    if turn is not None and item.get_closest_marker("in_turns") and own != int(turn):
        pytest.skip(f"takes long, and has the turn {own}; run without EDGEPACK_TEST_TURN")
    slow = item.get_closest_marker("slow")
    if slow and "EDGEPACK_TEST_SLOW" not in os.environ:
        pytest.skip(f"{slow.kwargs.get('reason', 'takes long')}; run with EDGEPACK_TEST_SLOW=1")


@pytest.fixture(scope="session", autouse=True)
def warm_workers() -> Iterator[None]:
    """Let builds take the worker processes of earlier ones."""
    with kept_workers():
        yield


@pytest.fixture(scope="session", autouse=True)
def kept_command_line() -> Iterator[None]:
    """Make the parser of all commands once; hundreds of tests run a command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """Give the fixtures of modules a home, and each test the name of one.

    ``mktemp`` lists all that there are to find each.
    """
    folder = tmp_path_factory.mktemp("homes")
    with pytest.MonkeyPatch.context() as patch:
        live_in(folder / "shared", patch)
        yield (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_home(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Point the user's folders into a temporary one: no test reads or writes the real home."""
    home = next(homes)
    live_in(home, monkeypatch)
    yield home
    # onnxruntime_extensions, when a bundle's loader loads it, and mypy leave these: builds would
    # start workers anew, and those would read models in Python.
    for name in ("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "MYPY_CONFIG_FILE_DIR"):
        os.environ.pop(name, None)


def live_in(home: Path, patch: pytest.MonkeyPatch) -> None:
    """Make a folder and name it as the user's."""
    home.mkdir()
    patch.setenv("HOME", str(home))
    for name, folder in (
        ("XDG_CACHE_HOME", ".cache"),
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_DATA_HOME", ".local/share"),
    ):
        patch.setenv(name, str(home / folder))
    for name in ("SSH_AUTH_SOCK", "EDGEPACK_RESULTS", "EDGEPACK_CACHE_STORE"):
        patch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public models and images named by EDGEPACK_TEST_DATA."""
    folder = os.environ.get("EDGEPACK_TEST_DATA", "")
    if folder and Path(folder).is_dir():
        return Path(folder)
    if os.environ.get("CI"):
        pytest.fail("EDGEPACK_TEST_DATA does not name a folder; CI must not skip these tests")
    pytest.skip("EDGEPACK_TEST_DATA does not name a folder of public models")


def pytest_xdist_auto_num_workers() -> int:
    """Run more tests at a time than there are cores: half of a push is waiting.

    With those that take gigabytes, one more; memory is what they wait for.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    return cores + 1 if "EDGEPACK_TEST_SLOW" in os.environ else 2 * cores
