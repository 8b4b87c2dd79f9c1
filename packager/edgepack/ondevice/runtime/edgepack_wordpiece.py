"""Texts to token ids, as the ``tokenizer.json`` of a BERT model says: WordPiece and nothing else.

What the file may hold, and what each part does, is that of the Rust library ``tokenizers`` that
wrote it: normalizer ``BertNormalizer``, pre-tokenizer ``BertPreTokenizer``, model ``WordPiece``,
post-processor ``TemplateProcessing`` or ``BertProcessing``, added tokens, truncation and padding at
the end. Everything else is refused, because ids that are only nearly right make a model quietly
worse. The Kotlin and Swift runtimes do the same. Source: ids, masks and types were those of
``tokenizers`` 0.15.2 for all of 24,000 drawn texts and nine such files (2026-11-22).

Categories of characters come from the platform's Unicode tables: of characters that are newer than
these, two platforms may think differently.

Needs Python 3.8 or newer; nothing else.
"""

from __future__ import annotations

import json
import operator
import re
import unicodedata
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

if TYPE_CHECKING:
    from typing import Self

# What Unicode calls White_Space, without str.isspace's U+001C to U+001F.
_SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORD = re.compile(f"[^{_SPACES}]+")
_SPACE = re.compile(f"[{_SPACES}]")
# Source: tokenizers, normalizers/bert.rs (is_chinese_char), with its gap at U+2B820 to U+2B91F.
CHINESE = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b920-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f]"
)
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_CONTROL = frozenset({"Cc", "Cf", "Co", "Cs"})
"""Categories that clean_text removes. Source: unicode_categories 0.1.1, is_other; a Rust string has
no lone surrogates."""


_RULES = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")


class TokenizerError(ValueError):
    """The file describes a tokenizer of another kind."""


class Encoding(NamedTuple):
    """One text as a model takes it. All three have the same length."""

    input_ids: List[int]
    attention_mask: List[int]
    """1 for tokens of the text and special ones, 0 for padding."""
    token_type_ids: List[int]


class Around(NamedTuple):
    """What stands around a text's tokens: ids with their types."""

    before: List[Tuple[int, int]]
    kind: int
    """The text's own type."""
    after: List[Tuple[int, int]]


class Tokenizer:
    """What makes token ids of a text: its own tokens, and what stands around them.

    Args:
        tokenizer: What a ``tokenizer.json`` holds.

    Attributes:
        around: What stands around a text's tokens.
        pad_id: What the end is filled up with.
        pad_type: The token type of that.

    Raises:
        TokenizerError: It is of another kind; says which part is.
    """

    around: Around
    pad_id: int
    pad_type: int

    def __init__(self, tokenizer: Mapping[str, Any]) -> None:
        try:
            self._read(tokenizer)
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise TokenizerError(f"it is not whole: {type(error).__name__} {error}") from error

    def _read(self, tokenizer: Mapping[str, Any]) -> None:
        raise NotImplementedError

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the tokenizer that a file's text describes.

        Raises:
            TokenizerError: The text is no JSON, or no such tokenizer.
        """
        try:
            tokenizer = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TokenizerError(f"it is no JSON: {error}") from error
        return cls(tokenizer)

    @property
    def special_tokens(self) -> int:
        """How many tokens stand around those of a text."""
        return len(self.around.before) + len(self.around.after)

    def encode(self, text: str, length: int, *, pad: bool) -> Encoding:
        """Return the token ids of a text.

        Args:
            text: One text; what it holds of the file's added tokens, such as ``[MASK]``, becomes
                these.
            length: The most tokens, special ones included: what is more is cut off the text's end.
            pad: Whether to fill up to ``length``.

        Raises:
            ValueError: ``length`` does not even hold the special tokens.
        """
        if length < self.special_tokens:
            raise ValueError(f"{length} tokens do not hold the {self.special_tokens} special ones")
        own = self.tokenize(text)[: length - self.special_tokens]
        pairs = [*self.around.before, *((token, self.around.kind) for token in own)]
        pairs += self.around.after
        filling = length - len(pairs) if pad else 0
        return Encoding(
            [token for token, _ in pairs] + [self.pad_id] * filling,
            [1] * len(pairs) + [0] * filling,
            [kind for _, kind in pairs] + [self.pad_type] * filling,
        )

    def tokenize(self, text: str) -> List[int]:
        """Return the token ids of a text, without special tokens around it, however many."""
        raise NotImplementedError


class WordPiece(Tokenizer):
    """A tokenizer of BERT's kind. Threads may share it."""

    def _read(self, tokenizer: Mapping[str, Any]) -> None:
        _check(tokenizer)
        model, normalizer = tokenizer["model"], tokenizer["normalizer"]
        self._normalizer: Dict[str, Optional[bool]] = {rule: normalizer[rule] for rule in _RULES}
        self._vocab: Dict[str, int] = model["vocab"]
        self._unknown = self._vocab[model["unk_token"]]
        self._prefix: str = model["continuing_subword_prefix"]
        self._longest_word = operator.index(model["max_input_chars_per_word"])
        self.around = read_template(tokenizer["post_processor"])
        added = tokenizer.get("added_tokens") or []
        self._exact = {t["content"]: t["id"] for t in added if not t["normalized"]}
        self._normalized = {
            self._normalize(t["content"]): t["id"] for t in added if t["normalized"]
        }
        padding = tokenizer.get("padding") or {}
        known = {**self._vocab, **self._exact}
        self.pad_id = padding.get("pad_id", known.get("[PAD]", 0))
        self.pad_type = padding.get("pad_type_id", 0)

    def tokenize(self, text: str) -> List[int]:
        """Return the token ids of a text, without special tokens around it, however many."""
        ids: List[int] = []
        for part, exact in _split(text, self._exact):
            if exact is not None:
                ids.append(exact)
                continue
            for piece, known in _split(self._normalize(part), self._normalized):
                ids += self._tokenize_words(piece) if known is None else [known]
        return ids

    def split_words(self, text: str) -> List[str]:
        """Return the words of a text, normalized; punctuation is a word, added tokens are text."""
        return list(_split_words(self._normalize(text)))

    def _normalize(self, text: str) -> str:
        """Return a text as ``BertNormalizer`` makes it."""
        rules = self._normalizer
        if rules["clean_text"]:
            text = "".join(map(_clean_character, text))
        if rules["handle_chinese_chars"]:
            text = CHINESE.sub(r" \g<0> ", text)
        strip = rules["strip_accents"]
        if rules["lowercase"] if strip is None else strip:
            marked = unicodedata.normalize("NFD", text)
            text = "".join(c for c in marked if unicodedata.category(c) != "Mn")
        if rules["lowercase"]:
            # Each by itself: Python would write a sigma at a word's end otherwise.
            text = "".join(c.lower() for c in text)
        return text

    def _tokenize_words(self, text: str) -> List[int]:
        return [token for word in _split_words(text) for token in self._find_pieces(word)]

    def _find_pieces(self, word: str) -> List[int]:
        """Return the ids of the longest pieces from the left; the unknown token's if one lacks.

        Characters are counted, and words cut between them, as Unicode code points.
        """
        if len(word) > self._longest_word:
            return [self._unknown]
        ids: List[int] = []
        start = 0
        while start < len(word):
            prefix = self._prefix if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self._vocab), None)
            if end is None:
                return [self._unknown]
            ids.append(self._vocab[prefix + word[start:end]])
            start = end
        return ids


def read_template(processor: Mapping[str, Any]) -> Around:
    """Return what ``TemplateProcessing`` or ``BertProcessing`` puts around one text."""
    if processor["type"] == "BertProcessing":
        return Around([(processor["cls"][1], 0)], 0, [(processor["sep"][1], 0)])
    kinds = [piece["Sequence"]["type_id"] for piece in processor["single"] if "Sequence" in piece]
    if len(kinds) != 1:
        raise TokenizerError(f"its template for one text has {len(kinds)} texts")
    before: List[Tuple[int, int]] = []
    after: List[Tuple[int, int]] = []
    side = before
    for piece in processor["single"]:
        if "Sequence" in piece:
            side = after
            continue
        special = piece["SpecialToken"]
        ids = processor["special_tokens"][special["id"]]["ids"]
        side += [(token, special["type_id"]) for token in ids]
    return Around(before, kinds[0], after)


class InModel(NamedTuple):
    """What a caller does before a model that makes the tokens itself."""

    untold: List[str]
    """Added tokens that a text must not hold: operators for WordPiece know none, those for BPE do
    not cut off the spaces beside one."""
    composed: bool
    """Whether a text has to be in Unicode's form NFC."""

    @classmethod
    def parse(cls, text: str) -> InModel:
        """Return it for the text of a ``tokenizer.json`` that is in the model."""
        tokenizer = json.loads(text)
        pieces = "merges" not in tokenizer["model"]
        added = tokenizer.get("added_tokens") or []
        untold = [t["content"] for t in added if pieces or t["lstrip"] or t["rstrip"]]
        return cls(untold, not pieces and tokenizer.get("normalizer") is not None)

    def encode_text(self, text: str) -> bytes:
        """Return a text as such a model takes it: UTF-8.

        Raises:
            ValueError: The model would make other tokens of it.
        """
        if "\0" in text:
            raise ValueError("the text holds a NUL, at which the model would end it")
        for token in self.untold:
            if token in text:
                raise ValueError(
                    f"the text holds {token!r}, which the model does not tell from words: leave it"
                    " out, or make the token ids outside the model"
                )
        return (unicodedata.normalize("NFC", text) if self.composed else text).encode("utf-8")


_KINDS = {
    "normalizer": ("BertNormalizer",),
    "pre_tokenizer": ("BertPreTokenizer",),
    "model": ("WordPiece",),
    "post_processor": ("TemplateProcessing", "BertProcessing"),
}


def _check(tokenizer: Mapping[str, Any]) -> None:
    for part, kinds in _KINDS.items():
        found = (tokenizer.get(part) or {}).get("type", "missing")
        if found not in kinds:
            raise TokenizerError(f"its {part} is {found}, not {' or '.join(kinds)}")
    for part in ("truncation", "padding"):
        direction = (tokenizer.get(part) or {}).get("direction", "Right")
        if direction != "Right":
            raise TokenizerError(f"its {part} is on the {direction.lower()}")
    for token in tokenizer.get("added_tokens") or []:
        for flag in ("single_word", "lstrip", "rstrip"):
            if token[flag]:
                raise TokenizerError(f"its added token {token['content']!r} has {flag!r}")


def _split(text: str, tokens: Mapping[str, int]) -> Iterator[Tuple[str, Optional[int]]]:
    """Yield the parts of a text with the id of those that are tokens: the leftmost, longest."""
    contents = sorted(filter(None, tokens), key=len, reverse=True)
    if not contents:
        yield text, None
        return
    for part in re.split(f"({'|'.join(map(re.escape, contents))})", text):
        if part:
            yield part, tokens.get(part)


def _clean_character(character: str) -> str:
    if character in "\t\n\r":
        return " "
    if character == "\ufffd" or unicodedata.category(character) in _CONTROL:
        return ""
    return _SPACE.sub(" ", character)


def _split_words(text: str) -> Iterator[str]:
    return (part for word in _WORD.findall(text) for part in _split_punctuation(word))


def _split_punctuation(word: str) -> Iterator[str]:
    """Yield a word's parts: each punctuation character by itself, and what is between them."""
    start = 0
    for index, character in enumerate(word):
        if _is_punctuation(character):
            yield from filter(None, (word[start:index], character))
            start = index + 1
    if start < len(word):
        yield word[start:]


def _is_punctuation(character: str) -> bool:
    return character in _ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")
