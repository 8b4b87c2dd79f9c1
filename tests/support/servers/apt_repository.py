"""A Debian repository on this machine, and what lets the real apt read it without root."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PROGRAMS = ("apt-get", "dpkg-deb", "gcc")


@dataclass
class Repository:
    """A repository that is served."""

    folder: Path
    """What is served: packages and their index."""
    address: str
    apt_conf: Path
    """What APT_CONFIG has to name."""
    asked_for: list[str] = field(default_factory=list)
    """The paths that were fetched."""

    def add(self, name: str, version: str, files: Mapping[str, bytes], depends: str = "") -> Path:
        """Build a package; :meth:`publish` makes it known."""
        tree = self.folder.parent / "trees" / name
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody\n"
        control += f"Depends: {depends}\n" if depends else ""
        control += f"Description: {name}\n"
        (tree / "DEBIAN" / "control").write_text(control)
        for path, data in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(data)
        package = self.folder / f"{name}_{version.rpartition(':')[2]}_all.deb"
        argv = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(package)]
        subprocess.run(argv, check=True, capture_output=True)
        return package

    def publish(self) -> None:
        """Write the index of all packages, and let apt read it."""
        entries = []
        for package in sorted(self.folder.glob("*.deb")):
            argv = ["dpkg-deb", "--field", str(package)]
            control = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
            data = package.read_bytes()
            sha256 = hashlib.sha256(data).hexdigest()
            lines = f"Filename: ./{package.name}\nSize: {len(data)}\nSHA256: {sha256}\n"
            entries.append(control.strip() + "\n" + lines)
        (self.folder / "Packages").write_text("\n".join(entries))
        environment = {"APT_CONFIG": str(self.apt_conf), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        argv = ["apt-get", "update", "-qq"]
        subprocess.run(argv, check=True, capture_output=True, env=environment)


@contextmanager
def serve_repository(folder: Path) -> Iterator[Repository]:
    """Serve an empty repository, which apt reads if APT_CONFIG says so.

    Skips the test where a program is missing.
    """
    for program in PROGRAMS:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    served = folder / "served"
    state = folder / "apt"
    for each in (served, state / "lists" / "partial", state / "cache" / "archives" / "partial"):
        each.mkdir(parents=True)
    (state / "status").touch()
    asked_for: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_words: object) -> None:
            asked_for.append(self.path)

    handler = functools.partial(Handler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        (state / "sources.list").write_text(f"deb [trusted=yes] {address} ./\n")
        conf = state / "apt.conf"
        conf.write_text(
            f'Dir::State "{state}";\nDir::State::lists "{state}/lists";\n'
            f'Dir::State::status "{state}/status";\nDir::Cache "{state}/cache";\n'
            f'Dir::Etc::sourcelist "{state}/sources.list";\nDir::Etc::sourceparts "-";\n'
            'Dir::Etc::parts "-";\nDir::Etc::main "-";\nAPT::Sandbox::User "";\n'
            'Acquire::Languages "none";\nAPT::Architecture "amd64";\n'
        )
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Repository(served, address, conf, asked_for)
        finally:
            server.shutdown()
            thread.join()
