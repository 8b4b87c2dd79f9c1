"""Time a small model that is the same in every bundle. Prints one JSON document on stdout.

::

    python harness/edgepack_canary.py

If the canary is slower than in earlier sessions, the device is slower, and not the measured model.
It runs on the CPU in one thread that does not spin, whatever the bundle's variants use. Its two
convolutions load the arithmetic units, its product with a matrix of 3 MB loads the memory.

Needs Python 3.8, numpy and onnxruntime 1.19.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import json
import sys
import time
from statistics import median
from typing import List

# A release on a device is never written to, not even with byte code.
sys.dont_write_bytecode = True

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402

MODEL = base64.b64decode(
    "CAcSCGVkZ2VwYWNrOskECi4SCHcxX3NoYXBlIghDb25zdGFudCoYCgV2YWx1ZSoMCAQQBzoEMDADA0IAoAEECjkKCHcx"
    "X3NoYXBlEgJ3MSIPQ29uc3RhbnRPZlNoYXBlKhgKBXZhbHVlKgwIARABIgQAAAA7QgCgAQQKLhIIdzJfc2hhcGUiCENv"
    "bnN0YW50KhgKBXZhbHVlKgwIBBAHOgQwMAMDQgCgAQQKOQoIdzJfc2hhcGUSAncyIg9Db25zdGFudE9mU2hhcGUqGAoF"
    "dmFsdWUqDAgBEAEiBAAAADtCAKABBAouEgh3M19zaGFwZSIIQ29uc3RhbnQqGAoFdmFsdWUqDAgCEAc6BIAGgAhCAKAB"
    "BAo5Cgh3M19zaGFwZRICdzMiD0NvbnN0YW50T2ZTaGFwZSoYCgV2YWx1ZSoMCAEQASIEAACAOkIAoAEECiQKAXgKAncx"
    "EgJjMSIEQ29udioRCgRwYWRzQAFAAUABQAGgAQcKDgoCYzESAnIxIgRSZWx1CiUKAnIxCgJ3MhICYzIiBENvbnYqEQoE"
    "cGFkc0ABQAFAAUABoAEHCg4KAmMyEgJyMiIEUmVsdQo5CgJyMhIBcCIHTWF4UG9vbCoVCgxrZXJuZWxfc2hhcGVACEAI"
    "oAEHKhAKB3N0cmlkZXNACEAIoAEHCg8KAXASAWYiB0ZsYXR0ZW4KEgoBZgoCdzMSAXkiBk1hdE11bBIGY2FuYXJ5WhsK"
    "AXgSFgoUCAESEAoCCAEKAggwCgIIIAoCCCBiFAoBeRIPCg0IARIJCgIIAQoDCIAIQgQKABAN"
)
"""An ONNX model of IR version 7 and opset 13, whose weights onnxruntime computes when it loads it.
Its bytes are never changed: results are compared between models of one hash only."""
INPUT = np.ones((1, 48, 32, 32), np.float32)
WARM_UP_S = 0.1
DURATION_S = 0.3
LEAST_ITERATIONS = 20


def main() -> int:
    """Measure once and return the exit code."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
    time_session(session, WARM_UP_S)
    document = {
        "model_sha256": hashlib.sha256(MODEL).hexdigest(),
        "median_ns": int(median(time_session(session, DURATION_S))),
    }
    print(json.dumps(document))
    return 0


def time_session(session: ort.InferenceSession, duration_s: float) -> List[int]:
    """Run for a duration and at least some iterations; return the latencies in nanoseconds."""
    run, clock, feed = session.run, time.perf_counter_ns, {"x": INPUT}
    latencies_ns: List[int] = []
    gc.disable()
    end = clock() + int(duration_s * 1e9)
    after = 0
    while after < end or len(latencies_ns) < LEAST_ITERATIONS:
        before = clock()
        run(None, feed)
        after = clock()
        latencies_ns.append(after - before)
    gc.enable()
    return latencies_ns


if __name__ == "__main__":
    sys.exit(main())
