"""What answers over HTTP, in the bundles that are to have it."""

from __future__ import annotations

from collections.abc import Iterable

from edgepack.apps.render import ServiceContext, render_service
from edgepack.backends.registry import find_backend
from edgepack.bundle.writing import BundleWriter
from edgepack.errors import UsageError
from edgepack.project.pipeline import PipelineProject
from edgepack.project.profile import Profile
from edgepack.project.project import Project


def has_service(project: Project | PipelineProject, profile: Profile) -> bool:
    """Return whether a project's bundle for a target has what answers over HTTP."""
    return project.service and _can_serve(profile)


def _can_serve(profile: Profile) -> bool:
    # The unit is systemd's, and the image is one of Linux.
    return profile.family == "linux" and profile.device.os == "linux"


def require_linux(profiles: Iterable[Profile]) -> None:
    """Check that bundles for all targets can have what answers over HTTP.

    Raises:
        UsageError: Some cannot; it names them.
    """
    others = [profile.id for profile in profiles if not _can_serve(profile)]
    if others:
        raise UsageError(
            f"--service is for targets with Linux, and there is no Python beside these bundles to"
            f" serve them: {', '.join(others)}",
            hint="name targets with Linux (--target; edgepack targets list lists all); 'service:"
            " true' in edgepack.yaml is for those alone",
            where="--service",
        )


def add_service(writer: BundleWriter, project: Project | PipelineProject, profile: Profile) -> None:
    """Write what answers over HTTP into a bundle.

    Raises:
        BundleError: The bundle has a file of such a name.
    """
    backends = [find_backend(variant) for variant in profile.variants]
    context = ServiceContext(
        bundle_id=f"{project.name}-{project.version}-{profile.id}",
        name=project.name,
        version=project.version,
        is_accelerated=not all(each.on_processor for each in backends),
        is_plain={each.name for each in backends} == {"cpu"},
        device_files=tuple(dict.fromkeys(name for each in backends for name in each.device_files)),
    )
    for file in render_service(context):
        writer.add(file.path, file.data, role=file.role, mode=file.mode)
