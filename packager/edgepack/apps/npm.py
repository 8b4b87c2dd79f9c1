"""npm packages, which bundles for browsers are: their names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from edgepack.bundle.manifest import MANIFEST
from edgepack.errors import ProfileError
from edgepack.project.profile import Profile
from edgepack.project.project import Project

ROOT = "package"
"""The folder in an npm package's ``.tgz`` that has its files. Source: npm's documentation of
``npm install``, "a package is" (docs.npmjs.com, npm 11), and what npm pack writes."""


def find_npm_name(project: Project) -> str:
    """Return the name of a project's npm package: by default its own in lower case, after a prefix.

    Without the prefix it could be that of one of Node's modules, which an import would find first,
    or of a package in npm's registry.
    """
    return project.app.npm or f"edgepack-{project.name.lower()}"


def require_npm(project: Project, profiles: Iterable[Profile]) -> None:
    """Check that a project has at most one bundle for browsers: they would be one npm package.

    Raises:
        ProfileError: It has several.
    """
    found = [profile.id for profile in profiles if profile.family == "web"]
    if len(found) > 1:
        raise ProfileError(
            f"{' and '.join(found)} would be one npm package, {find_npm_name(project)!r}",
            hint="build them one by one, each with an --out of its own",
            where="targets",
        )


def require_own_name(project: Project, profiles: Iterable[Profile], out: Path) -> None:
    """Check that no other project's bundle in a folder is an npm package of this project's name.

    An app has one package of a name: the second would take the first one's place.

    Raises:
        ProfileError: One is.
    """
    name = find_npm_name(project)
    for path in out.glob("*/package.json") if any(p.family == "web" for p in profiles) else ():
        other = _read_name(path.with_name(MANIFEST))
        if _read_name(path) == name and other not in ("", project.name):
            raise ProfileError(
                f"{str(path.parent)!r} is the npm package {name!r}, too, of the project {other!r}",
                hint="name one of them otherwise with 'app: {npm: ...}', or remove that folder",
                where="app.npm",
            )


def _read_name(path: Path) -> str:
    """Return the ``name`` in a file of JSON; empty where there is none."""
    try:
        return str(json.loads(path.read_text("utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def make_package_file_name(project: Project, version: str) -> str:
    """Return what npm pack calls the file: ``acme-detector-1.0.0.tgz`` for ``@acme/detector``."""
    return f"{find_npm_name(project).removeprefix('@').replace('/', '-')}-{version}.tgz"
