"""Nodes that make token ids of a text's bytes, with operators of onnxruntime-extensions.

The operators' results were compared with those of :mod:`edgepack.samples.tokenizers`
(onnxruntime-extensions 0.15.2, x86-64, 2026-11-22):

- ``BertTokenizer``, ``BasicTokenizer``: of the characters behind U+00FF, capitals and accents
  often stay, and some punctuation is taken for letters; so characters are normalized by a table
  here. ``BertTokenizer`` and ``WordpieceTokenizer`` keep the pieces before the one that is not
  known, where the whole word is unknown; these are removed here.
- ``HfJsonTokenizer``: none of 2,100 drawn texts in a dozen scripts was cut otherwise for the
  expressions in ``PATTERNS`` there; with GPT-4o's, 27 of 700 were. It takes words that are in the
  vocabulary whole, as with ``ignore_merges``.
- ``HfJsonTokenizer`` overwrites its process's memory where an id is not below the number of words.
- ``BpeDecoder`` ends the process where it gets no ids at all (division by zero).
- A text ends for all of them at a NUL.
"""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.model.facts import CONTRIBUTED
from edgepack.ondevice.runtime.edgepack_wordpiece import CHINESE, Tokenizer, WordPiece
from edgepack.samples.tokenizers import BYTES, BytePairs, parse_tokenizer
from edgepack.steps.in_graph.preprocessing import Nodes

_NO_BYTE = "\ue000"
"""A character that represents no byte in a vocabulary."""
_PAGE = 256
"""How many characters one row of the table has."""
_CODE_POINTS = 0x110000
_HANGUL, _JAMO = range(0xAC00, 0xD7A4), range(0x1100, 0x1200)
_SPECIAL = ("Cc", "Cf", "M", "P", "Z")
"""The first letters of categories whose characters a normalizer does not treat alike."""


def add_token_nodes(made: Nodes, given: str, tokenizer: str) -> str:
    """Add the nodes that make a text's own token ids, without special ones around them.

    Args:
        made: What they are added to.
        given: A tensor, uint8 ``(N,)``: the UTF-8 bytes of a text that holds no NUL.
        tokenizer: The content of a ``tokenizer.json``.

    Returns:
        The name of an int64 tensor ``(tokens,)``.
    """
    codes = made.add("Cast", given, to=_INT64)
    parsed = parse_tokenizer(tokenizer)
    if isinstance(parsed, BytePairs):
        return _add_byte_pairs(made, codes, parsed)
    return _add_word_pieces(made, codes, parsed, json.loads(tokenizer)["model"])


def add_input_nodes(
    made: Nodes, own: str, tokenizer: Tokenizer, length: int, *, pad: bool
) -> tuple[str, str, str]:
    """Add what makes the inputs of a model of a text's own ids: cut, surrounded and filled up.

    Returns:
        Names of ids, attention mask and token types, int64 ``(1, tokens)``.
    """
    around = tokenizer.around
    before, after = (np.array(side, np.int64).reshape(-1, 2) for side in (around[0], around[2]))
    most = length - tokenizer.special_tokens
    cut = made.add("Slice", own, _int64(0), _int64(most))
    kinds = made.add("Expand", _int64(around.kind), made.add("Shape", cut))
    ids = made.add("Concat", before[:, 0], cut, after[:, 0], axis=0)
    types = made.add("Concat", before[:, 1], kinds, after[:, 1], axis=0)
    mask = made.add("Expand", _int64(1), made.add("Shape", ids))
    shape = _int64(1, length if pad else -1)
    if pad:
        filling = made.add("Sub", _int64(length), made.add("Shape", ids))
        pads = made.add("Concat", _int64(0), filling, axis=0)
        values = (tokenizer.pad_id, 0, tokenizer.pad_type)
        ids, mask, types = (
            made.add("Pad", each, pads, np.array(value, np.int64))
            for each, value in zip((ids, mask, types), values, strict=True)
        )
    ids, mask, types = (made.add("Reshape", each, shape) for each in (ids, mask, types))
    return ids, mask, types


def _add_byte_pairs(made: Nodes, codes: str, tokenizer: BytePairs) -> str:
    """Add byte-level BPE: bytes become one text, of which the operator makes ids."""
    end = len(BYTES)  # a special id, which adds nothing, so that there is one at least
    text = made.add(
        "BpeDecoder",
        made.add("Concat", codes, _int64(end), axis=0),
        domain=CONTRIBUTED,
        id_vocab="\n".join(BYTES) + "\n",
        byte_decoder="\n".join(f"{ord(char)}\t{byte}" for byte, char in enumerate(BYTES)),
        all_special_ids=str(end),
        skip_special_tokens=1,
    )
    ids = made.add(
        "HfJsonTokenizer",
        text,
        domain=CONTRIBUTED,
        tokenizer_config=json.dumps({"tokenizer_class": "GPT2Tokenizer"}),
        tokenizer_vocab=json.dumps(_make_tokenizer_json(tokenizer)),
    )
    made.declare(_STRING, 1, text)
    made.declare(_INT64, 2, ids)
    return made.add("Reshape", ids, _int64(-1))


def _make_tokenizer_json(tokenizer: BytePairs) -> dict[str, Any]:
    """Return a ``tokenizer.json`` that the operator reads as it is meant.

    Each id up to the highest has a word: behind the end of its table the operator writes into
    others' memory. Those that stand in for none hold a character that stands for no byte.
    """
    ids = {n: word for word, n in tokenizer.words.items()}
    highest = max({*ids, *(token["id"] for token in tokenizer.added.values())})
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    split = {"pattern": {"Regex": tokenizer.pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "added_tokens": [
            {"id": token["id"], "content": content, "special": True, **dict.fromkeys(flags, False)}
            for content, token in tokenizer.added.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Split", **split}, {"type": "ByteLevel", **byte_level}],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {
            "type": "BPE",
            "vocab": {ids.get(n, f"{_NO_BYTE}{n}"): n for n in range(highest + 1)},
            "merges": [" ".join(pair) for pair in tokenizer.merges],
        },
    }


def _add_word_pieces(
    made: Nodes, codes: str, tokenizer: WordPiece, model: Mapping[str, Any]
) -> str:
    """Add WordPiece: characters become normalized text, this words, and these pieces."""
    vocab: dict[str, int] = model["vocab"]
    normalization = _make_table(tokenizer, frozenset("".join(vocab)))
    texts = normalization.texts
    characters = _add_decoding(made, codes)
    page = made.add("Gather", normalization.pages, made.add("Div", characters, _int64(_PAGE)))
    cell = made.add("Mod", characters, _int64(_PAGE))
    place = made.add("Add", made.add("Mul", page, _int64(_PAGE)), cell)
    normal = made.add("Gather", normalization.cells, place)
    normal = made.add("Compress", normal, made.add("Greater", normal, _int64(0)), axis=0)
    # It is never empty: a text ends with a space.
    normal = made.add("Concat", normal, _int64(texts.index(" ")), axis=0)
    letters = made.add(
        "VectorToString",
        made.add("Unsqueeze", normal, _int64(1)),
        domain=CONTRIBUTED,
        map="\n".join(f"{text}\t{n}" for n, text in enumerate(texts) if text),
        unk="",
    )
    empty, zero = np.array([""], object), _int64(0)
    text = made.add("StringJoin", letters, empty, zero, domain=CONTRIBUTED)
    made.declare(_STRING, 1, letters, text)
    words = made.add_several(
        3,
        "StringSplit",
        *(text, np.array([" "], object), np.array([True])),
        domain=CONTRIBUTED,
    )[1]
    made.declare(_STRING, 1, words)
    count = made.add("Squeeze", made.add("Shape", words))
    each = made.add("Range", np.array(0), count, np.array(1))
    pieces, _, begins, ends = made.add_several(
        4,
        "WordpieceTokenizer",
        *(words, each),
        domain=CONTRIBUTED,
        vocab=json.dumps(vocab),
        suffix_indicator=model["continuing_subword_prefix"],
        unknown_token=model["unk_token"],
        max_input_chars_per_word=model["max_input_chars_per_word"],
    )
    made.declare(_STRING, 1, pieces)
    made.declare(_INT64, 1, begins, ends)
    unknown = vocab[model["unk_token"]]
    ids = made.add(
        "StringToVector",
        pieces,
        domain=CONTRIBUTED,
        map="\n".join(f"{w}\t{n}" for w, n in vocab.items() if w and not {*"\t\n"} & {*w}),
        unk=str(unknown),
    )
    made.declare(_INT64, 2, ids)
    return _add_piece_removal(made, made.add("Reshape", ids, _int64(-1)), begins, ends, unknown)


def _add_piece_removal(made: Nodes, ids: str, begins: str, ends: str, unknown: int) -> str:
    """Add the removal of the pieces before an unknown one in the same word."""
    nothing = made.add("Expand", _int64(0), made.add("Shape", ids))
    ones = made.add("Expand", _int64(1), made.add("Shape", begins))
    last = made.add("Sub", ends, _int64(1))
    starts = made.add("ScatterElements", nothing, begins, ones, axis=0)
    word = made.add("Sub", made.add("CumSum", starts, np.array(0)), _int64(1))
    known = made.add("Not", made.add("Equal", ids, _int64(unknown)))
    whole = made.add("Gather", made.add("Gather", known, last), word)
    is_last = made.add("ScatterElements", nothing, last, ones, axis=0)
    kept = made.add("Or", whole, made.add("Cast", is_last, to=_BOOL))
    return made.add("Compress", ids, kept, axis=0)


def _add_decoding(made: Nodes, codes: str) -> str:
    """Add decoding of UTF-8: int64 bytes ``(N,)`` become code points."""
    byte = np.arange(256)
    kinds = [byte < 0xC0, byte < 0xE0, byte < 0xF0]
    sizes = np.select(kinds, [1, 2, 3], 4)
    bits = np.select(kinds, [byte, byte & 31, byte & 15], byte & 7)
    size = made.add("Gather", sizes, codes)
    found = made.add("Gather", bits, codes)
    padded = made.add("Concat", codes, _int64(0x80, 0x80, 0x80), axis=0)
    for place in (1, 2, 3):
        end = _int64(place - 3) if place < 3 else _int64(np.iinfo(np.int64).max)
        following = made.add("Slice", padded, _int64(place), end)
        bits_of = made.add("Sub", following, _int64(0x80))
        longer = made.add("Add", made.add("Mul", found, _int64(64)), bits_of)
        found = made.add("Where", made.add("Greater", size, _int64(place)), longer, found)
    following = made.add("Equal", made.add("Div", codes, _int64(64)), _int64(2))
    found = made.add("Compress", found, made.add("Not", following), axis=0)
    # Bytes that are not UTF-8 become some code point.
    return made.add("Max", made.add("Min", found, _int64(_CODE_POINTS - 1)), _int64(0))


@lru_cache(maxsize=4)
def _make_table(tokenizer: WordPiece, alphabet: frozenset[str]) -> _Table:
    """Return what each character becomes.

    Each becomes the same wherever it stands. The one exception is left out: marks of category Mc
    that NFD puts behind others, as in musical notation.

    Args:
        tokenizer: Whose normalizer it is.
        alphabet: All characters of the vocabulary. Others are not distinguished.
    """
    foreign = next(chr(c) for c in range(0xF0000, _CODE_POINTS) if chr(c) not in alphabet)

    def normalize(char: str) -> str:
        text = " ".join(tokenizer.split_words(f"x{char}x"))[1:-1]
        return "".join(c if c == " " or c in alphabet else foreign for c in text)

    texts = {"": 0, " ": 1}
    table = np.empty(_CODE_POINTS, np.int64)
    for codes in _group_alike():
        char = next((chr(c) for c in codes if chr(c) not in alphabet), foreign)
        table[codes] = texts.setdefault(normalize(char), len(texts))
    syllables = _HANGUL if alphabet & {chr(code) for code in _JAMO} else range(0)
    for code in {*_list_separate_codes(), *syllables, *map(ord, alphabet)}:
        table[code] = texts.setdefault(normalize(chr(code)), len(texts))
    rows: dict[bytes, int] = {}
    pages = [rows.setdefault(row.tobytes(), len(rows)) for row in table.reshape(-1, _PAGE)]
    cells = np.frombuffer(b"".join(rows), np.int64)
    return _Table(np.array(pages, np.int64), cells, list(texts))


@dataclass(frozen=True)
class _Table:
    """What characters become, in pages of code points."""

    pages: Array
    """By page, which of the different ones it is."""
    cells: Array
    """The different pages behind each other: numbers of texts."""
    texts: list[str]
    """With spaces around what is a word of its own. The first is none."""


@lru_cache(maxsize=1)
def _group_alike() -> list[Array]:
    """Return all code points in groups whose characters are treated alike, except separate ones."""
    every = "".join(map(chr, range(_CODE_POINTS)))
    ideographs = np.array([found.start() for found in CHINESE.finditer(every)])
    private = np.array([*range(0xE000, 0xF900), *range(0xF0000, _CODE_POINTS)])
    # Unassigned code points come first and count as letters.
    return [np.roll(np.arange(_CODE_POINTS), -0x40000), private, ideographs]


@lru_cache(maxsize=1)
def _list_separate_codes() -> list[int]:
    """Return code points that a normalizer may treat otherwise than letters at large.

    Left out are planes of ideographs (Blocks.txt of Unicode), where there are none such.
    """
    others = (range(0x3400), range(0xA000, 0xD800), range(0xF900, 0x20000))
    supplements = (range(0x2F800, 0x2FA20), range(0xE0000, 0xE0200))
    return [
        code
        for code, char in ((c, chr(c)) for c in itertools.chain(*others, *supplements))
        if unicodedata.category(char).startswith(_SPECIAL)
        or unicodedata.decomposition(char)
        or char == "\ufffd"
        or char != char.lower()
    ]


_INT64, _STRING, _BOOL = 7, 8, 9
"""Of onnx.TensorProto."""


def _int64(*values: int) -> Array:
    return np.array(values, np.int64)
