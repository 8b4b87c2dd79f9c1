"""What the zoo's models look at: figures in images, tones in sounds, words in sentences.

Each function takes a generator of random numbers and returns samples and what there is to say of
them. float32; images are (count, channels, side, side) of about 0 to 1, sounds (count, 1, length).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.proofs.net import Array

TRAINING = 500
FIGURES = 6


@dataclass(frozen=True)
class Scenes:
    """Images with one figure each."""

    images: Array
    kinds: Array
    """(count,), 0 to 5."""
    masks: Array
    """(count, side, side) of bools."""
    boxes: Array
    """(count, 4): left, top, right, bottom in pixels."""


def scenes(random: np.random.Generator, count: int, side: int = 16, channels: int = 3) -> Scenes:
    """Draw a disc, ring, square, frame, cross or bar in a colour of its own, anywhere."""
    rows, columns = np.mgrid[:side, :side] + 0.5
    images = 0.08 * random.standard_normal((count, channels, side, side)) + 0.4
    colours = np.random.default_rng(99).uniform(0.35, 0.6, (FIGURES, channels))
    signs = (
        np.where(np.arange(channels) % 2, -1, 1) * np.where(np.arange(FIGURES) % 2, -1, 1)[:, None]
    )
    kinds, masks, boxes = random.integers(0, FIGURES, count), [], []
    for k, kind in enumerate(kinds):
        radius = random.uniform(side / 6, side / 3.2)
        middle = random.uniform(radius, side - radius, 2)
        down, right = rows - middle[0], columns - middle[1]
        far, round_ = np.maximum(abs(down), abs(right)), np.hypot(down, right)
        mask = [
            round_ < radius,
            (round_ < radius) & (round_ > 0.55 * radius),
            far < radius,
            (far < radius) & (far > 0.6 * radius),
            (far < radius) & (np.minimum(abs(down), abs(right)) < 0.35 * radius),
            (abs(down) < 0.45 * radius) & (abs(right) < radius),
        ][kind]
        images[k] += (signs[kind] * colours[kind])[:, None, None] * mask
        masks.append(mask)
        high = 0.45 * radius if kind == 5 else radius
        boxes.append([middle[1] - radius, middle[0] - high, middle[1] + radius, middle[0] + high])
    return Scenes(images.astype(np.float32), kinds, np.stack(masks), np.array(boxes))


def tones(random: np.random.Generator, count: int, length: int = 256) -> tuple[Array, Array, Array]:
    """Return noisy sounds, the same without noise, and which of 6 pitches each has."""
    time = np.arange(length)
    kinds = random.integers(0, 6, count)
    pitch = np.array([0.03, 0.05, 0.08, 0.12, 0.18, 0.26])[kinds] * random.uniform(
        0.95, 1.05, count
    )
    phase = random.uniform(0, 2 * np.pi, count)
    clean = np.sin(2 * np.pi * pitch[:, None] * time + phase[:, None])
    clean += 0.4 * np.sin(4 * np.pi * pitch[:, None] * time)
    clean *= random.uniform(0.2, 1, count)[:, None]
    level = random.uniform(0.02, 0.3, count)
    noisy = clean + level[:, None] * random.standard_normal((count, length))
    return noisy[:, None].astype(np.float32), clean[:, None].astype(np.float32), kinds


def speech(random: np.random.Generator, count: int, length: int = 320) -> tuple[Array, Array]:
    """Return sounds with pauses, and how noisy each is, 0 to 1."""
    sound, _, _ = tones(random, count, length)
    time = np.arange(length)
    pauses = 0.5 + 0.5 * np.sin(2 * np.pi * time / 80 + random.uniform(0, 6, (count, 1)))
    noise = random.uniform(0, 1, count)
    heard = sound[:, 0] * pauses + 0.4 * noise[:, None] * random.standard_normal((count, length))
    return heard[:, None].astype(np.float32), noise


def sentences(random: np.random.Generator, count: int, length: int = 12) -> tuple[Array, Array]:
    """Return ids (count, length) of 32 words, and the tag of each by it and the word before."""
    topic = random.integers(0, 4, (count, 1))
    words = (topic * 8 + random.integers(0, 8, (count, length))) % 32
    strays = random.integers(0, 32, (count, length))
    words = np.where(random.random((count, length)) < 0.25, strays, words)
    before = np.concatenate([np.zeros((count, 1), int), words[:, :-1]], axis=1)
    return words.astype(np.int64), ((words // 4 + before // 16) % 5)


def topics(words: Array) -> Array:
    """Return the commonest group of words of each sentence, 0 to 3."""
    return np.stack([np.bincount(row // 8, minlength=4) for row in words]).argmax(1)


def one_hot(kinds: Array, count: int) -> Array:
    """Return 1 in the place of each kind, else 0."""
    return np.eye(count, dtype=np.float32)[kinds]


def both(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Return the generators of the training samples and of all others."""
    return np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
