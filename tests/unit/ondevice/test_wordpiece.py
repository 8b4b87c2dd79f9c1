"""WordPiece against a table worked out by hand from what each part of BERT's tokenizer does."""

from __future__ import annotations

import copy
import json

import pytest
from edgepack.ondevice.runtime.edgepack_wordpiece import TokenizerError, WordPiece

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = [*SPECIAL, "un", "##aff", "##able", "want", "##want", "wa", "##ed", "runn", "##ing", ",",
         "the", "fox", "'", "s", "!", "cafe", "caf\u00e9", "\u4e2d", "\u6587", "\u03c3", "##\u03c3",
         "##\u03c2", "$", "Fox", "a", "##b"]  # fmt: skip


def tokenizer(**normalizer):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    sides = [{"SpecialToken": {"id": word, "type_id": 0}} for word in ("[CLS]", "[SEP]")]
    tokens = {w: {"id": w, "ids": [VOCAB.index(w)], "tokens": [w]} for w in ("[CLS]", "[SEP]")}
    rules = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    return {
        "added_tokens": [
            {"id": n, "content": word, "special": True, **flags} for n, word in enumerate(SPECIAL)
        ],
        "truncation": None,
        "padding": None,
        "normalizer": {"type": "BertNormalizer", **rules, "lowercase": True, **normalizer},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [sides[0], {"Sequence": {"id": "A", "type_id": 0}}, sides[1]],
            "pair": [],
            "special_tokens": tokens,
        },
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 12,
            "vocab": {word: n for n, word in enumerate(VOCAB)},
        },
    }


def words(text, **normalizer):
    """What a text becomes, as the vocabulary's words."""
    return [VOCAB[token] for token in WordPiece(tokenizer(**normalizer)).tokenize(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n ", []),
        ("unaffable", ["un", "##aff", "##able"]),
        ("UNwant\u00e9d,running", ["un", "##want", "##ed", ",", "runn", "##ing"]),
        ("the fox's!!", ["the", "fox", "'", "s", "!", "!"]),
        # The longest piece first; a word with a part that is no piece is unknown as a whole.
        ("wanted", ["want", "##ed"]),
        ("unfox", ["[UNK]"]),
        ("$the", ["$", "the"]),
        ("a" + "b" * 11, ["a"] + ["##b"] * 11),
        ("a" + "b" * 12, ["[UNK]"]),
        ("Caf\u00e9 CAFE\u0301", ["cafe", "cafe"]),
        ("\u4e2d\u6587fox\u4e2d", ["\u4e2d", "\u6587", "fox", "\u4e2d"]),
        # Lower case of each letter by itself: no final sigma.
        ("\u03a3\u03a3 \u03c3\u03c2", ["\u03c3", "##\u03c3", "\u03c3", "##\u03c2"]),
        ("the\u00a0fox\u3000the\u2028fox", ["the", "fox", "the", "fox"]),
        # Control and format characters vanish, and join what is around them.
        ("fo\u0000x f\u00adox fo\u200bx \ufffdfox f\u000box", ["fox"] * 5),
        ("[MASK]un[SEP] fox [mask]", ["[MASK]", "un", "[SEP]", "fox", *["[UNK]"] * 3]),
    ],
)  # fmt: skip
def test_tokens_when_uncased_are_those_of_the_table(text, expected):
    assert words(text) == expected


def test_tokens_when_cased_keep_case_and_accents():
    assert words("Fox FOX caf\u00e9", lowercase=False) == ["Fox", "[UNK]", "caf\u00e9"]


def test_tokens_when_accents_are_kept_are_lower_case_only():
    assert words("CAF\u00c9 cafe\u0301", strip_accents=False) == ["caf\u00e9", "[UNK]"]


def test_tokens_when_nothing_is_cleaned_keep_characters_that_join_words():
    assert words("fo\u200bx the", clean_text=False) == ["[UNK]", "the"]
    # U+001C is no White_Space, though str.isspace says so.
    assert words("the\u001cfox", clean_text=False) == ["[UNK]"]
    assert words("\u4e2d\u6587", handle_chinese_chars=False) == ["[UNK]"]


def test_encoding_when_short_is_filled_up_to_the_length():
    found = WordPiece(tokenizer()).encode("the fox", 6, pad=True)
    assert found.input_ids == [2, VOCAB.index("the"), VOCAB.index("fox"), 3, 0, 0]
    assert found.attention_mask == [1, 1, 1, 1, 0, 0]
    assert found.token_type_ids == [0] * 6


def test_encoding_when_long_is_cut_before_the_last_special_token():
    found = WordPiece(tokenizer()).encode("the fox the fox", 4, pad=False)
    assert found.input_ids == [2, VOCAB.index("the"), VOCAB.index("fox"), 3]
    assert WordPiece(tokenizer()).encode("the fox", 2, pad=True).input_ids == [2, 3]
    with pytest.raises(ValueError, match="do not hold the 2 special ones"):
        WordPiece(tokenizer()).encode("the fox", 1, pad=True)


def test_encoding_when_the_file_says_how_to_pad_does_so():
    file = tokenizer()
    file["padding"] = {"direction": "Right", "pad_id": 4, "pad_type_id": 1, "pad_token": "[MASK]"}
    found = WordPiece(file).encode("the", 5, pad=True)
    assert found.input_ids[3:] == [4, 4]
    assert found.token_type_ids == [0, 0, 0, 1, 1]


def test_encoding_when_the_post_processor_is_berts_own_is_the_same():
    file = tokenizer()
    file["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    assert WordPiece(file).encode("fox", 9, pad=True) == WordPiece(tokenizer()).encode(
        "fox", 9, pad=True
    )


def test_tokens_when_added_ones_are_normalized_are_found_in_any_case_longest_first():
    file = tokenizer()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    for n, word in ((90, "New"), (91, "NewYork")):
        file["added_tokens"].append({"id": n, "content": word, "normalized": True, **flags})
    assert WordPiece(file).tokenize("newyork NEWthe") == [91, 90, VOCAB.index("the")]


REFUSED = {
    "it is not whole: KeyError 'clean_text'": {"normalizer": {"type": "BertNormalizer"}},
    "it is not whole: TypeError": {
        "model": {**tokenizer()["model"], "max_input_chars_per_word": "100"}
    },
    "its model is BPE": {"model": {"type": "BPE"}},
    "its model is Unigram": {"model": {"type": "Unigram"}},
    "its normalizer is NFC": {"normalizer": {"type": "NFC"}},
    "its normalizer is missing": {"normalizer": None},
    "its pre_tokenizer is Whitespace": {"pre_tokenizer": {"type": "Whitespace"}},
    "its post_processor is RobertaProcessing": {"post_processor": {"type": "RobertaProcessing"}},
    "its truncation is on the left": {"truncation": {"direction": "Left"}},
    "its padding is on the left": {"padding": {"direction": "Left"}},
    "it is not whole: KeyError 'vocab'": {"model": {"type": "WordPiece"}},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_tokenizer_when_of_another_kind_is_refused_with_the_part(reason):
    with pytest.raises(TokenizerError, match=reason):
        WordPiece.parse(json.dumps({**tokenizer(), **REFUSED[reason]}))


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip"])
def test_tokenizer_when_an_added_token_has_rules_is_refused(flag):
    file = copy.deepcopy(tokenizer())
    file["added_tokens"][4][flag] = True
    with pytest.raises(TokenizerError, match=rf"'\[MASK\]' has '{flag}'"):
        WordPiece(file)


@pytest.mark.parametrize(
    "text", ["", "no JSON", pytest.param("[" * 100_000, id="deep"), "[]", "7", '"text"', "null"]
)
def test_tokenizer_when_the_file_is_none_is_refused(text):
    with pytest.raises(TokenizerError):
        WordPiece.parse(text)
