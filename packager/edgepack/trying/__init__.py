"""Trying a bundle out: what fp32 and each variant answer to the same inputs, side by side."""

from edgepack.trying.trial import Trial
from edgepack.trying.trying import try_bundle

__all__ = ["Trial", "try_bundle"]
