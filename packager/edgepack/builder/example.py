"""Writes lines of Python for a bundle's README: from pictures and texts to answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgepack.apps.render import ExampleInput
from edgepack.model.facts import TensorSpec
from edgepack.project.inputs import InputDescription, TokensInput
from edgepack.project.outputs import GivenAsTensor, MaskOutput, TextOutput
from edgepack.project.project import Project

_EXAMPLE_SIDE = 480
"""Of a picture in a README's example, in pixels."""


def make_example_inputs(project: Project, inputs: Sequence[TensorSpec]) -> Iterator[ExampleInput]:
    """Yield the inputs that a caller gives, of the smallest sizes that the project lists."""
    smallest = {name: sizes[0] for name, sizes in project.buckets.items()}
    for spec in inputs:
        described = project.inputs.get(spec.name)
        if described is None or described.mask is None:
            side = _EXAMPLE_SIDE if spec.name in project.pictures else 1
            shape = [s if isinstance(s, int) else smallest.get(s, side) for s in spec.shape or ()]
            value = f"np.zeros({shape}, {spec.dtype!r})"
            if spec.name in project.pictures and project.takes_files:
                value = "np.fromfile('picture.jpg', 'uint8')"
            elif spec.name in project.texts:
                value = "np.frombuffer('some text'.encode(), 'uint8')"
            yield ExampleInput(spec.name, value)


def write_prediction_lines(
    project: Project, examples: Sequence[ExampleInput], outputs: Sequence[TensorSpec]
) -> tuple[str, ...]:
    """Return an example of ``Model.predict``; no lines where the project describes nothing.

    Args:
        project: The project, which describes what the inputs are made from.
        examples: The inputs that a caller gives to the model itself.
        outputs: The model's outputs.
    """
    described = project.inputs
    tokens = [d.tokens for d in described.values() if d.tokens is not None]
    made = {name for each in tokens for name in _list_beside_ids(each)}
    meant = {name: d for name, d in project.outputs.items() if not isinstance(d, GivenAsTensor)}
    if not meant and not tokens and not any(d.image for d in described.values()):
        return ()
    given = [_write_given(each, project) for each in examples if each.name not in made]
    first = next((spec.name for spec in outputs if spec.name in meant), outputs[0].name)
    shown = [f"for answer in answers[{first!r}]:", "    print(answer)"]
    if isinstance(project.outputs.get(first), MaskOutput | TextOutput):
        shown = [f"print(answers[{first!r}])"]
    called = ("answers = model.predict({", *(f"    {line}," for line in given), "})")
    return (*called, *shown)


def _list_beside_ids(tokens: TokensInput) -> tuple[str, str]:
    return tokens.attention_mask, tokens.token_type_ids


def _write_given(example: ExampleInput, project: Project) -> str:
    described = project.inputs.get(example.name, InputDescription.model_construct())
    value = example.value
    if described.image is not None and example.name not in project.pictures:
        value = "np.zeros([480, 640, 3], 'uint8')"
    elif described.tokens is not None:
        value = "'some text'"
    return f"{example.name!r}: {value}"
