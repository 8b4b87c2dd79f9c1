"""npm packages, which bundles for browsers are: their names."""

from __future__ import annotations

from collections.abc import Iterable

from edgepack.errors import ProfileError
from edgepack.project.names import find_npm_problem
from edgepack.project.profile import Profile
from edgepack.project.project import Project

ROOT = "package"
"""The folder in an npm package's ``.tgz`` that has its files. Source: npm's documentation of
``npm install``, "a package is" (docs.npmjs.com, npm 11), and what npm pack writes."""


def find_npm_name(project: Project) -> str:
    """Return the name of a project's npm package: by default its own, in lower case.

    Raises:
        ProfileError: npm has no packages of the project's name.
    """
    if project.app.npm:
        return project.app.npm
    name = project.name.lower()
    if problem := find_npm_problem(name):
        raise ProfileError(
            f"an npm package cannot be called {name!r}, as the project is: {problem}",
            hint='give it another name: app: {npm: "@acme/detector"}',
            where="name",
        )
    return name


def require_npm(project: Project, profiles: Iterable[Profile]) -> None:
    """Check that a project's bundles for browsers can be npm packages, each with its own file.

    Raises:
        ProfileError: npm has no packages of the name, or two targets would have the same.
    """
    found = [profile.id for profile in profiles if profile.family == "web"]
    if found and (name := find_npm_name(project)) and len(found) > 1:
        raise ProfileError(
            f"{' and '.join(found)} would both be the npm package {name!r}",
            hint="build them one by one, each with an --out of its own",
            where="targets",
        )


def make_package_file_name(project: Project, version: str) -> str:
    """Return what npm pack calls the file: ``acme-detector-1.0.0.tgz`` for ``@acme/detector``."""
    return f"{find_npm_name(project).removeprefix('@').replace('/', '-')}-{version}.tgz"
