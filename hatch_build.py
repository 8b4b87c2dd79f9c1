"""Writes ``commit.txt`` into wheels and sdists: the commit that edgepack/base/revision.py tells."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"sdist": "commit.txt", "wheel": "edgepack/_data/commit.txt"}
# That another user owns the checkout is no risk that this build of it is not already.
GIT = ("git", "-c", "safe.directory=*")
COMMAND = (*GIT, "log", "-1", "--format=%H %cd", "--date=format-local:%Y-%m-%d")


class CommitHook(BuildHookInterface):
    """Adds the file, where the commit is known: from git, or from the sdist's own file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file to what is built; an editable install reads the checkout itself."""
        if version == "editable":
            return
        noted = Path(self.root, "commit.txt")
        if not noted.is_file() and Path(self.root, ".git").exists():
            self.folder = tempfile.TemporaryDirectory()
            noted = Path(self.folder.name, "commit.txt")
            self.write(noted)
        if noted.is_file():
            build_data["force_include"][str(noted)] = PLACES[self.target_name]

    def write(self, noted: Path) -> None:
        """Write commit and day; without git, or where it refuses, the build goes without."""
        try:
            done = subprocess.run(
                COMMAND,
                cwd=self.root,
                env={**os.environ, "TZ": "UTC"},
                capture_output=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"the build will not name its commit: {error}")
        else:
            noted.write_bytes(done.stdout)
