"""What numpy's arrays are called in annotations."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
"""An array of any shape and type; docstrings say which."""
