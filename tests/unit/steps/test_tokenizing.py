"""Token ids that a model makes of a text itself: beside ids by hand, and beside other code's."""

from __future__ import annotations

import importlib.util
import json
import os
import random

import numpy as np
import onnx
import pytest
from edgepack.errors import SamplesError, StepError
from edgepack.model.facts import TensorSpec
from edgepack.project.inputs import TokensInput
from edgepack.samples.sample_set import encode_text, write_sample_set
from edgepack.steps.in_graph.in_graph import InGraph, TextProof
from edgepack.steps.in_graph.texts import decode_text, put_text_before

from tests.support.nets import text_nets

if importlib.util.find_spec("onnxruntime_extensions") is None and not os.environ.get("CI"):
    pytest.skip("onnxruntime-extensions has no wheel here", allow_module_level=True)
LENGTH = 8
TOKENS = TokensInput(file="tokenizer.json", length=LENGTH)


def proof(described: dict, *, tokens: int | str = LENGTH, dtype: str = "int64") -> TextProof:
    names = ("input_ids", "attention_mask", "token_type_ids")
    specs = tuple(TensorSpec(name, dtype, (1, tokens)) for name in names)
    return TextProof("input_ids", TOKENS, json.dumps(described), specs)


def made(described: dict, text: str, folder, **changes) -> dict[str, np.ndarray]:
    """What the model makes of a text: what the code in samples/tokenizers.py makes."""
    return proof(described, **changes).prove([text], folder)[text]


WORD_PIECES = {
    "Hello, world": "[CLS] hello [UNK] world [SEP]",
    "hello worlds !": "[CLS] hello world ##s ! [SEP]",
    "worldq hello": "[CLS] [UNK] hello [SEP]",
    "ZÖE 日日": "[CLS] zo ##e 日 日 [SEP]",
    "hello\nworld\x07s": "[CLS] hello world ##s [SEP]",
    "": "[CLS] [SEP]",
    "hello hello hello hello hello hello hello": "[CLS]" + " hello" * 6 + " [SEP]",
}


@pytest.mark.parametrize("text", WORD_PIECES)
def test_ids_when_the_tokenizer_is_word_piece_are_those_by_hand(tmp_path, text):
    found = made(text_nets.word_pieces(), text, tmp_path)
    tokens = WORD_PIECES[text].split()
    ids = [text_nets.WORDS.index(token) for token in tokens]
    assert found["input_ids"].tolist() == [ids + [0] * (LENGTH - len(ids))]
    assert found["attention_mask"].sum() == len(ids)
    assert not found["token_type_ids"].any()


def test_ids_when_the_tokenizer_is_byte_pairs_are_those_by_hand(tmp_path):
    merged = {merge.replace(" ", ""): 3 + 256 + n for n, merge in enumerate(text_nets.MERGES)}
    byte = {char: 3 + n for n, char in enumerate(text_nets.byte_vocabulary())}
    found = made(text_nets.byte_pairs(), "hello world\n", tmp_path, dtype="int32")
    ids = [0, merged["hello"], merged["Ġworld"], byte["Ċ"], 2]
    assert found["input_ids"].tolist() == [ids + [1] * (LENGTH - len(ids))]
    assert found["input_ids"].dtype == np.int32


@pytest.mark.parametrize("described", [text_nets.word_pieces(), text_nets.byte_pairs()])
def test_ids_when_the_number_of_tokens_is_free_are_not_filled_up(tmp_path, described):
    found = made(described, "hello", tmp_path, tokens="tokens")
    assert all(values.shape == (1, 3) for values in found.values())


SCRIPTS = "hello wrdZÖ'sx! ?\n\t日本ひ한글ДжéĀő\u0301\u200bعربي،हिन्दी।🎉²Ⅷß\ufffdǅ\xa0\u3000"
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 1}}, {"Sequence": {"type_id": 2}}],
    "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2, 3], "tokens": ["[CLS]", "[SEP]"]}},
}


@pytest.mark.slow(reason="each of 150 texts is run")
@pytest.mark.parametrize("rules", [(True, None), (False, None), (False, True), (True, False)])
def test_ids_when_texts_are_of_many_scripts_are_those_of_other_code(tmp_path, rules):
    described = text_nets.word_pieces(post_processor=TEMPLATE, padding={"pad_type_id": 3})
    lowercase, strip = rules
    described["normalizer"] |= {"lowercase": lowercase, "strip_accents": strip}
    described["normalizer"]["clean_text"] = lowercase
    vocab = described["model"]["vocab"]
    for char in "wrdzjeaДжऱ한ᄒ글ب،ǆ":
        vocab[char] = len(vocab)
        vocab[f"##{char}"] = len(vocab)
    drawn = random.Random(1)
    texts = ["".join(drawn.choices(SCRIPTS, k=drawn.randint(1, 9))) for _ in range(150)]
    proof(described).prove(texts, tmp_path)


@pytest.mark.slow(reason="each of 150 texts is run")
@pytest.mark.parametrize("number", range(3))
def test_byte_pairs_when_texts_are_of_many_scripts_are_those_of_other_code(tmp_path, number):
    from edgepack.samples.tokenizers import PATTERNS

    described = text_nets.byte_pairs()
    split = {"type": "Split", "pattern": {"Regex": PATTERNS[number]}, "behavior": "Isolated"}
    level = {**text_nets.BYTE_LEVEL, "use_regex": False}
    described["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    drawn = random.Random(number)
    texts = ["".join(drawn.choices(SCRIPTS, k=drawn.randint(1, 9))) for _ in range(150)]
    # Merges across what expressions cut, so that a wrong cut shows.
    vocab, merges = described["model"]["vocab"], described["model"]["merges"]
    for first, second in ("ĠĠ", "Ċĉ", "Ċ!", "?!", "'s", "Ġ!", "Ġ'", "!Ċ", "Âł", "Ġ?", "xÐ", "sÙ"):
        merges.append(f"{first} {second}")
        vocab[first + second] = len(vocab)
    proof(described).prove(texts, tmp_path)


@pytest.mark.parametrize("described", [text_nets.word_pieces(), text_nets.byte_pairs()])
def test_model_when_operators_are_others_own_says_the_rank_of_what_they_give(tmp_path, described):
    """OpenVINO 2025.4.1 makes no session where one of them is not known (tried)."""
    model = onnx.load(str(text_nets.text_net(tmp_path / "net.onnx")))
    given = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.UINT8, ["bytes"])
    put_text_before(model, given, TOKENS, json.dumps(described))
    known = {value.name for value in model.graph.value_info if value.type.tensor_type.shape.dim}
    read = {name for node in model.graph.node for name in node.input}
    for node in model.graph.node:
        if node.domain:
            assert set(node.output) & read <= known


def test_proof_when_a_token_strips_spaces_says_which_text_and_what_to_do(tmp_path):
    described = text_nets.byte_pairs()
    mask = {"id": 290, "content": "<mask>", "special": True, **text_nets.FLAGS, "lstrip": True}
    described["added_tokens"].append(mask)
    with pytest.raises(StepError, match=r"'input_ids' of the text 'a <mask>' is \[") as caught:
        made(described, "a <mask>", tmp_path)
    assert "leave such texts out" in caught.value.hint


def test_proof_when_merging_does_not_make_a_word_of_the_vocabulary_is_an_error(tmp_path):
    described = text_nets.byte_pairs()
    vocab = described["model"]["vocab"]
    for merge in ("x y", "y z", "x yz"):
        described["model"]["merges"].append(merge)
        vocab[merge.replace(" ", "")] = len(vocab)
    with pytest.raises(StepError, match="of the text 'xyz' is"):
        made(described, "hello", tmp_path)


def test_step_when_an_input_is_made_of_a_text_and_an_output_too_is_refused(tmp_path):
    path = text_nets.text_net(tmp_path / "model.onnx")
    model = onnx.load(str(path))
    model.graph.output.append(model.graph.input[1])
    model.opset_import[0].version = 18
    onnx.save(model, str(path))
    step = InGraph((), (), (("input_ids", TOKENS),))
    with pytest.raises(StepError, match="'attention_mask' is an output of the model, too"):
        step.check({"model": tmp_path})


BYTES = TensorSpec("text", "uint8", ("text_bytes",))


def test_samples_when_they_are_texts_hold_their_utf8_bytes(tmp_path):
    from edgepack.samples.sample_set import SampleSet

    write_sample_set(tmp_path, [BYTES], [("a", {"text": np.array(["Zoë"])}), ("b", {"text": ""})])
    assert [feed["text"].tobytes() for feed in SampleSet.read(tmp_path)] == ["Zoë".encode(), b""]


def test_samples_when_they_are_token_ids_say_that_texts_are_taken(tmp_path):
    with pytest.raises(SamplesError, match="the model takes uint8") as caught:
        write_sample_set(tmp_path, [BYTES], [("a", {"text": np.array([[2, 400, 3]])})])
    assert caught.value.hint.startswith("give each sample as a text")


def test_samples_when_a_model_takes_no_bytes_say_that_a_text_is_none(tmp_path):
    spec = TensorSpec("ids", "int64", (1, "tokens"))
    with pytest.raises(SamplesError, match="the model takes int64"):
        write_sample_set(tmp_path, [spec], [("a", {"ids": np.array("hello")})])


@pytest.mark.parametrize(
    ("given", "message"),
    [(np.array([255], np.uint8), "is no UTF-8"), (encode_text("a\0b"), "holds a NUL")],
)
def test_text_when_bytes_are_none_says_why(given, message):
    with pytest.raises(SamplesError, match=message):
        decode_text(given)
