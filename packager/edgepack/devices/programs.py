"""Runs the small programs of ``ondevice/agent`` on a device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from edgepack.base.resources import find_ondevice_dir
from edgepack.devices.inventory import NO_PYTHON, Device
from edgepack.devices.pipes import make_python_missing_error
from edgepack.devices.transport import Stream, Transport
from edgepack.errors import RemoteCommandError

# The sources come on stdin: dropbear takes command lines of at most 9,000 bytes (its MAX_CMD_LEN).
# They are read unbuffered, so that the program gets what follows them. The last one is the program.
BOOTSTRAP = """import os, sys, types
def read(size):
    source = b''
    while len(source) < size:
        source += os.read(0, size - len(source)) or sys.exit('the program was cut off')
    return source
*modules, program = [each.split(':') for each in sys.argv.pop(1).split(',')]
for name, size in modules:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(read(int(size)), name + '.py', 'exec'), module.__dict__)
exec(compile(read(int(program[1])), program[0] + '.py', 'exec'))
"""


def open_device_program(
    transport: Transport,
    device: Device,
    name: str,
    *arguments: str,
    modules: Sequence[str] = (),
    timeout_s: float,
    supervised: bool = True,
) -> AbstractContextManager[Stream]:
    """Run a program on a device, with its Python; see :func:`open_program`.

    Raises:
        PythonMissingError: The inventory says that Python is not used there.
    """
    if device.plain_python == NO_PYTHON:
        raise make_python_missing_error(NO_PYTHON, device.name)
    return open_program(
        transport,
        device.plain_python,
        name,
        *arguments,
        modules=modules,
        timeout_s=timeout_s,
        supervised=supervised,
    )


@contextmanager
def open_program(
    transport: Transport,
    python: str,
    name: str,
    *arguments: str,
    modules: Sequence[str] = (),
    timeout_s: float,
    supervised: bool = False,
) -> Iterator[Stream]:
    """Run a program with a Python; ``timeout_s`` and ``supervised`` are as for a stream.

    ``modules`` are those of ``ondevice`` that it imports, in their order. If the program
    ends early, its output says why.
    """
    sources = {each: _find_source(each).read_bytes() for each in (*modules, name)}
    sizes = ",".join(f"{each}:{len(source)}" for each, source in sources.items())
    argv = [python, "-IS", "-c", BOOTSTRAP, sizes, *arguments]
    with transport.stream(argv, timeout_s=timeout_s, supervised=supervised) as stream:
        with suppress(RemoteCommandError):
            stream.write(b"".join(sources.values()))
        yield stream


def read_shell_program(name: str) -> str:
    """Return a program of ``ondevice/agent`` for a shell, behind the lock that it takes.

    It has no comments: see :data:`BOOTSTRAP` for the limit.
    """
    folder = find_ondevice_dir() / "agent"
    sources = [(folder / f"{each}.sh").read_text("utf-8") for each in ("edgepack_lock", name)]
    return re.sub(r"^ *#.*\n", "", "".join(sources), flags=re.MULTILINE)


def _find_source(name: str) -> Path:
    """Return a file of ``ondevice``, in whichever of its folders: no two have the same name."""
    [found] = find_ondevice_dir().glob(f"*/{name}.py")
    return found
