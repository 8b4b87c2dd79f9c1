"""The environments that edgepack installs: one for each family of frameworks."""

from __future__ import annotations

from edgepack.converters.environments import Lock

# Sizes were measured on Linux x86-64 with Python 3.11 (2026-11-28).
TENSORFLOW = Lock(
    name="tensorflow",
    download_mb=410,
    disk_mb=1500,
    pythons=((3, 10), (3, 11), (3, 12), (3, 13)),
)
"""For TensorFlow Lite, Keras and SavedModel."""

# An estimate, as PyTorch's index was not within reach where this was written: Debian's packages of
# torch 2.14 without CUDA are 245 MB and take 1.2 GB.
TORCH = Lock(
    name="torch",
    download_mb=250,
    disk_mb=1200,
    pythons=((3, 11), (3, 12), (3, 13), (3, 14)),
    index="https://download.pytorch.org/whl/cpu",
)
"""For PyTorch, without CUDA."""
_TABLES = ((3, 11), (3, 12), (3, 13), (3, 14))
SKLEARN = Lock(name="sklearn", download_mb=71, disk_mb=320, pythons=_TABLES)
LIGHTGBM = Lock(name="lightgbm", download_mb=73, disk_mb=330, pythons=_TABLES)
XGBOOST = Lock(name="xgboost", download_mb=75, disk_mb=340, pythons=_TABLES)
"""XGBoost for CPUs: its usual wheel brings 350 MB for GPUs. For macOS there is only that one."""
