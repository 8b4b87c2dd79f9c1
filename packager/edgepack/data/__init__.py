"""Samples: from the user's files and functions to sets on disk that any process can read."""

from edgepack.data.sample_set import SampleSet, write_sample_set

__all__ = ["SampleSet", "write_sample_set"]
