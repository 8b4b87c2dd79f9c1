"""The limits of a bundle's project, as commands on devices find them."""

from __future__ import annotations

from pathlib import Path

from edgepack import api
from edgepack.errors import UsageError


def find_own_project(given: Path | None, name: str) -> api.LoadedProject | None:
    """Return a bundle's project: the file that is named, or the one here if it is that.

    Args:
        given: The file that the user names.
        name: The project's name in the bundle.

    Raises:
        UsageError: The file that is named is another project's.
        ProfileError: The file is wrong.
    """
    path = given or Path(api.PROJECT_FILE)
    if given is None and not path.is_file():
        return None
    loaded = api.read_project(path)
    if loaded.project.name == name:
        return loaded
    if given is None:
        return None
    raise UsageError(
        f"{given} belongs to the project {loaded.project.name!r}, the bundle to {name!r}",
        hint="name the bundle's project file",
        where="--project",
    )


def find_limits(loaded: api.LoadedProject | None, device: api.Device) -> api.Limits:
    """Return what a project asks of a device; nothing where there is no project.

    Raises:
        ProfileError: The limits of project, target and device contradict each other.
    """
    return loaded.find_limits(device.target, device.name) if loaded else api.Limits()
