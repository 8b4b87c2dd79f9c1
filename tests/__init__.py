"""Tests, proofs and benchmarks; each script is run as a module: ``python -m tests.bench.run``."""
