"""Mean average precision at an overlap of 0.5, and recall, for a detector of one class.

What is right lies beside each picture: ``labels/NAME.json`` has ``[[x1, y1, x2, y2], ...]`` for the
picture ``NAME.png``. The model gives ``boxes`` (1, N, 4) and ``scores`` (1, N).
"""

import json
from pathlib import Path

import numpy as np

LEAST_SCORE = 0.3
OVERLAP = 0.5


def score(outputs, labels, names):
    """Return both values over all pictures; the first decides.

    Args:
        outputs: Of each picture, the model's outputs by name.
        labels: None: the project file names none.
        names: Of each picture, its path within the folder.
    """
    found, wanted = [], 0
    for arrays, name in zip(outputs, names):
        right = np.array(json.loads(Path("labels", name).with_suffix(".json").read_text()))
        wanted += len(right)
        found += hits(arrays["boxes"][0], arrays["scores"][0], right.reshape(-1, 4))
    found.sort(reverse=True)
    is_hit = np.array([hit for _, hit in found], float)
    recall = np.cumsum(is_hit) / wanted
    precision = np.cumsum(is_hit) / np.arange(1, len(found) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    print(f"{len(found)} boxes found in {len(names)} pictures, {wanted} wanted")
    return {
        "map50": float(np.sum(np.diff(recall, prepend=0.0) * best)),
        "recall": float(recall[-1]) if len(found) else 0.0,
    }


def hits(boxes, scores, right):
    """Return (score, whether it is right) of each box; each right one is met once."""
    met, found = set(), []
    for n in np.argsort(-scores):
        if scores[n] >= LEAST_SCORE:
            overlaps = [0.0 if k in met else overlap(boxes[n], box) for k, box in enumerate(right)]
            best = int(np.argmax(overlaps)) if overlaps else -1
            is_hit = best >= 0 and overlaps[best] >= OVERLAP
            met |= {best} if is_hit else set()
            found.append((float(scores[n]), is_hit))
    return found


def overlap(one, other):
    """Return intersection over union of two boxes."""
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    shared = np.prod(np.maximum(high - low, 0))
    return shared / (np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - shared)
