"""Texts as a model with a tokenizer in front takes them, and the tensors that are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import SamplesError
from edgepack.model.facts import TensorSpec
from edgepack.model.running import Arrays
from edgepack.ondevice.runtime.edgepack_wordpiece import Tokenizer
from edgepack.project.inputs import TokensInput
from edgepack.samples.tokenizers import parse_tokenizer
from edgepack.steps.in_graph.preprocessing import Nodes, find_unused_prefix, insert
from edgepack.steps.in_graph.tokenizing import add_input_nodes, add_token_nodes

if TYPE_CHECKING:
    import onnx

DescribedTexts = tuple[tuple[str, TokensInput], ...]
"""Inputs that take texts, each with its description."""

MADE = (
    "The quick brown fox jumps over the lazy dog.",
    "Prices rose by 3.5 % in 2024; they've fallen since, haven't they?",
    "Zoë's café:\tnaïve, Ünïcode & Ελληνικά, русский, 日本語 and 한국어!",
)
"""Texts that replace samples where there are none, and that each proof uses."""


def name_tokenizer_input(number: int) -> str:
    """Return what a step calls the file of the tokenizer of the n-th text among its inputs."""
    return f"tokenizer_{number}"


def read_tokenizers(inputs: Mapping[str, Path], texts: DescribedTexts) -> list[str]:
    """Return the content of each text's ``tokenizer.json``."""
    paths = [inputs[name_tokenizer_input(number)] for number, _ in enumerate(texts)]
    return [path.read_text("utf-8") for path in paths]


def list_made_names(name: str, tokens: TokensInput) -> tuple[str, str, str]:
    """Return the inputs that are made of one text: ids, attention mask, token types."""
    return name, tokens.attention_mask, tokens.token_type_ids


def decode_text(given: Array) -> str:
    """Return the text of UTF-8 bytes.

    Raises:
        SamplesError: They are not UTF-8, or hold a NUL, which ends a text for the operators.
    """
    try:
        text = given.tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SamplesError(
            f"a sample's text is no UTF-8: {error}", hint="give texts, or their UTF-8 bytes"
        ) from error
    if "\0" in text:
        raise SamplesError("a sample's text holds a NUL", hint="remove it: a text ends there")
    return text


def make_text_tensors(
    tokenizer: Tokenizer,
    text: str,
    name: str,
    tokens: TokensInput,
    signature: Sequence[TensorSpec],
) -> Arrays:
    """Return what the model without a tokenizer takes of a text, for the inputs that it has."""
    specs = {spec.name: spec for spec in signature}
    encoded = tokenizer.encode(text, tokens.length, pad=is_filled(specs[name]))
    made = zip(
        list_made_names(name, tokens),
        (encoded.input_ids, encoded.attention_mask, encoded.token_type_ids),
        strict=True,
    )
    return {key: np.array([ids], specs[key].dtype) for key, ids in made if key in specs}


def is_filled(spec: TensorSpec) -> bool:
    """Return whether an input takes one number of tokens, up to which texts are filled."""
    return spec.shape is not None and isinstance(spec.shape[1], int)


def put_text_before(
    model: onnx.ModelProto, given: onnx.ValueInfoProto, tokens: TokensInput, tokenizer: str
) -> None:
    """Make a model take a text instead of the ids, mask and types that are made of it.

    Args:
        model: Is changed. Its opset is 18 or newer.
        given: The new input, uint8 ``(N,)``; it has the name of the one that takes the ids.
        tokens: How ids are made.
        tokenizer: The content of the ``tokenizer.json``.
    """
    from onnx import helper

    inputs = {value.name: value for value in model.graph.input}
    made = Nodes(find_unused_prefix(model.graph, f"preprocess/{given.name}"))
    sizes = inputs[given.name].type.tensor_type.shape.dim
    filled = len(sizes) == 2 and sizes[1].HasField("dim_value")
    own = add_token_nodes(made, given.name, tokenizer)
    parsed = parse_tokenizer(tokenizer)
    tensors = add_input_nodes(made, own, parsed, tokens.length, pad=filled)
    shape = [1, tokens.length if filled else None]
    values = {}
    for name, tensor in zip(list_made_names(given.name, tokens), tensors, strict=True):
        if name in inputs:
            dtype = inputs[name].type.tensor_type.elem_type
            cast = made.add("Cast", tensor, to=dtype)
            values[name] = helper.make_tensor_value_info(cast, dtype, shape)
    insert(model, made, given, values)
