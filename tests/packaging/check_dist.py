"""Builds the wheel and the sdist of the newest commit, and checks what would be released.

``make dist`` runs it. It builds three times: in two fresh clones, which lie elsewhere, with another
umask, locale, time zone and times of files, and in the unpacked sdist. What is not committed can
get into none of them. The bytes have to be the same; then it looks at contents and metadata, and
copies both files to ``dist-python/``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LARGEST = {"wheel": 2_900_000, "sdist": 2_300_000}
"""In bytes: an eighth more than in November 2026, so that no model or picture gets in unseen."""
IN_SDIST = ("packager/edgepack/", "targets/", "templates/", "examples/digits/")
BESIDE_THEM = (
    *(".gitignore", "CHANGELOG.md", "LICENSE", "README.md"),
    *("constraints.txt", "hatch_build.py", "pyproject.toml"),
)
IN_WHEEL = {
    "packager/edgepack/": "edgepack/",
    "targets/": "edgepack/_data/targets/",
    "templates/": "edgepack/_data/templates/",
    "examples/digits/": "edgepack/_data/examples/digits/",
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Those that onnxruntime has wheels for (1.32.0, November 2026)."""
OTHERWISE = {"TZ": "Pacific/Auckland", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "7"}


@dataclass(frozen=True)
class Commit:
    """The commit that is built, as git tells it."""

    name: str
    epoch: int
    files: dict[str, bytes]
    tags: tuple[str, ...] = ()

    @property
    def noted(self) -> bytes:
        """What ``commit.txt`` has to hold."""
        return f"{self.name} {datetime.fromtimestamp(self.epoch, UTC):%Y-%m-%d}\n".encode()

    @property
    def version(self) -> str:
        """The version, from the one place where it stands."""
        text = self.files["packager/edgepack/__init__.py"].decode()
        return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def git(*words: str, cwd: Path = ROOT) -> str:
    return subprocess.run(
        ["git", *words], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def clone(folder: Path) -> Path:
    git("clone", "--quiet", str(ROOT), str(folder))
    git("checkout", "--quiet", "--detach", git("rev-parse", "HEAD").strip(), cwd=folder)
    return folder


def commit_of(folder: Path) -> Commit:
    name, epoch = git("log", "-1", "--format=%H %ct", cwd=folder).split()
    tracked = git("ls-files", "-z", cwd=folder).split("\0")[:-1]
    tags = tuple(git("tag", "--points-at", "HEAD").split())
    return Commit(name, int(epoch), {path: (folder / path).read_bytes() for path in tracked}, tags)


def build(source: Path, out: Path, epoch: int, *, otherwise: bool = False) -> dict[str, Path]:
    """Build both from a folder, with the tools of this environment."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    if otherwise:
        environment |= OTHERWISE
    argv = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel"]
    before = os.umask(0o077 if otherwise else 0o022)
    try:
        done = subprocess.run(
            [*argv, "--outdir", str(out), str(source)],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
    finally:
        os.umask(before)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}")
    return {"wheel": next(out.glob("*.whl")), "sdist": next(out.glob("*.tar.gz"))}


def unsettle(checkout: Path) -> None:
    """Leave in a checkout what work leaves there, and other times of files."""
    for name in ("packager/edgepack/__pycache__/x.pyc", "dist/x.txt", ".venv/x.txt"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes(b"x")
    for path in checkout.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))


def read_wheel(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def read_sdist(path: Path) -> dict[str, bytes]:
    """Return the files of an sdist under their names below its top folder."""
    files = {}
    with tarfile.open(path) as sdist:
        for member in sdist.getmembers():
            content = sdist.extractfile(member)
            files[member.name.partition("/")[2]] = content.read() if content else b""
    return files


def expected_in_sdist(commit: Commit) -> dict[str, bytes | None]:
    """Return what an sdist holds; None where only its metadata says what is right."""
    tracked = {
        path: content
        for path, content in commit.files.items()
        if path.startswith(IN_SDIST) or path in BESIDE_THEM
    }
    return {**tracked, "commit.txt": commit.noted, "PKG-INFO": None}


def expected_in_wheel(commit: Commit) -> dict[str, bytes | None]:
    """Return what a wheel holds; None where its builder says what is right."""
    moved = {
        place + path.removeprefix(folder): content
        for folder, place in IN_WHEEL.items()
        for path, content in commit.files.items()
        if path.startswith(folder)
    }
    about = f"edgepack-{commit.version}.dist-info"
    made = [f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")]
    return {
        **moved,
        "edgepack/_data/commit.txt": commit.noted,
        f"{about}/licenses/LICENSE": commit.files["LICENSE"],
        **dict.fromkeys(made),
    }


def differences(found: dict[str, bytes], expected: dict[str, bytes | None]) -> list[str]:
    """Say what is missing, what nobody asked for, and what is not as it was committed."""
    return [
        *(f"missing: {name}" for name in sorted(expected.keys() - found.keys())),
        *(f"not expected: {name}" for name in sorted(found.keys() - expected.keys())),
        *(
            f"not as committed: {name}"
            for name in sorted(found.keys() & expected.keys())
            if expected[name] not in (None, found[name])
        ),
    ]


def wrong_metadata(metadata: Message, version: str) -> list[str]:
    """Say what in the metadata is not as it should be."""
    stated = {
        "Name": "edgepack",
        "Version": version,
        "Requires-Python": f">={PYTHONS[0]}",
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
        "Description-Content-Type": "text/markdown",
    }
    wrong = [
        f"{key} is {metadata[key]}, not {value}"
        for key, value in stated.items()
        if metadata[key] != value
    ]
    prefix = "Programming Language :: Python :: 3."
    classifiers = metadata.get_all("Classifier", [])
    pythons = tuple(f"3.{c.removeprefix(prefix)}" for c in classifiers if c.startswith(prefix))
    if pythons != PYTHONS:
        wrong.append(f"classifiers name Python {', '.join(pythons)}, not {', '.join(PYTHONS)}")
    return wrong + wrong_description(metadata.get_payload())


def wrong_description(text: str) -> list[str]:
    """Say what would be broken or untrue on PyPI's page."""
    targets = re.findall(r"\]\(([^)]*)\)", text) + re.findall(r"(?:src|href)=\"([^\"]*)\"", text)
    wrong = [f"the description links to {to}" for to in targets if not to.startswith("https://")]
    wrong += [
        f"the description has what is true in a checkout only: {words}"
        for words in ("not on PyPI yet", "make demo", "checkout only -->")
        if words in text
    ]
    if text.count("```") % 2:
        wrong.append("the description cuts a block of code")
    wrong += [
        f"the description lacks the heading {heading}"
        for heading in ("# edgepack", "## Install", "## Targets", "## How it compares")
        if f"\n{heading}\n" not in f"\n{text}"
    ]
    return wrong


def wrong_release(commit: Commit) -> list[str]:
    """Say where a tag on the commit, the version and the changelog tell different things."""
    heading = re.findall(r"^## (.+)$", commit.files["CHANGELOG.md"].decode(), re.MULTILINE)[0]
    wrong = []
    if heading.split()[0] != commit.version:
        wrong.append(f"the changelog begins with {heading}, and the version is {commit.version}")
    tags = [tag for tag in commit.tags if re.match(r"v\d", tag)]
    wrong += [f"tag {tag} on {commit.version}" for tag in tags if tag != f"v{commit.version}"]
    if tags and not re.fullmatch(r"\S+ \(\d{4}-\d{2}-\d{2}\)", heading):
        wrong.append(f"the changelog's heading of what is tagged has no date: {heading}")
    return wrong


def problems(built: dict[str, Path], commit: Commit) -> list[str]:
    """Say all that is wrong with what was built."""
    wheel, sdist = read_wheel(built["wheel"]), read_sdist(built["sdist"])
    found = [f"wheel: {line}" for line in differences(wheel, expected_in_wheel(commit))]
    found += [f"sdist: {line}" for line in differences(sdist, expected_in_sdist(commit))]
    found += [
        f"{kind}: {built[kind].stat().st_size} bytes, more than {largest}"
        for kind, largest in LARGEST.items()
        if built[kind].stat().st_size > largest
    ]
    metadata = wheel.get(f"edgepack-{commit.version}.dist-info/METADATA", b"")
    if metadata != sdist.get("PKG-INFO"):
        found.append("the wheel's and the sdist's metadata differ")
    return (
        found + wrong_metadata(message_from_bytes(metadata), commit.version) + wrong_release(commit)
    )


def other_bytes(first: dict[str, Path], second: dict[str, Path], how: str) -> list[str]:
    return [
        f"{kind}: other bytes when built {how}"
        for kind in first
        if first[kind].read_bytes() != second[kind].read_bytes()
    ]


def check(room: Path) -> tuple[dict[str, Path], Commit, list[str]]:
    """Build three times in a folder of its own, and say all that is wrong."""
    source = clone(room / "first")
    commit = commit_of(source)
    built = build(source, room / "out" / "first", commit.epoch)
    elsewhere = clone(room / "some where" / "else")
    unsettle(elsewhere)
    again = build(elsewhere, room / "out" / "second", commit.epoch, otherwise=True)
    with tarfile.open(built["sdist"]) as sdist:
        sdist.extractall(room / "unpacked", filter="data")
    [top] = (room / "unpacked").iterdir()
    from_sdist = build(top, room / "out" / "third", commit.epoch)
    found = problems(built, commit)
    found += other_bytes(built, again, "elsewhere, later, with another umask, locale and time zone")
    found += other_bytes(built, from_sdist, "from the sdist")
    twine = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.values())]
    done = subprocess.run(twine, check=False, capture_output=True, text=True)
    return built, commit, found + ([done.stdout] if done.returncode else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist-python")
    out = parser.parse_args().out
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        sys.exit(f"a release is made of a commit, and these have changed since:\n{changed}")
    with tempfile.TemporaryDirectory() as room:
        built, commit, found = check(Path(room))
        if found:
            sys.exit("\n".join(found))
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for path in built.values():
            shutil.copy2(path, out)
            print(f"{out / path.name}: {path.stat().st_size} bytes")
    print(
        f"edgepack {commit.version} of {commit.noted.decode().strip()}, three times the same bytes"
    )


if __name__ == "__main__":
    main()
