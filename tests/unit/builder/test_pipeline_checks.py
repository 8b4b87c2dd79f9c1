"""Stages of a pipeline against its parts: what is filled in, and each mistake with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from edgepack.base.yaml_source import parse_yaml
from edgepack.builder.pipeline_checks import CheckedPipeline, PartFacts, check_pipeline
from edgepack.errors import ProfileError
from edgepack.model.facts import TensorSpec
from edgepack.project.pipeline import LoadedPipeline, PipelineProject


def spec(name: str, dtype: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, dtype, shape)


PARTS = {
    "mel": PartFacts((spec("audio", "float32", 1, 64),), (spec("mel", "float32", 1, 16, 32),), {}),
    "embedding": PartFacts(
        (spec("x", "float32", "batch", 16, 32),),
        (spec("features", "float32", "batch", 8), spec("classes", "int64", "batch", 8)),
        {},
    ),
    "classifier": PartFacts(
        (spec("x", "float32", 1, 8), spec("h", "float32", 1, 4)),
        (spec("score", "float32", 1, 2), spec("h_next", "float32", 1, 4)),
        {"h_next": "h"},
    ),
    "decoder": PartFacts(
        (
            spec("ids", "int64", 1, "tokens"),
            spec("features", "float32", 1, 8),
            spec("past.0.key", "float32", 1, 2, "past", 4),
            spec("past.1.key", "float32", 1, 2, "past", 4),
        ),
        (
            spec("logits", "float32", 1, "tokens", 32),
            spec("present.0.key", "float32", 1, 2, "total", 4),
            spec("present.1.key", "float32", 1, 2, "total", 4),
        ),
        {},
    ),
}


def check(
    stages: str, inputs: str = "[audio]", outputs: str = "[score]", *, samples: bool = False
) -> CheckedPipeline:
    """Check stages, which begin at line 6 of the project."""
    used = [name for name in PARTS if f": {name}" in stages]
    text = (
        "schema_version: 1\nname: wake\n"
        f"models: {{{', '.join(f'{name}: {name}.onnx' for name in used)}}}\n"
        f"pipeline:\n  stages:\n{stages}  inputs: {inputs}\n  outputs: {outputs}\n"
        + ("samples: {evaluation: {path: some.npz}}\n" if samples else "")
    )
    source = parse_yaml(text, name="edgepack.yaml")
    loaded = LoadedPipeline(source.parse(PipelineProject), Path(), source, {})
    return check_pipeline(loaded, PARTS)


PICTURE = spec("image", "float32", 1, 3, 64, 64)
BOXES = (spec("boxes", "float32", 1, 6, 16), spec("more", "float32", 1, 3))
PARTS["finder"] = PartFacts(
    (PICTURE,), BOXES, {}, images=frozenset({"image"}), detections=frozenset({"boxes"})
)
PARTS["kinds"] = PartFacts(
    (spec("piece", "float32", "batch", 3, 16, 16),),
    (spec("kind", "float32", "batch", 2),),
    {},
    images=frozenset({"piece"}),
)
PARTS["drawing"] = PartFacts(
    PARTS["kinds"].inputs,
    (spec("lines", "float32", 1, "lines", 4),),
    {},
    images=frozenset({"piece"}),
)
PARTS["following"] = PartFacts(
    (*PARTS["kinds"].inputs, spec("h", "float32", 1, 4)),
    (spec("kind", "float32", 1, 2), spec("h_next", "float32", 1, 4)),
    {"h_next": "h"},
    images=frozenset({"piece"}),
)
PARTS["comparing"] = PartFacts(
    (*PARTS["kinds"].inputs, spec("whole", "uint8", 96, 128, 3)),
    PARTS["kinds"].outputs,
    {},
    images=frozenset({"piece"}),
)
PARTS["reading"] = PartFacts(
    (*PARTS["kinds"].inputs, spec("words", "int64", 1, "tokens")),
    PARTS["kinds"].outputs,
    {},
    images=frozenset({"piece"}),
    texts=frozenset({"words"}),
)
PARTS["pooling"] = PartFacts(
    (*PARTS["kinds"].inputs, spec("counted", "int64", 1, 7)),
    (spec("kind", "float32", 1, 7, 5),),
    {},
    images=frozenset({"piece"}),
    masked=frozenset({"kind"}),
)
PARTS["shapeless"] = PartFacts((TensorSpec("audio", "float32", None),), PARTS["mel"].outputs, {})

MEL = "    - run: mel\n"
EMBEDDING = "    - {run: embedding, inputs: {x: mel}}\n"
CLASSIFIER = "    - {run: classifier, inputs: {x: features}}\n"
DECODER = (
    "    - {decode: decoder, token: ids, logits: logits, start: 0, end: [1, 2], most: 8,"
    " past: {present.*: past.*}}\n"
)


def test_names_that_are_left_out_are_filled_in() -> None:
    checked = check(MEL + EMBEDDING + CLASSIFIER)
    mel, embedding, classifier = checked.pipeline.stages
    assert (mel.inputs, mel.outputs) == ({"audio": "audio"}, {"mel": "mel"})
    # What nobody takes is no value: it is not copied.
    assert embedding.outputs == {"features": "features"}
    assert classifier.inputs == {"x": "features"}
    assert classifier.outputs == {"score": "score"}
    assert checked.inputs == (spec("audio", "float32", 1, 64),)


def test_state_is_a_value_where_it_gets_a_name() -> None:
    stages = (
        MEL + EMBEDDING + "    - {run: classifier, inputs: {x: features}, outputs: {h_next: m}}\n"
    )
    checked = check(stages, outputs="[score, m]")
    assert checked.pipeline.stages[2].outputs == {"h_next": "m", "score": "score"}


def test_stage_that_decodes_is_filled_in() -> None:
    checked = check(MEL + EMBEDDING + DECODER, outputs="[tokens]")
    stage = checked.pipeline.stages[2]
    assert (stage.start, stage.end) == ([0], [1, 2])
    assert stage.past == {f"present.{n}.key": f"past.{n}.key" for n in (0, 1)}
    assert stage.inputs == {"features": "features"}


def test_one_part_may_run_twice() -> None:
    stages = (
        "    - {run: mel, outputs: {mel: one}}\n"
        "    - {run: mel, inputs: {audio: other}, outputs: {mel: two}}\n"
    )
    checked = check(stages, "[audio, other]", "[one, two]")
    assert [spec.name for spec in checked.inputs] == ["audio", "other"]


MISTAKES = {
    "two stages of one state": (
        MEL
        + EMBEDDING
        + CLASSIFIER
        + "    - {run: classifier, inputs: {x: features}, outputs: {score: more}}\n",
        "9:7",
        "two stages run 'classifier', which has a state of its own",
        "name the model twice under 'models'",
    ),
    "input without a value": (
        MEL + "    - {run: embedding}\n" + CLASSIFIER,
        "7:7",
        "the input x: float32[batch, 16, 32] of 'embedding' gets no value",
        "add inputs: {x: VALUE} to the stage, with one of audio, mel",
    ),
    "unknown value": (
        MEL + "    - {run: embedding, inputs: {x: mell}}\n" + CLASSIFIER,
        "7:33",
        "there is no value 'mell'",
        "did you mean 'mel'?",
    ),
    "unknown input": (
        MEL + "    - {run: embedding, inputs: {xx: mel}}\n" + CLASSIFIER,
        "7:33",
        "the part 'embedding' has no input 'xx'",
        "did you mean 'x'?",
    ),
    "unknown output": (
        "    - {run: mel, outputs: {mle: m}}\n" + EMBEDDING + CLASSIFIER,
        "6:28",
        "the part 'mel' has no output 'mle'",
        "did you mean 'mel'?",
    ),
    "cycle": (
        MEL
        + "    - {run: embedding, inputs: {x: mel2}}\n"
        + "    - {run: mel, inputs: {audio: features}, outputs: {mel: mel2}}\n"
        + CLASSIFIER,
        "7:33",
        "'embedding' takes 'mel2', which the stage of 'mel' makes only after it",
        "what goes round from one call to the next is a 'state'",
    ),
    "cycle within a stage": (
        MEL + "    - {run: embedding, inputs: {x: features}}\n" + CLASSIFIER,
        "7:33",
        "'embedding' takes 'features', which the same stage makes only after it",
        "put the stages in order",
    ),
    "no shape": (
        MEL.replace("mel", "shapeless") + EMBEDDING + CLASSIFIER,
        "6:7",
        "the input 'audio' of 'shapeless' has no shape",
        "export the model with the shapes of its inputs",
    ),
    "other dtype": (
        MEL + EMBEDDING + "    - {run: classifier, inputs: {x: classes}}\n",
        "8:34",
        "the value 'classes' is int64[batch, 8], and the input 'x' of 'classifier' takes",
        "name the value that fits",
    ),
    "other shape": (
        MEL + EMBEDDING + "    - {run: classifier, inputs: {x: mel}}\n",
        "8:34",
        "the value 'mel' is float32[1, 16, 32], and the input 'x' of 'classifier' takes",
        "name the value that fits",
    ),
    "state is given": (
        MEL + EMBEDDING + "    - {run: classifier, inputs: {x: features, h: features}}\n",
        "8:47",
        "the input 'h' of 'classifier' is filled by the stage itself",
        "leave it out here",
    ),
    "two of a name": (
        MEL + "    - {run: embedding, inputs: {x: mel}, outputs: {features: mel}}\n" + CLASSIFIER,
        "7:52",
        "'embedding' makes 'mel', and there is a value of that name before it",
        "give it another name in the stage: outputs: {features: NAME}",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_error_with_its_place(name: str) -> None:
    stages, place, problem, hint = MISTAKES[name]
    with pytest.raises(ProfileError) as caught:
        check(stages)
    assert caught.value.problem.startswith(problem)
    assert hint in caught.value.hint
    assert caught.value.where == f"edgepack.yaml:{place}"


@pytest.mark.parametrize(
    ("changed", "place", "problem", "hint"),
    [
        (
            ("past: {present.*: past.*}", "past: {present.0.key: past.0.key}"),
            "8:7",
            "the input past.1.key: float32[1, 2, past, 4] of 'decoder' gets no value",
            "past: {OUTPUT: past.1.key}",
        ),
        (
            ("present.*: past.*", "presents.*: past.*"),
            "8:92",
            "the part 'decoder' has no output 'presents.*'",
            "did you mean 'present.1.key' or 'present.0.key'?",
        ),
        (
            ("present.*: past.*", "present.*: pasts.*"),
            "8:92",
            "the part 'decoder' has no input 'pasts.0.key', which 'present.0.key' feeds",
            "did you mean 'past.0.key'",
        ),
        (
            ("present.*: past.*", "present.*: past.0.key"),
            "8:92",
            "'present.*' and 'past.0.key' do not match: each has one '*', or none has",
            "past: {present.*: past_key_values.*}",
        ),
        (
            ("present.*: past.*", "logits: past.0.key"),
            "8:85",
            "the output 'logits' is float32[1, tokens, 32], and the input 'past.0.key' of",
            "name the value that fits",
        ),
        (
            ("token: ids", "token: idz"),
            "8:25",
            "the part 'decoder' has no input 'idz'",
            "did you mean 'ids'?",
        ),
        (
            ("token: ids", "token: features"),
            "8:25",
            "the input features: float32[1, 8] cannot be 'token': one row of integers is needed",
            "input_ids",
        ),
        (
            ("logits: logits", "logits: logit"),
            "8:37",
            "the part 'decoder' has no output 'logit'",
            "did you mean 'logits'?",
        ),
        (
            ("token: ids", "token: ids, output: mel"),
            "8:37",
            "'decoder' makes 'mel', and there is a value of that name before it",
            "give 'output' another name",
        ),
    ],
)
def test_mistake_of_a_stage_that_decodes_has_its_place(
    changed: tuple[str, str], place: str, problem: str, hint: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        check(MEL + EMBEDDING + DECODER.replace(*changed), outputs="[tokens]")
    assert caught.value.problem.startswith(problem)
    assert hint in caught.value.hint
    assert caught.value.where == f"edgepack.yaml:{place}"


def test_loop_without_an_end_is_refused_by_its_place() -> None:
    with pytest.raises(ProfileError) as caught:
        check(MEL + EMBEDDING + DECODER.replace("end: [1, 2], ", ""), outputs="[tokens]")
    assert caught.value.problem == "the key 'end' is missing"
    assert caught.value.where == "edgepack.yaml:8:7"


@pytest.mark.parametrize(
    ("inputs", "outputs", "place", "problem"),
    [
        ("[audio, sound]", "[score]", "9:3", "no stage takes the input 'sound'"),
        ("[audio]", "[scores]", "10:3", "no stage makes the output 'scores'"),
        ("[audio]", "[score, score]", "10:20", "'score' is named twice"),
    ],
)
def test_ends_of_a_pipeline_are_checked(
    inputs: str, outputs: str, place: str, problem: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        check(MEL + EMBEDDING + CLASSIFIER, inputs, outputs)
    assert caught.value.problem == problem
    assert caught.value.where == f"edgepack.yaml:{place}"


FIND = "    - {run: finder, inputs: {image: p}, outputs: {boxes: found}}\n"
CROP = "    - {crop: kinds, picture: p, boxes: found, most: 5}\n"


def check_crops(stages: str, inputs: str = "[p]", outputs: str = "[objects, kind]") -> Any:
    return check(stages, inputs, outputs, samples=True)


def test_stage_that_crops_is_filled_in() -> None:
    checked = check_crops(FIND + CROP, outputs="[objects, kind, found, more]")
    finder, crop = checked.pipeline.stages
    assert finder.outputs == {"boxes": "found", "more": "more"}
    assert crop.inputs == {"piece": "p"}
    assert crop.outputs == {"kind": "kind"}
    assert (crop.most, crop.margin, crop.objects) == (5, 0, "objects")
    assert checked.inputs == (spec("p", "uint8", "height", "width", 3),)


def test_image_is_a_tensor_where_no_stage_cuts_it() -> None:
    checked = check("    - {run: finder}\n", "[image]", "[boxes]")
    assert checked.inputs == (PICTURE,)


CROP_MISTAKES = {
    "part without a picture": (
        FIND + CROP.replace("kinds", "mel"),
        "7:8",
        "the part 'mel' cannot run on what is cut out: 0 of its inputs are described as images",
        "add inputs: {NAME: {image:",
    ),
    "part with a state": (
        FIND + CROP.replace("kinds", "following"),
        "7:8",
        "the part 'following' has a state, and objects come in no order",
        "without a state",
    ),
    "rows of several sizes": (
        FIND + CROP.replace("kinds", "drawing"),
        "7:8",
        "the output lines: float32[1, lines, 4] of 'drawing' cannot be one row for each object",
        "fix them with 'dims'",
    ),
    "detector in pieces": (
        FIND + CROP.replace("kinds", "finder"),
        "7:8",
        "the output boxes: float32[objects, 6] of 'finder' cannot be one row for each object",
        "a detector finds nothing in pieces",
    ),
    "boxes that are none": (
        FIND + CROP.replace("found", "more"),
        "7:33",
        "'more' is no value of objects that a detector found",
        "name one of found: a part that takes the picture 'p'",
    ),
    "boxes that nobody makes": (
        FIND + CROP.replace("found", "boxes"),
        "7:33",
        "'boxes' is no value of objects that a detector found",
        "name one of found",
    ),
    "boxes too late": (
        CROP + FIND,
        "6:33",
        "'found' is made only after it, by the stage of 'finder'",
        "run a detector before it",
    ),
    "picture that no detector takes": (
        FIND + CROP.replace("picture: p", "picture: q"),
        "7:33",
        "'found' is no value of objects that a detector found",
        "run a detector before it: a part that takes the picture 'q'",
    ),
    "boxes of another picture": (
        FIND + CROP + CROP.replace("picture: p", "picture: q"),
        "8:21",
        "the objects 'found' were found in 'p', and 'q' is cut",
        "boxes are in its pixels",
    ),
    "unknown picture": (
        FIND + CROP.replace("picture: p", "picture: pp"),
        "7:21",
        "the picture 'pp' is no input of the pipeline",
        "did you mean 'p'?",
    ),
    "input of the picture": (
        FIND + CROP.replace("most: 5", "most: 5, inputs: {piece: p}"),
        "7:65",
        "the input 'piece' of 'kinds' is filled by the stage itself",
        "leave it out here",
    ),
    "picture that is not described": (
        FIND + CROP.replace("kinds", "comparing").replace("most: 5", "most: 5, inputs: {whole: p}"),
        "7:69",
        "the input 'whole' of 'comparing' takes the picture 'p', and is not the one input",
        "give it another value",
    ),
    "picture that is not described in a stage that runs": (
        "    - {run: comparing, inputs: {piece: x, whole: p}, outputs: {kind: k}}\n" + FIND + CROP,
        "6:43",
        "the input 'whole' of 'comparing' takes the picture 'p', and is not the one input",
        "inputs: {whole: {image: ...}}",
    ),
    "text beside a piece": (
        FIND + CROP.replace("kinds", "reading").replace("most: 5", "most: 5, inputs: {words: x}"),
        "7:8",
        "the part 'reading' takes a picture here, and 'words' is described as tokens",
        "leave 'tokens' of 'words' out",
    ),
    "text beside a picture": (
        FIND + CROP + "    - {run: reading, inputs: {piece: p, words: x}, outputs: {kind: k}}\n",
        "8:8",
        "the part 'reading' takes a picture here, and 'words' is described as tokens",
        "it gets a tensor of ids then",
    ),
    "mask of a row": (
        FIND + CROP.replace("kinds", "pooling").replace("most: 5", "most: 5, inputs: {counted: x}"),
        "7:8",
        "the output 'kind' of 'pooling' is pooled with a mask, which is not kept for each object",
        "let the model pool",
    ),
    "stage behind it": (
        FIND + CROP + "    - {run: classifier, inputs: {x: kind}}\n",
        "8:34",
        "'classifier' takes 'kind', which has a row for each object",
        "give it to the caller",
    ),
    "two of a name": (
        FIND + CROP.replace("most: 5", "most: 5, objects: found"),
        "7:56",
        "'kinds' makes 'found', and there is a value of that name before it",
        "give 'objects' another name",
    ),
}


@pytest.mark.parametrize("name", CROP_MISTAKES)
def test_mistake_of_a_stage_that_crops_has_its_place(name: str) -> None:
    stages, place, problem, hint = CROP_MISTAKES[name]
    inputs = f"[p{', q' * (': q' in stages)}{', x' * (': x' in stages)}]"
    stages += "    - {run: finder, inputs: {image: q}, outputs: {boxes: b, more: m}}\n" * (
        ": q" in stages
    )
    with pytest.raises(ProfileError) as caught:
        check_crops(stages, inputs)
    assert caught.value.problem.startswith(problem)
    assert hint in caught.value.hint
    assert caught.value.where == f"edgepack.yaml:{place}"


def test_rows_without_their_objects_are_refused() -> None:
    with pytest.raises(ProfileError) as caught:
        check_crops(FIND + CROP, outputs="[kind]")
    problem = "the output 'kind' has a row for each of 'objects', which are no output"
    assert caught.value.problem == problem


@pytest.mark.parametrize(
    ("changed", "place", "problem"),
    [
        ((", most: 5", ""), "7:7", "the key 'most' is missing"),
        ((", most: 5", ", most: 0"), "7:47", "'most' cannot be 0"),
        (("most: 5", "most: 5, margin: 1.5"), "7:56", "'margin' cannot be 1.5"),
        ((", boxes: found", ""), "7:7", "the key 'boxes' is missing"),
    ],
)
def test_keys_of_a_stage_that_crops_have_their_place(
    changed: tuple[str, str], place: str, problem: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        check_crops(FIND + CROP.replace(*changed))
    assert caught.value.problem.startswith(problem)
    assert caught.value.where == f"edgepack.yaml:{place}"
