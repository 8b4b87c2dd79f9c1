"""Tokenizers written anew, which models' own are held against: ids computed by hand."""

from __future__ import annotations

import json

import pytest
from edgepack.ondevice.runtime.edgepack_wordpiece import TokenizerError, WordPiece
from edgepack.samples.tokenizers import BytePairs, parse_tokenizer

from tests.support.nets import text_nets

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_by(pattern: str, **changes: object) -> dict[str, object]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [{**split, **changes}, byte_level]}


def words(described: dict, text: str) -> list[str]:
    tokenizer = BytePairs.parse(json.dumps(described))
    names = {n: word for word, n in described["model"]["vocab"].items()}
    names |= {token["id"]: token["content"] for token in described["added_tokens"]}
    return [names[n] for n in tokenizer.tokenize(text)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("hello world", ["hello", "Ġworld"]),
        ("hello  world", ["hello", "Ġ", "Ġworld"]),
        ("shell", ["s", "hell"]),
        ("world\n", ["w", "or", "ld", "Ċ"]),
        ("é", ["Ã", "©"]),
        ("a</s>b", ["a", "</s>", "b"]),
        ("don't 1a", ["d", "o", "n", "'", "t", "Ġ", "1", "a"]),
        ("", []),
    ],
)
def test_byte_pairs_when_text_is_cut_and_merged_are_those_of_the_rules(text, tokens):
    assert words(text_nets.byte_pairs(), text) == tokens


def test_byte_pairs_when_digits_are_cut_by_threes_do_not_merge_across():
    described = text_nets.byte_pairs(pre_tokenizer=split_by(LLAMA3))
    vocab = described["model"]["vocab"]
    for merge in ("3 4", "1 2", "12 3"):
        described["model"]["merges"].append(merge)
        vocab[merge.replace(" ", "")] = len(vocab)
    assert words(described, "12345") == ["123", "4", "5"]
    assert words({**described, "pre_tokenizer": text_nets.BYTE_LEVEL}, "12345")[0] != "123"


def test_byte_pairs_when_the_normalizer_is_nfc_are_of_the_composed_text():
    described = text_nets.byte_pairs(normalizer={"type": "NFC"})
    assert words(described, "e\u0301") == words(described, "é") == ["Ã", "©"]


def test_byte_pairs_when_an_added_token_strips_takes_the_spaces_beside_it_away():
    described = text_nets.byte_pairs()
    mask = {"id": 290, "content": "<mask>", "special": True, **text_nets.FLAGS, "lstrip": True}
    described["added_tokens"].append(mask)
    assert words(described, "hello <mask> world") == ["hello", "<mask>", "Ġworld"]


def test_byte_pairs_when_a_word_is_in_no_merge_are_pieces_unless_words_are_taken_whole():
    described = text_nets.byte_pairs()
    described["model"]["vocab"]["or"] = described["model"]["vocab"].pop("or")
    described["model"]["vocab"]["ab"] = 280
    assert words(described, "ab") == ["a", "b"]
    described["model"]["ignore_merges"] = True
    assert words(described, "ab") == ["ab"]


def test_encoding_when_texts_are_short_and_long_is_surrounded_cut_and_filled():
    tokenizer = parse_tokenizer(json.dumps(text_nets.byte_pairs()))
    hello, world = 3 + 256 + 3, 3 + 256 + 8
    assert tokenizer.encode("hello", 4, pad=True).input_ids == [0, hello, 2, 1]
    assert tokenizer.encode("hello world!", 4, pad=True).input_ids == [0, hello, world, 2]
    assert tokenizer.encode("hello", 4, pad=False).attention_mask == [1, 1, 1]


def test_tokenizer_when_an_older_file_does_not_name_the_type_is_told_by_its_merges():
    described = text_nets.byte_pairs()
    del described["model"]["type"]
    assert isinstance(parse_tokenizer(json.dumps(described)), BytePairs)


def test_tokenizer_when_it_is_of_berts_kind_is_read_as_word_piece():
    assert isinstance(parse_tokenizer(json.dumps(text_nets.word_pieces())), WordPiece)


def changed_model(**changes: object) -> dict[str, object]:
    described = text_nets.byte_pairs()
    return {**described, "model": {**described["model"], **changes}}


BYTE_PAIRS = text_nets.byte_pairs
PREFIXED = {**text_nets.BYTE_LEVEL, "add_prefix_space": True}
MASK = {"id": 290, "content": "<mask>", "special": True, **text_nets.FLAGS, "single_word": True}
REFUSED = {
    "unigram": (changed_model(type="Unigram"), "its model is Unigram"),
    "dropout": (changed_model(dropout=0.1), "BPE with 'dropout'"),
    "word ends": (changed_model(end_of_word_suffix="</w>"), "BPE with 'end_of_word_suffix'"),
    "few bytes": (changed_model(vocab={"a": 0}), "lacks 255 of the 256 bytes"),
    "normalized": (BYTE_PAIRS(normalizer={"type": "NFKC"}), "its normalizer is NFKC, not NFC"),
    "words at spaces": (BYTE_PAIRS(pre_tokenizer={"type": "Whitespace"}), "is Whitespace, not"),
    "nothing cut": (BYTE_PAIRS(pre_tokenizer=None), "is missing, not ByteLevel"),
    "a space before": (BYTE_PAIRS(pre_tokenizer=PREFIXED), "has 'add_prefix_space'"),
    "another expression": (BYTE_PAIRS(pre_tokenizer=split_by("x")), "otherwise than GPT-2"),
    "not isolated": (
        BYTE_PAIRS(pre_tokenizer=split_by(LLAMA3, behavior="Removed")),
        "splits otherwise than 'Isolated'",
    ),
    "left": (BYTE_PAIRS(truncation={"direction": "Left"}), "truncation is on the left"),
    "single words": (BYTE_PAIRS(added_tokens=[MASK]), "has 'single_word'"),
    "two around": (
        BYTE_PAIRS(post_processor={"type": "Sequence", "processors": [{"type": "a"}] * 2}),
        "post_processor is a and a",
    ),
}


@pytest.mark.parametrize(("described", "message"), REFUSED.values(), ids=REFUSED)
def test_tokenizer_when_it_is_of_another_kind_says_which_part(described, message):
    with pytest.raises(TokenizerError, match=message):
        BytePairs(described)
