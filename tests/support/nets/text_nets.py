"""Tiny text models and tokenizers, for tests of models that make their token ids themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import save

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "##s", "##x", "!", "zo", "##e", "日"]
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def word_pieces(words: Sequence[str] = WORDS, **changes: Any) -> dict[str, Any]:
    """Return a tokenizer of BERT's kind; the first four words are the special ones of ``WORDS``."""
    return {
        "added_tokens": [
            {"id": n, "content": word, "special": True, **FLAGS} for n, word in enumerate(words[:4])
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: n for n, word in enumerate(words)},
        },
        **changes,
    }


def byte_vocabulary() -> list[str]:
    """Return what GPT-2 writes for each byte: what prints is itself, the others are moved up."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = {byte: 256 + n for n, byte in enumerate(b for b in range(256) if b not in prints)}
    return [chr(moved.get(byte, byte)) for byte in range(256)]


def byte_pairs(**changes: Any) -> dict[str, Any]:
    """Return a tokenizer of RoBERTa's kind: ``<s>``, ``<pad>``, ``</s>``, bytes and nine merges."""
    special = ["<s>", "<pad>", "</s>"]
    words = [*special, *byte_vocabulary(), *(merge.replace(" ", "") for merge in MERGES)]
    return {
        "added_tokens": [
            {"id": n, "content": word, "special": True, **FLAGS} for n, word in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]},
        "model": {
            "type": "BPE",
            "vocab": {word: n for n, word in enumerate(words)},
            "merges": list(MERGES),
        },
        **changes,
    }


def text_net(path: Path, tokens: int | str = 6, *, dtype: int = TensorProto.INT64) -> Path:
    """Write a model that gives the embeddings of tokens, and the mean of those its mask shows.

    Each of 300 embeddings is four drawn numbers; ``input_ids`` and ``attention_mask`` are
    ``(1, tokens)``.
    """
    table = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"], "words"),
        helper.make_node("Cast", ["attention_mask"], ["shown"], "shown", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["shown", "last"], ["mask"], "mask"),
        helper.make_node("Mul", ["words", "mask"], ["masked"], "masked"),
        helper.make_node("ReduceSum", ["masked", "middle"], ["sum"], "sum", keepdims=0),
        helper.make_node("ReduceSum", ["mask", "middle"], ["count"], "count", keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["vector"], "mean"),
    ]
    constants = [("table", table), ("last", np.array([2])), ("middle", np.array([1]))]
    inputs = [(name, dtype, [1, tokens]) for name in ("input_ids", "attention_mask")]
    outputs = [("vector", TensorProto.FLOAT, [1, 4]), ("words", TensorProto.FLOAT, [1, tokens, 4])]
    return save(path, nodes, inputs, outputs, constants)
