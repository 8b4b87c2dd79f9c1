"""The bundle's image, made by buildah from its Containerfile, without a daemon."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.service.served import KEPT, run_checked
from tests.support.servers.debian_roots import debian_root, locked

MACHINES = KEPT.parent / ".machines"
RELEASE, PYTHON = "bookworm", "3.11"
PACKAGES = ("ca-certificates", "make", "passwd", "python3", "python3-venv")
"""Those of the machine debian-12, so that its root file system serves both."""
BASE = "localhost/edgepack-base"
DOCUMENT = KEPT.parent / "docs" / "serving.md"
"""Has the command that is run."""


class Builder:
    """buildah with its images in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.words = ["buildah", "--storage-driver", "vfs"]
        self.words += ["--root", str(folder / "images"), "--runroot", str(folder / "run")]

    def run(self, *argv: str | Path) -> str:
        return run_checked([*self.words, *map(str, argv)])

    def make_base(self) -> None:
        """Make the image that stands for a distribution's, with Python."""
        root = debian_root(MACHINES, RELEASE, PACKAGES)
        container = self.run("from", "scratch").strip()
        self.run("add", "--quiet", container, root, "/")
        self.run("commit", "--quiet", "--timestamp", "0", "--disable-compression", container, BASE)
        self.run("rm", container)

    def build(self, bundle: Path, tag: str) -> str:
        """Build a bundle's image as its Containerfile says; return its digest."""
        documented = re.search(r"^buildah (build .*) \.$", DOCUMENT.read_text(), re.MULTILINE)
        options = [*shlex.split(documented[1])[1:], "--pull=never", "--quiet"]
        options += ["--disable-compression", "--tag", tag, "--build-arg", f"BASE={BASE}"]
        options += ["--build-arg", "PIP_NO_INDEX=1"]
        options += ["--build-context", f"wheels={fetch_wheels(bundle)}"]
        self.run("build", *options, bundle)
        return str(json.loads(self.run("inspect", "--type", "image", tag))["FromImageDigest"])

    def read_config(self, tag: str) -> dict[str, object]:
        """Return the image's config, as OCI has it."""
        found = json.loads(self.run("inspect", "--type", "image", tag))
        return dict(found["OCIv1"]["config"])

    @contextmanager
    def unpacked(self, tag: str) -> Iterator[Path]:
        """Give the image's files, for as long as a block."""
        container = self.run("from", "--pull-never", tag).strip()
        try:
            yield Path(self.run("mount", container).strip())
        finally:
            self.run("rm", container)


def fetch_wheels(bundle: Path) -> Path:
    """Return a folder with the wheels that a bundle's requirements name; they are kept."""
    wheels = KEPT / "wheels"
    names = ("requirements.txt", "requirements-serve.txt")
    wanted = "".join((bundle / name).read_text() for name in names)
    fetched = wheels / "fetched"
    with locked(KEPT):
        if not fetched.is_file() or fetched.read_text() != wanted:
            argv = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheels)]
            argv += ["--only-binary=:all:", "--python-version", PYTHON]
            argv += [word for name in names for word in ("--requirement", str(bundle / name))]
            run_checked(argv)
            fetched.write_text(wanted)
    return wheels
