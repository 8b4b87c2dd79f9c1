"""What onnxruntime's quantization package says and raises, in our own terms."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from edgepack.errors import StepError
from edgepack.model.running import blame, runtime_errors
from edgepack.quantization.dialect import WITHOUT_INT8


@contextmanager
def quantizer_errors(doing: str) -> Iterator[None]:
    """Silence the advice of onnxruntime's quantization package and name what it fails at.

    It advises through the root logger. Plain Python errors are how it says that it has met its
    end.

    Raises:
        StepError: Whatever the quantization package raised.
    """
    plain: tuple[type[Exception], ...] = (AssertionError, KeyError, TypeError, IndexError)
    logging.disable(logging.WARNING)
    try:
        yield
    except (*runtime_errors(), *plain) as error:
        raise StepError(
            f"onnxruntime's {doing} failed: {type(error).__name__}: {blame(error)[:300]}",
            hint=WITHOUT_INT8,
        ) from error
    finally:
        logging.disable(logging.NOTSET)
