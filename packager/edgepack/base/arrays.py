"""Names numpy's arrays for annotations."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
"""An array of any shape and type; docstrings say which."""
