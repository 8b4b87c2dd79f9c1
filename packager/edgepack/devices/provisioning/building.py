"""Builds onnxruntime on a device: started detached, followed, stopped, and its wheel fetched.

The build goes on when the connection is lost, and after a reboot it goes on where it was when it is
started again. What runs there is ``ondevice/agent/edgepack_build.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

from pydantic import Field

from edgepack.base.files import hash_file
from edgepack.base.schema import StrictModel
from edgepack.devices.answers import make_answer_error, read_answer
from edgepack.devices.inventory import Device
from edgepack.devices.programs import open_device_program
from edgepack.devices.transport import Transport
from edgepack.errors import DeviceError
from edgepack.project.profile import Profile, RuntimeBuild

_SHORT_S = 120.0
_FETCH_S = 1800.0
_GB = 1e9
_MOST_LINES = 10

_Answer = TypeVar("_Answer", bound=StrictModel)
_Text = Annotated[str, Field(max_length=1000)]
_Count = Annotated[int, Field(ge=0)]


# Filled with str.format. In the build's folder.
_STEPS = {
    "tools": """
rm -rf tools
{python} -m venv tools
tools/bin/python -m pip install --quiet --disable-pip-version-check {pip}
""",
    "source": """
rm -rf source
git init --quiet source
cd source
git remote add origin {source}
git fetch --depth 1 origin {ref}
git checkout --quiet FETCH_HEAD
git submodule update --init --recursive --depth 1
case $(git rev-parse HEAD) in
  {commit}*) ;;
  *) echo "the source at {ref} is $(git rev-parse HEAD), not {commit}"; exit 1;;
esac
""",
    "build": """
PATH=$PWD/tools/bin:$PATH
export PATH
cd source
root=
[ "$(id -u)" != 0 ] || root=--allow_running_as_root
./build.sh --parallel {jobs} $root {arguments}
""",
    "collect": """
rm -rf out
mkdir out
cp source/{wheel} out/
echo "commit=$(git -C source rev-parse HEAD)" > out/facts
if command -v dpkg-query >/dev/null; then
  dpkg-query --show --showformat '${{Package}}=${{Version}}\\n' {versions} >> out/facts || true
fi
""",
}


class Survey(StrictModel):
    """What a device has for a build."""

    cores: Annotated[int, Field(ge=1, le=4096)]
    memory_bytes: _Count
    """Memory that programs can get now: ``MemAvailable`` of Linux."""
    swap_bytes: _Count
    free_bytes: _Count
    missing_paths: Annotated[list[_Text], Field(max_length=100)]
    missing_packages: Annotated[list[_Text], Field(max_length=100)]


class BuildState(StrictModel):
    """How a build stands."""

    runs: bool
    exit_code: int | None
    """None while it runs, and where it never ended: it has not begun, or was killed."""
    failed: _Text
    """The step that failed."""
    done: Annotated[list[_Text], Field(max_length=100)]
    log: Annotated[str, Field(max_length=1 << 20)]
    """The end of what the log has behind the bytes that were asked for."""
    log_bytes: _Count

    @property
    def last_lines(self) -> str:
        """The log's last lines, each marked as the build's own words."""
        lines = [line for line in self.log.splitlines() if line.strip()][-_MOST_LINES:]
        return "".join(f"\n  | {line}" for line in lines)


@dataclass(frozen=True)
class DeviceBuild:
    """The build of a target's runtime on a device.

    The folder's name has a digest of the instructions: others begin anew.
    """

    device: Device
    transport: Transport
    profile: Profile
    instructions: RuntimeBuild
    root: PurePosixPath

    @property
    def folder(self) -> PurePosixPath:
        """Where everything of it lies on the device."""
        digest = hashlib.sha256(self.instructions.model_dump_json().encode()).hexdigest()[:8]
        return self.root / "builds" / f"{self.profile.id}-{digest}"

    def look(self, log_from: int = 0) -> BuildState:
        """Return how it stands, and the end of the log behind ``log_from`` bytes.

        Raises:
            DeviceError: The connection broke, or the answer cannot be read.
        """
        return self._ask("look", {"log_from": log_from}, BuildState)

    def start(self) -> int:
        """Start it, or go on with what was interrupted; return how many jobs it may run at once.

        Raises:
            DeviceError: The device lacks something for it: all of that, with what to do.
        """
        instructions = self.instructions
        asked = {"paths": instructions.paths, "packages": instructions.packages}
        survey = self._ask("survey", asked, Survey)
        has_begun = bool(self.look().done)
        problems = list(_find_lacking(survey, instructions, has_begun=has_begun))
        if problems:
            raise DeviceError(
                "the device cannot build onnxruntime"
                + "".join(f"\n  {problem}" for problem in problems),
                hint="mend that, and run the command again",
                where=self.device.name,
            )
        jobs = count_jobs(survey, instructions)
        self._do("start", {"steps": _make_steps(instructions, self.device.plain_python, jobs)})
        return jobs

    def stop(self) -> None:
        """Kill it; what was built stays, and :meth:`start` goes on with it.

        Raises:
            DeviceError: The connection broke, or it does not end.
        """
        self._do("stop")

    def remove(self) -> None:
        """Kill it and remove its folder.

        Raises:
            DeviceError: The connection broke, or it does not end.
        """
        self._do("remove")

    def fetch(self, folder: Path) -> tuple[Path, dict[str, str]]:
        """Copy the built wheel into a folder, and return it with where it comes from.

        Raises:
            DeviceError: There is no wheel, or it arrived changed.
        """
        out = self.folder / "out"
        script = 'cd "$1" && sha256sum -- *.whl && cat facts'
        done = self.transport.run(["sh", "-c", script, "sh", str(out)], timeout_s=_SHORT_S)
        done.check("reading what was built", device=self.device.name, hint=f"look into {out}")
        first, *facts = done.text.splitlines() or [""]
        said = re.fullmatch(r"([0-9a-f]{64})  ([\w.+-]+\.whl)", first)
        if said is None:
            raise make_answer_error("it names no wheel", first.encode(), device=self.device.name)
        sha256, name = said.groups()
        path = folder / name
        self.transport.get(out / name, path, timeout_s=_FETCH_S)
        if hash_file(path) != sha256:
            raise DeviceError(
                f"{name} arrived changed", hint="run the command again", where=self.device.name
            )
        about = {"source": self.instructions.source, "ref": self.instructions.ref}
        about["arguments"] = shlex.join(self.instructions.arguments)
        pairs = (line.partition("=") for line in facts)
        return path, {key: value for key, equals, value in pairs if equals} | about

    def _ask(self, command: str, asked: object, model: type[_Answer]) -> _Answer:
        answer = self._do(command, asked)
        what = "what the build says of itself"
        return read_answer(model, answer, device=self.device.name, what=what)

    def _do(self, command: str, asked: object = None) -> bytes:
        words = ("edgepack_build", command, str(self.folder))
        with open_device_program(self.transport, self.device, *words, timeout_s=_SHORT_S) as stream:
            stream.write(json.dumps(asked or {}).encode())
            stream.close_stdin()
            done = stream.wait()
        done.check(f"'{command}' of the build", device=self.device.name, hint="see its words above")
        return done.stdout


def count_jobs(survey: Survey, instructions: RuntimeBuild) -> int:
    """Return how many compilers may run at once, so that memory and half the swap are enough."""
    room = survey.memory_bytes + survey.swap_bytes / 2
    return max(1, min(survey.cores, int(room / (instructions.memory_gb_per_job * _GB))))


def _find_lacking(survey: Survey, instructions: RuntimeBuild, *, has_begun: bool) -> Iterator[str]:
    """Yield what is missing; a build that has begun has taken some of the disk already."""
    if survey.missing_packages:
        packages = shlex.join(survey.missing_packages)
        yield f"packages are missing; as root there: apt-get install -y {packages}"
    for path in survey.missing_paths:
        yield f"there is no {path}: {instructions.about_paths}"
    if not has_begun and survey.free_bytes < instructions.free_gb * _GB:
        free = survey.free_bytes / _GB
        needed = f"{instructions.free_gb:g} needed"
        yield f"{free:.1f} GB are free where 'root' of devices.yaml lies, {needed}"
    room = survey.memory_bytes + survey.swap_bytes
    if room < instructions.memory_gb_per_job * _GB:
        yield (
            f"{room / _GB:.1f} GB of memory and swap are free, one compiler needs"
            f" {instructions.memory_gb_per_job:g}: stop what runs there, or add swap"
        )


def _make_steps(instructions: RuntimeBuild, python: str, jobs: int) -> list[tuple[str, str]]:
    """Return the steps as shell scripts, which run in the build's folder under ``sh -e``.

    Each can be run again after it was cut off.
    """
    quoted = {
        "python": shlex.quote(python),
        "pip": shlex.join(instructions.pip),
        "source": shlex.quote(instructions.source),
        "ref": shlex.quote(instructions.ref),
        "commit": shlex.quote(instructions.commit),
        "arguments": shlex.join(instructions.arguments),
        "versions": shlex.join(instructions.versions_of),
        "wheel": instructions.wheel,
        "jobs": str(jobs),
    }
    return [(name, script.strip().format(**quoted) + "\n") for name, script in _STEPS.items()]
