"""``edgepack build``: from a model or project to proven bundles."""

from edgepack.build.assembly import BuiltBundle
from edgepack.build.build import BuildResult, build, dry_run
from edgepack.build.judging import MissedLimit

__all__ = ["BuildResult", "BuiltBundle", "MissedLimit", "build", "dry_run"]
