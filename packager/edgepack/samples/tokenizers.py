"""Tokenizers that a model can hold (``preprocess: {extensions: [tokenize]}``), written anew here.

The operators' results are compared with these, so this uses nothing of onnxruntime-extensions.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from edgepack.ondevice.runtime.edgepack_wordpiece import (
    Around,
    Tokenizer,
    TokenizerError,
    WordPiece,
    read_template,
)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How ``ByteLevel`` cuts a text. Source: tokenizers, pre_tokenizers/byte_level.rs."""
_NEWER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = (GPT2, _NEWER % "{1,3}", _NEWER % "")
"""GPT-2's, Llama 3's and Qwen 2's, which operators are known to follow."""
_SPACES = frozenset(
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
    + "".join(map(chr, range(0x2000, 0x200B)))
)
_CLASS = re.compile(r"(\\p\{[A-Z][a-z]?\}|\\[sS]|\\.|[\[\]])")
_NEVER = r"\x00"
"""A character that no text has: the loader refuses it."""


@lru_cache(maxsize=4)
def parse_tokenizer(text: str) -> WordPiece | BytePairs:
    """Return the tokenizer that a ``tokenizer.json`` describes, of one of the kinds there are.

    The same text gives the same tokenizer.

    Raises:
        TokenizerError: It is of another kind, or no tokenizer; says which part is.
    """
    try:
        kind = _find_kind(json.loads(text)["model"])
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        kind = "WordPiece"  # which says what is not whole
    return WordPiece.parse(text) if kind == "WordPiece" else BytePairs.parse(text)


def _find_kind(model: Mapping[str, Any]) -> str:
    """Return the model's type, which older files do not have."""
    return str(model.get("type", "BPE" if "merges" in model else "WordPiece"))


class BytePairs(Tokenizer):
    """Byte-level byte-pair encoding, as of GPT-2, RoBERTa and Llama 3.

    Attributes:
        pattern: What words match, one of ``PATTERNS``.
        words: What the vocabulary holds of bytes and what merging makes of them, all of it where
            words are taken whole.
        merges: Pairs of these, the first to be merged first.
        added: What a ``tokenizer.json`` says of each added token, by its text.
    """

    def _read(self, tokenizer: Mapping[str, Any]) -> None:
        model = tokenizer["model"]
        _check_tokenizer(tokenizer)
        self._vocab: dict[str, int] = model["vocab"]
        if missing := [char for char in BYTES if char not in self._vocab]:
            raise TokenizerError(f"its vocabulary lacks {len(missing)} of the 256 bytes")
        self._whole = bool(model.get("ignore_merges"))
        pairs = (m.split(" ") if isinstance(m, str) else m for m in model["merges"])
        self.merges = [(first, second) for first, second in pairs]
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        merged = {"".join(pair) for pair in self._ranks}
        self.words = {
            word: n
            for word, n in self._vocab.items()
            if self._whole or word in merged or word in _BYTE_OF
        }
        self.pattern = _find_pattern(tokenizer["pre_tokenizer"])
        self.around = _read_around(tokenizer.get("post_processor"))
        added = tokenizer.get("added_tokens") or []
        self._composed = tokenizer.get("normalizer") is not None
        self.added = {token["content"]: token for token in added}
        padding = tokenizer.get("padding") or {}
        known = {**self._vocab, **{content: t["id"] for content, t in self.added.items()}}
        self.pad_id = padding.get("pad_id", known.get("<pad>", known.get("[PAD]", 0)))
        self.pad_type = padding.get("pad_type_id", 0)

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens around it, however many."""
        ids: list[int] = []
        if self._composed:
            text = unicodedata.normalize("NFC", text)
        for part, added in self._split_added(text):
            if added is not None:
                ids.append(added)
                continue
            for word in self._split_words(part):
                ids += self._merge_pieces("".join(BYTES[byte] for byte in word.encode()))
        return ids

    def list_unreachable(self) -> Iterator[str]:
        """Yield texts that are a word of the vocabulary, but not by merging their bytes."""
        for token in () if self._whole else self.words:
            word = bytes(_BYTE_OF[char] for char in token)
            text = word.decode(errors="ignore")
            whole = text.encode() == word and text not in self.added
            # The expression comes last: it is compiled anew for each text.
            if (
                whole
                and len(self._merge_pieces(token)) > 1
                and list(self._split_words(text)) == [text]
            ):
                yield text

    def _split_added(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield the parts of a text with the id of those that are added tokens."""
        contents = sorted(filter(None, self.added), key=len, reverse=True)
        start = 0
        for found in re.finditer("|".join(map(re.escape, contents)) or "(?!)", text):
            token = self.added[found[0]]
            before = text[start : found.start()]
            yield before.rstrip() if token["lstrip"] else before, None
            yield found[0], token["id"]
            start = found.end()
            if token["rstrip"]:
                start += len(text[start:]) - len(text[start:].lstrip())
        yield text[start:], None

    def _split_words(self, text: str) -> Iterator[str]:
        """Yield what matches the pattern, and what is between."""
        start = 0
        for found in re.finditer(_expand_pattern(self.pattern, text), text):
            yield from filter(None, (text[start : found.start()], found[0]))
            start = found.end()
        yield from filter(None, (text[start:],))

    def _merge_pieces(self, word: str) -> list[int]:
        if self._whole and word in self._vocab:
            return [self._vocab[word]]
        pieces = list(word)
        while len(pieces) > 1:
            pairs = list(itertools.pairwise(pieces))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            place = pairs.index(best)
            pieces[place : place + 2] = ["".join(best)]
        return [self._vocab[piece] for piece in pieces]


def _list_byte_characters() -> tuple[str, ...]:
    """Return the character that stands for each byte: itself where it prints, else a higher one."""
    prints = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in prints else next(others)) for byte in range(256))


BYTES = _list_byte_characters()
"""Source: tokenizers, pre_tokenizers/byte_level.rs (bytes_char)."""
_BYTE_OF = {char: byte for byte, char in enumerate(BYTES)}


def _check_tokenizer(tokenizer: Mapping[str, Any]) -> None:
    model = tokenizer["model"]
    if (kind := _find_kind(model)) != "BPE":
        raise TokenizerError(f"its model is {kind}, not WordPiece or BPE")
    keys = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if given := [key for key in keys if model.get(key)]:
        raise TokenizerError(f"its model is BPE with {given[0]!r}")
    normalizer = tokenizer.get("normalizer")
    if normalizer and normalizer["type"] != "NFC":
        raise TokenizerError(f"its normalizer is {normalizer['type']}, not NFC or none")
    for part in ("truncation", "padding"):
        direction = (tokenizer.get(part) or {}).get("direction", "Right")
        if direction != "Right":
            raise TokenizerError(f"its {part} is on the {direction.lower()}")
    for token in tokenizer.get("added_tokens") or []:
        if token["single_word"]:
            raise TokenizerError(f"its added token {token['content']!r} has 'single_word'")


def _find_pattern(given: Mapping[str, Any] | None) -> str:
    """Return the expression that cuts texts into words, in the syntax of the file."""
    steps = [given or {"type": "missing"}]
    if steps[0]["type"] == "Sequence":
        steps = steps[0]["pretokenizers"]
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"] and steps[0].get("use_regex", True):
        pattern = GPT2
    elif names == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True):
        if steps[0]["behavior"] != "Isolated" or steps[0].get("invert"):
            raise TokenizerError("its pre_tokenizer splits otherwise than 'Isolated'")
        pattern = steps[0]["pattern"]["Regex"]
    else:
        raise TokenizerError(f"its pre_tokenizer is {' and '.join(names)}, not ByteLevel")
    if steps[-1]["add_prefix_space"]:
        raise TokenizerError("its pre_tokenizer has 'add_prefix_space'")
    if pattern not in PATTERNS:
        raise TokenizerError("its pre_tokenizer cuts otherwise than GPT-2, Llama 3 and Qwen 2")
    return str(pattern)


def _read_around(processor: Mapping[str, Any] | None) -> Around:
    kind = (processor or {"type": "ByteLevel"})["type"]
    if processor is None or kind == "ByteLevel":
        return Around([], 0, [])
    if kind == "Sequence":
        rest = [each for each in processor["processors"] if each["type"] != "ByteLevel"]
        if len(rest) > 1:
            raise TokenizerError(f"its post_processor is {' and '.join(r['type'] for r in rest)}")
        return _read_around(rest[0] if rest else None)
    if kind == "RobertaProcessing":
        return Around([(processor["cls"][1], 0)], 0, [(processor["sep"][1], 0)])
    if kind != "TemplateProcessing":
        raise TokenizerError(f"its post_processor is {kind}, not TemplateProcessing")
    return read_template(processor)


def _expand_pattern(pattern: str, text: str) -> str:
    r"""Return a pattern for Python, with the text's own characters for ``\p{L}`` and the like."""
    chars, made, inside = sorted(set(text)), "", False
    for part in _CLASS.split(pattern):
        if part in ("[", "]"):
            inside = part == "["
        made += _list_members(part, chars, inside=inside) if part[:2] in _KNOWN else part
    return made


_KNOWN = (r"\p", r"\s", r"\S")


def _list_members(part: str, chars: list[str], *, inside: bool) -> str:
    kind = part[3:-1]
    found = (
        char
        for char in chars
        if (unicodedata.category(char).startswith(kind) if kind else char in _SPACES)
    )
    members = _NEVER + "".join(map(re.escape, found))
    return members if inside else f"[^{members}]" if part == r"\S" else f"[{members}]"
