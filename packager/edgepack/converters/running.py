"""Runs a converter's script in its environment: in a child that may do little and end at any time.

The child sees no credentials: its environment variables are made anew. It confines itself before it
reads the model (``inside/edgepack_confine.py``), so that code hidden in a file reaches no network
and no files but its own folder.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.base.machine import read_available_memory
from edgepack.base.processes import ProgramResult, run_supervised
from edgepack.base.worker import tell
from edgepack.converters.base import Converter
from edgepack.errors import ModelError, ToolError

_INSIDE = Path(__file__).parent / "inside"
_MAIN = "edgepack_inside.py"
_CALLING = "calling.txt"
_MOST_LINES = 100
"""The most lines that are shown of what a user's function prints."""
# Threads of libraries are the user's to choose, and some processors need a choice.
_PASSED = ("OPENBLAS_", "OMP_", "MKL_")
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "USER": "edgepack",
    "PYTHONHASHSEED": "0",
    "ORT_DISABLE_TELEMETRY": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # oneDNN's results depend on the processor (TensorFlow says so when it starts).
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
_MODEL_FILES = ("model.onnx", "model.onnx.data")
MOST_S = 1800.0
"""How long a conversion may take."""
_MARGIN_S = 60.0
_ALARM = 128 + signal.SIGALRM


@dataclass(frozen=True)
class Inside:
    """A converter with the Python that it runs in, and the model."""

    converter: Converter
    python: str
    source: Path
    options: Mapping[str, Any]
    confined: bool = True
    most_s: float = MOST_S
    most_bytes: int | None = None
    """How much memory it may take; default: what is free."""

    def convert(self, out: Path) -> dict[str, Any]:
        """Write ``model.onnx`` into a folder, and return its signature.

        Returns:
            ``inputs`` and ``outputs``, each ``{"name": ONNX's, "source": the framework's}``, in the
            framework's order; ``versions`` of packages; ``notes``; what it was ``confined`` by.

        Raises:
            ModelError: The model is refused, with the operator or what else is the reason.
            ToolError: The converter crashed, hung, or filled the memory.
        """
        with self._working() as folder:
            answer = self._run(folder, {"do": "convert"})
            for name in _MODEL_FILES:
                if (folder / name).is_symlink() or (folder / name).exists():
                    with _open_plain(folder / name) as made, (out / name).open("wb") as kept:
                        shutil.copyfileobj(made, kept)
        return answer

    def run(
        self, signature: Mapping[str, Any], feeds: Sequence[Mapping[str, Array]]
    ) -> list[dict[str, Array]]:
        """Return the framework's outputs for each feed, under the names of ONNX's outputs.

        Raises:
            ModelError: The framework refuses the model or an input.
            ToolError: It crashed, hung, or filled the memory.
        """
        with self._working() as folder:
            for number, feed in enumerate(feeds):
                np.savez(folder / f"in-{number}.npz", **feed)  # type: ignore[arg-type]
            self._run(folder, {"do": "run", "signature": signature})
            found = []
            for number in range(len(feeds)):
                with (
                    _open_plain(folder / f"out-{number}.npz") as file,
                    np.load(file, allow_pickle=False) as outputs,
                ):
                    found.append(dict(outputs))
        return found

    @contextmanager
    def _working(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="edgepack-convert-") as name:
            yield Path(name).resolve()

    def _run(self, folder: Path, request: Mapping[str, Any]) -> dict[str, Any]:
        confines_itself = self.confined and platform.system() == "Linux"
        whole = {
            **request,
            "script": self.converter.script,
            "source": str(self.source.resolve()),
            "options": dict(self.options),
            "memory": self.most_bytes or read_available_memory(),
            "seconds": self.most_s,
            "file_bytes": shutil.disk_usage(folder).free // 2,
            "readable": [str(_INSIDE), *self.converter.readable] if confines_itself else None,
        }
        (folder / "request.json").write_text(json.dumps(whole), encoding="utf-8")
        done = run_supervised(
            [*self._list_command(folder), str(_INSIDE / _MAIN), str(folder)],
            timeout_s=self.most_s + _MARGIN_S,
            cwd=self.source if self.function else folder,
        )
        if self.function and request["do"] == "convert":
            for line in done.text.splitlines()[-_MOST_LINES:]:
                tell(f"{self.function}: {line}")
        return self._read_answer(folder, done)

    @property
    def function(self) -> str:
        """The user's function that makes the model, ``module:name``; empty where it is a file."""
        return str(self.options.get("function", ""))

    def _list_command(self, folder: Path) -> list[str]:
        """Return Python with what stands before it; a function of the user's has all of theirs."""
        if self.function:
            return [self.python, "-B"]
        return [*self._list_prefix(folder), self.python, "-sB"]

    def _list_prefix(self, folder: Path) -> list[str]:
        """Return what stands before the command: its environment, and Apple's sandbox on macOS."""
        passed = {n: v for n, v in os.environ.items() if n.startswith(_PASSED)}
        places = {"HOME": str(folder), "TMPDIR": str(folder)}
        values = {**_ENVIRONMENT, **passed, **places}
        prefix = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in values.items())]
        if self.confined and platform.system() == "Darwin":
            prefix += ["/usr/bin/sandbox-exec", "-p", _format_sandbox(folder)]
        return prefix

    def _read_answer(self, folder: Path, done: ProgramResult) -> dict[str, Any]:
        name, what = self.function or self.source.name, self.converter.words
        answer = folder / "answer.json"
        if (folder / _CALLING).is_file() and not answer.is_file():
            module, _, function = self.function.partition(":")
            code = f"import {module}; {module}.{function}()"
            raise ModelError(
                f"the function {self.function!r} {self._explain_end(done.exit_code)}"
                f"{done.last_lines}",
                hint=f"run it yourself in {str(self.source)!r}: {self.python} -c {code!r}",
            )
        if done.exit_code or not answer.is_file():
            raise ToolError(
                f"the converter of {what} {self._explain_end(done.exit_code)}{done.last_lines}",
                hint="the lines above are its own; convert the model where it was made, and build"
                " from the .onnx",
                where=name,
            )
        with _open_plain(answer) as file:
            found: dict[str, Any] = json.load(file)
        if reason := found.get("cannot_confine"):
            raise ToolError(
                f"a process that reads {what} cannot be confined here: {reason}",
                hint="convert it on another machine, or, if you trust the file, add to"
                f" edgepack.yaml: converters: {{{self.converter.name}: {{confined: false}}}}",
                where=name,
            )
        if refused := found.get("refused"):
            raise ModelError(refused["problem"], hint=refused["hint"], where=name)
        return found

    def _explain_end(self, exit_code: int) -> str:
        if exit_code == _ALARM:
            return f"took longer than {self.most_s:g} s and was stopped"
        if exit_code > 128:
            names = {each.value: each.name for each in signal.Signals}
            name = names.get(exit_code - 128)
            if name:
                return f"was ended by {name}: a library crashed, or memory ran out"
        return f"ended with exit code {exit_code}"


def _open_plain(path: Path) -> IO[bytes]:
    """Open what a confined process wrote: it may have put a link there, which is not followed.

    Raises:
        ToolError: It is no plain file.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _make_plain_error(path, error.strerror or str(error)) from error
    file = os.fdopen(opened, "rb")
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        file.close()
        raise _make_plain_error(path, "it is no plain file")
    return file


def _make_plain_error(path: Path, why: str) -> ToolError:
    return ToolError(
        f"what the converter left as {path.name!r} cannot be taken: {why}",
        hint="do not use this model: code in it may have made that",
    )


def _format_sandbox(folder: Path) -> str:
    """Return a profile of Apple's sandbox: no network, and writing into one folder only.

    Source: sandbox-exec(1) and the profiles in /System/Library/Sandbox/Profiles. It was never run:
    nothing here is a Mac.
    """
    home = Path.home()
    secrets = " ".join(
        f'(subpath "{home / each}")' for each in (".ssh", ".aws", ".config", ".gnupg")
    )
    return (
        "(version 1)(allow default)(deny network*)(deny file-write*)"
        f'(allow file-write* (subpath "{folder}") (literal "/dev/null"))'
        f"(deny file-read* {secrets})"
    )
