"""Samples: from the user's files and functions to sets on disk that any process can read."""

from edgepack.data.sample_set import SampleSet, write_sample_set
from edgepack.data.spreading import spread

__all__ = ["SampleSet", "spread", "write_sample_set"]
