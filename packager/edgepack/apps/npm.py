"""npm packages, which bundles for browsers are: their names."""

from __future__ import annotations

from collections.abc import Iterable

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


def make_package_file_name(project: Project, version: str) -> str:
    """Return what npm pack calls the file: ``acme-detector-1.0.0.tgz`` for ``@acme/detector``."""
    return f"{find_npm_name(project).removeprefix('@').replace('/', '-')}-{version}.tgz"
