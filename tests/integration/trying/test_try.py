"""``edgepack try``: bundles of models whose answers a test chooses, and one that is built."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import wave
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.api import build, try_bundle
from edgepack.cli.main import run
from edgepack.errors import BundleError, SamplesError, ToolError, UsageError
from edgepack.trying import drawing, running
from PIL import Image

from tests.support.doubles import worker_tasks
from tests.support.nets import detection_nets
from tests.support.nets.text_nets import WORDS, text_net, word_pieces
from tests.support.nets.tiny_models import conv_net
from tests.support.reports.tiny_bundle import change_manifest
from tests.support.reports.trial_bundle import answering, write_bundle
from tests.support.servers.chromium import DESKTOP, PHONE, find_chromium, launched

SIDE = 32
PICTURE = {"image": {"resize": {"letterbox": SIDE, "pad": 0}, "scale": 0.5}}
DETECTION = {"kind": "detection", "layout": "yolo", "labels": "names.txt"}
AGREES, ADDED, MISSING = (drawing.COLOURS[look] for look in ("agrees", "added", "missing"))


def rows(*objects):
    """Boxes as yolo has them: middle, size, then a score for each of two classes."""
    values = np.zeros((1, 6, 8), np.float32)
    for number, (box, kind, score) in enumerate(objects):
        values[0, :4, number] = box
        values[0, 4 + kind, number] = score
    return values


CAT = ((16, 16, 8, 4), 0, 0.9)
DOG = ((6, 18, 6, 6), 1, 0.6)
EXTRA = ((26, 14, 6, 6), 1, 0.4)


def detector(folder, **changes):
    """A bundle whose fp32 sees a cat and a dog, and whose int8 sees the cat and something else."""
    models = {
        name: answering(
            folder / f"{name}.onnx", {"picture": [1, 3, SIDE, SIDE]}, {"boxes": rows(*seen)}
        )
        for name, seen in (("cpu-int8-static", (CAT, EXTRA)), ("cpu-fp32", (CAT, DOG)))
    }
    described = {
        "files": ["names.txt"],
        "inputs": {"picture": PICTURE},
        "outputs": {"boxes": DETECTION},
    }
    names = {"names.txt": "cat\ndog\n"}
    return write_bundle(folder / "bundle", models, described=described, files=names, **changes)


def photo(path, width=100, height=50, **saved):
    Image.new("RGB", (width, height), (40, 40, 40)).save(path, **saved)
    return path


def coloured(path, colour):
    """Return the box, in shares of the picture, around the lines of a colour."""
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    there = (np.abs(pixels - colour).max(axis=2) == 0).nonzero()
    height, width = pixels.shape[:2]
    return (
        there[1].min() / width,
        there[0].min() / height,
        (there[1].max() + 1) / width,
        (there[0].max() + 1) / height,
    )


def test_boxes_when_drawn_lie_where_the_letterbox_put_them(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "_draw_label", lambda *_: None)
    bundle = detector(tmp_path)
    try_bundle(bundle, [str(photo(tmp_path / "pets.png"))], out=tmp_path / "drawn")
    # 100 by 50 in 32 by 32: scaled by 0.32, from row 8 on.
    places = {
        ("cpu-fp32", AGREES): [CAT, DOG],
        ("cpu-int8-static", AGREES): [CAT],
        ("cpu-int8-static", ADDED): [EXTRA],
        ("cpu-int8-static", MISSING): [DOG],
    }
    for (variant, colour), seen in places.items():
        boxes = np.array([box for box, *_ in seen], float)
        low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
        expected = np.concatenate([low.min(0), high.max(0)])
        expected = (expected - (0, 8, 0, 8)) / (32, 16, 32, 16)
        found = coloured(tmp_path / "drawn" / f"pets.{variant}.png", colour)
        assert found == pytest.approx(expected, abs=0.012), (variant, colour)


def test_photo_when_it_lies_on_its_side_is_turned_before_boxes_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "_draw_label", lambda *_: None)
    exif = Image.Exif()
    exif[0x112] = 6  # shown as 50 wide and 100 high
    bundle = detector(tmp_path)
    path = photo(tmp_path / "pets.png", exif=exif)
    trial = try_bundle(bundle, [str(path)], out=tmp_path / "drawn")
    assert trial.inputs[0].said == ("50 x 100 pixels",)
    left, top, right, bottom = coloured(tmp_path / "drawn" / "pets.cpu-int8-static.png", AGREES)
    # 16 columns from column 8 on.
    expected = ((12 - 8) / 16, 14 / 32, (20 - 8) / 16, 18 / 32)
    assert (left, top, right, bottom) == pytest.approx(expected, abs=0.012)


def test_boxes_when_the_photo_came_as_a_tensor_are_drawn_on_what_it_was_made_of(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(drawing, "_draw_label", lambda *_: None)
    red = np.zeros((1, 3, SIDE, SIDE), np.float32)
    red[:, 0] = 100 * 0.5  # scale
    np.savez(tmp_path / "a.npz", picture=red)
    try_bundle(detector(tmp_path), [str(tmp_path / "a.npz")], out=tmp_path / "drawn")
    (path,) = (tmp_path / "drawn").glob("*fp32.png")
    assert Image.open(path).convert("RGB").getpixel((0, 0)) == (100, 0, 0)
    expected = (3 / SIDE, 14 / SIDE, 20 / SIDE, 21 / SIDE)  # around the cat and the dog
    assert coloured(path, AGREES) == pytest.approx(expected, abs=0.012)


@pytest.mark.parametrize(
    ("number", "said"), [("0.5", "does not hold 0.5"), ("nan", "cannot become")]
)
def test_number_when_the_input_does_not_hold_it_is_an_error(tmp_path, number, said):
    bundle = write_bundle(tmp_path / "bundle", {"cpu-fp32": text_net(tmp_path / "a.onnx")})
    with pytest.raises(SamplesError, match=said):
        try_bundle(bundle, inputs={"input_ids": number, "attention_mask": "1"})


def test_variants_when_printed_have_their_own_answers_in_their_own_columns(tmp_path, capsys):
    bundle = detector(tmp_path)
    assert run(["try", str(bundle), str(photo(tmp_path / "pets.png"))]) == 0
    said = capsys.readouterr().out
    head = next(line for line in said.splitlines() if "cpu-fp32" in line)
    assert head.index("cpu-fp32") < head.index("cpu-int8-static")
    cells = [[c.strip() for c in line.split("│")[2:4]] for line in said.splitlines() if "│" in line]
    assert cells == [
        ["cat 0.900", "cat 0.900  (overlap 1.00)"],
        ["dog 0.600", "(missing)"],
        ["", "dog 0.400  (added)"],
    ]
    assert "DIFFERS, misses 1 of 2 (dog 0.600), adds 1 (dog 0.400)" in said
    assert "--html" in said


def test_page_when_written_has_a_picture_for_each_variant_and_escapes_what_others_wrote(tmp_path):
    bundle = detector(tmp_path)
    names = [photo(tmp_path / "<script>x.png"), photo(tmp_path / "b.png", 20, 30)]
    trial = try_bundle(bundle, [str(name) for name in names], html=tmp_path / "try.html")
    text = (tmp_path / "try.html").read_text()
    assert text.count("<img ") == text.count("data:image/jpeg;base64,") == 2 * 2
    assert "<script" not in text
    assert "&lt;script&gt;x.png" in text
    assert not re.search(r"(src|href)=.(?!data:|#)", text)
    assert "default-src 'none'" in text
    assert text.count("DIFFERS") == 2 * 3  # in the overview, above the picture, in the table
    assert [tried.level("cpu-int8-static") for tried in trial.inputs] == ["differs", "differs"]


@pytest.mark.slow(reason="starts a browser")
@pytest.mark.skipif(
    not find_chromium() and "CI" not in os.environ, reason="there is no Chromium or Chrome"
)
def test_page_when_opened_fits_a_phone_and_shows_its_pictures(tmp_path):
    bundle = detector(tmp_path)
    try_bundle(bundle, [str(photo(tmp_path / "pets.png"))] * 2, html=tmp_path / "try.html")
    seen: list[str] = []
    with launched(find_chromium() or "chromium") as browser:
        for screen in (DESKTOP, PHONE):
            page = browser.new_context(**screen).new_page()
            page.on("console", lambda message: seen.append(message.text))
            page.on("request", lambda request: seen.append(request.url[:40]))
            page.goto((tmp_path / "try.html").as_uri())
            assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
            widths = page.evaluate("() => [...document.images].map((one) => one.naturalWidth)")
            assert widths == [drawing.LEAST_SIDE] * 4
    assert not [each for each in seen if not each.startswith(("file:", "data:"))]


def test_document_when_json_is_asked_is_one(tmp_path, capsys):
    bundle = detector(tmp_path)
    assert run(["try", str(bundle), str(photo(tmp_path / "pets.png")), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["reference"] == "cpu-fp32"
    (given,) = document["inputs"]
    found = given["outputs"]["boxes"]["variants"]
    assert [each["label"] for each in found["cpu-fp32"]["answers"]] == ["cat", "dog"]
    assert found["cpu-int8-static"]["missing"] == found["cpu-int8-static"]["added"] == 1
    # 0.32 of a pixel of the input is one of the photo's.
    assert found["cpu-fp32"]["answers"][0]["box"] == pytest.approx([37.5, 18.75, 62.5, 31.25])


def test_variant_when_its_provider_is_not_here_is_run_on_the_cpu_and_says_so(tmp_path, capsys):
    bundle = detector(tmp_path, providers={"cpu-int8-static": "TensorrtExecutionProvider"})
    assert run(["try", str(bundle), str(photo(tmp_path / "pets.png"))]) == 0
    said = capsys.readouterr().out
    assert "cpu-int8-static: its model, on this machine's CPU: TensorrtExecutionProvider" in said
    assert "dog 0.400  (added)" in said


def test_variant_when_its_golden_outputs_do_not_come_out_on_the_cpu_says_so(tmp_path):
    bundle = detector(tmp_path, providers={"cpu-int8-static": "TensorrtExecutionProvider"})

    def ask_too_much(manifest):
        manifest["variants"][0]["min_sqnr_db"] = 300

    change_manifest(bundle, ask_too_much)
    trial = try_bundle(bundle, [str(photo(tmp_path / "pets.png"))])
    assert "200 dB near the golden output, 300 are needed" in trial.columns[1].words
    assert trial.inputs[0].columns == ("cpu-fp32", "cpu-int8-static")


def test_variant_when_its_file_is_that_of_one_on_the_cpu_is_not_run_twice(tmp_path):
    model = answering(tmp_path / "m.onnx", {"x": [1, 4]}, {"y": np.arange(4.0)[None]})
    models = {"tensorrt-fp32": model, "cpu-fp32": model}
    providers = {"tensorrt-fp32": "TensorrtExecutionProvider"}
    bundle = write_bundle(tmp_path / "bundle", models, providers=providers)
    trial = try_bundle(bundle, inputs={"x": "0"})
    assert trial.inputs[0].columns == ("cpu-fp32",)
    assert "its model file is cpu-fp32's" in trial.columns[1].words


def test_bundle_when_it_has_no_fp32_is_compared_with_the_first_and_says_so(tmp_path):
    models = {
        name: answering(tmp_path / f"{name}.onnx", {"x": [1, 4]}, {"y": [[0, 1, value, 3]]})
        for name, value in (("cpu-int8-static", 2.0), ("cpu-fp16", -2.0))
    }
    trial = try_bundle(write_bundle(tmp_path / "bundle", models), inputs={"x": "1"})
    assert trial.reference == "cpu-int8-static"
    assert trial.said == (
        "the bundle has no fp32 variant: the others are compared with cpu-int8-static",
    )
    assert trial.inputs[0].level("cpu-fp16") == "differs"


def test_variant_when_named_is_shown_beside_fp32_alone(tmp_path):
    model = answering(tmp_path / "m.onnx", {"x": [1, 4]}, {"y": np.arange(4.0)[None]})
    bundle = write_bundle(
        tmp_path / "bundle", {f"cpu-{r}": model for r in ("int8-static", "fp16", "fp32")}
    )
    trial = try_bundle(bundle, inputs={"x": "1"}, variants=["cpu-fp16"])
    assert [column.variant for column in trial.columns] == ["cpu-fp32", "cpu-fp16"]
    with pytest.raises(UsageError, match="no variant 'cpu-fp17'"):
        try_bundle(bundle, inputs={"x": "1"}, variants=["cpu-fp17"])


def test_folder_of_photos_when_given_is_taken_up_to_the_limit(tmp_path):
    bundle = detector(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in range(5):
        photo(tmp_path / "photos" / f"{number}.jpg", 30 + number, 20)
    trial = try_bundle(bundle, [str(tmp_path / "photos")], limit=2)
    assert [tried.name for tried in trial.inputs] == ["0.jpg", "2.jpg"]
    assert "2 of the 5 photos" in trial.said[0]


def test_pictures_when_two_photos_have_one_name_are_both_kept(tmp_path):
    bundle = detector(tmp_path)
    paths = [tmp_path / folder / "pets.png" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        photo(path)
    try_bundle(bundle, [str(path) for path in paths], out=tmp_path / "drawn")
    assert len(list((tmp_path / "drawn").iterdir())) == 4


def test_pictures_when_there_is_nothing_to_draw_are_not_promised(tmp_path, capsys):
    model = answering(tmp_path / "m.onnx", {"x": [1, 4]}, {"y": np.arange(4.0)[None]})
    bundle = write_bundle(tmp_path / "bundle", {"cpu-fp32": model})
    assert run(["try", str(bundle), "--input", "x=1", "--out", str(tmp_path / "drawn")]) == 0
    assert "no output can be drawn" in capsys.readouterr().out
    assert not (tmp_path / "drawn").exists()


def test_archive_when_given_is_tried_as_the_folder(tmp_path, capsys):
    """As built, with the preprocessing in the model."""
    project = tmp_path / "edgepack.yaml"
    detection_nets.yolo(tmp_path / "m.onnx")
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\nyellow\ncyan\nmagenta\n")
    image, truth = detection_nets.scene(5)
    scene = (image[0].transpose(1, 2, 0) * 255).astype(np.uint8)
    (tmp_path / "scenes").mkdir()
    Image.fromarray(scene).save(tmp_path / "scenes" / "a.png")
    # Twice as large, and between two gray bars.
    wide = np.full((640, 960, 3), 60, np.uint8)
    wide[:, 160:800] = scene.repeat(2, axis=0).repeat(2, axis=1)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    project.write_text(
        "schema_version: 1\nname: rects\nmodel: m.onnx\nfiles: [names.txt]\n"
        "inputs: {images: {image: {resize: {short_side: 320, crop: 320}, scale: 0.00392157}}}\n"
        "outputs: {output0: {kind: detection, layout: yolo, labels: names.txt}}\n"
        "preprocess: {in_graph: true}\n"
        "samples: {calibration: {images: scenes}}\n"
        "targets: [{id: host, variants: [{backend: cpu, recipe: fp32}]}]\n"
    )
    archive = build(project=project, out=tmp_path / "dist").bundles[0].archive
    assert run(["try", str(archive), str(tmp_path / "wide.png"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "one variant" in document["notes"][0]
    found = document["inputs"][0]["outputs"]["output0"]["variants"]["cpu-fp32"]["answers"]
    boxes = sorted(each["box"] for each in found)
    wanted = sorted((2 * each.box + (160, 0, 160, 0)).tolist() for each in truth)
    assert np.abs(np.array(boxes) - wanted).max() < 16


def without_extensions():
    return importlib.util.find_spec("onnxruntime_extensions") is None and "CI" not in os.environ


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.skipif(without_extensions(), reason="onnxruntime-extensions has no wheel here")
def test_photo_when_the_model_decodes_it_is_given_as_its_file(tmp_path, capsys):
    conv_net(tmp_path / "m.onnx", batch=1)
    (tmp_path / "photos").mkdir()
    exif = Image.Exif()
    exif[0x112] = 6
    photo(tmp_path / "photos" / "a.png", 30, 20)
    turned = photo(tmp_path / "turned.png", 30, 20, exif=exif)
    (tmp_path / "edgepack.yaml").write_text(
        "schema_version: 1\nname: net\nmodel: m.onnx\n"
        "inputs: {image: {image: {resize: {letterbox: 8}, scale: 0.0039}}}\n"
        "outputs: {scores: {kind: classification, top: 2}}\n"
        "preprocess: {in_graph: true, extensions: [decode_image]}\n"
        "samples: {calibration: {images: photos}}\n"
        "targets: [{id: host, variants: [{backend: cpu, recipe: fp32}]}]\n"
    )
    built = build(project=tmp_path / "edgepack.yaml", out=tmp_path / "dist")
    trial = try_bundle(built.bundles[0].bundle.path, [str(turned)])
    assert trial.inputs[0].said[1] == (
        "the model decodes the file itself, and does not turn it as EXIF says"
    )
    assert len(trial.inputs[0].answers["scores"]["cpu-fp32"]) == 2
    bitmap = photo(tmp_path / "a.bmp", 30, 20)
    with pytest.raises(SamplesError, match="not the bytes of a JPEG or PNG"):
        try_bundle(built.bundles[0].bundle.path, [str(bitmap)])


def test_text_when_given_becomes_vectors_that_are_compared(tmp_path):
    text_net(tmp_path / "a.onnx")
    model = onnx.load(str(tmp_path / "a.onnx"))
    (table,) = (each for each in model.graph.initializer if each.name == "table")
    values = onnx.numpy_helper.to_array(table)
    changed = values + np.random.default_rng(1).normal(0, 0.2, values.shape).astype(np.float32)
    table.CopyFrom(onnx.numpy_helper.from_array(changed, "table"))
    onnx.save(model, str(tmp_path / "b.onnx"))
    described = {
        "files": ["tokenizer.json"],
        "inputs": {"input_ids": {"tokens": {"file": "tokenizer.json", "length": 6}}},
        "outputs": {"vector": {"kind": "embedding", "pooling": "none"}},
    }
    bundle = write_bundle(
        tmp_path / "bundle",
        {"cpu-int8-dynamic": tmp_path / "b.onnx", "cpu-fp32": tmp_path / "a.onnx"},
        described=described,
        files={"tokenizer.json": json.dumps(word_pieces())},
    )
    ids = [WORDS.index(word) for word in ("[CLS]", "hello", "world", "[SEP]")]
    exact, other = values[ids].mean(0), changed[ids].mean(0)
    expected = exact @ other / np.linalg.norm(exact) / np.linalg.norm(other)
    (tmp_path / "text.txt").write_text("Hello world\n")
    for given in ("Hello world", str(tmp_path / "text.txt")):
        (tried,) = try_bundle(bundle, [given]).inputs
        assert tried.text == "Hello world"
        (vector,) = (block for block in tried.blocks if block.output == "vector")
        assert vector.compared[1].numbers["cosine"] == pytest.approx(expected, abs=1e-5)
        assert vector.rows[0].cells[0].text == f"4 values, norm {np.linalg.norm(exact):.4g}"
    with pytest.raises(SamplesError, match="no input is described as an image"):
        try_bundle(bundle, [str(photo(tmp_path / "a.png"))])


def mixed(folder):
    """A model of a sound, a state and a rate."""
    inputs = {"sound": ["batch", 8], "state": [2, "batch", 4], "rate": []}
    return answering(folder / "m.onnx", inputs, {"y": [[0.5]]})


def sound(path, values):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(np.asarray(values, "<i2").tobytes())
    return path


def test_sound_when_given_goes_into_the_row_of_samples_and_numbers_fill_the_rest(tmp_path):
    bundle = write_bundle(tmp_path / "bundle", {"cpu-fp32": mixed(tmp_path)})
    path = str(sound(tmp_path / "a.wav", range(10)))
    trial = try_bundle(bundle, [path], inputs={"state": "0", "rate": "16000"})
    (tried,) = trial.inputs
    assert tried.name == "a.wav"
    assert tried.said == (
        "16000 Hz, 1 channel, 0.000625 s; the bundle does not say which rate the model wants",
        "the input takes the first 8 samples (0.0005 s) of 10",
        "state: 0 everywhere, [2, 1, 4]",
        "rate: 16000",
    )
    with pytest.raises(SamplesError, match=r"also takes state \(float32\[2, batch, 4\]\), rate"):
        try_bundle(bundle, [path])


def test_arrays_when_given_are_samples_or_inputs(tmp_path):
    bundle = write_bundle(tmp_path / "bundle", {"cpu-fp32": mixed(tmp_path)})
    random = np.random.default_rng(0)
    arrays = {
        "sound": random.standard_normal((3, 8), np.float32),
        "state": random.standard_normal((3, 2, 1, 4), np.float32),
        "rate": np.ones(3, np.float32),
    }
    np.savez(tmp_path / "all.npz", **arrays)
    np.save(tmp_path / "sound.npy", arrays["sound"][:1])
    trial = try_bundle(bundle, [str(tmp_path / "all.npz")])
    assert [tried.name for tried in trial.inputs] == [f"sample {k} of all.npz" for k in range(3)]
    named = {"sound": str(tmp_path / "sound.npy"), "state": "0.5", "rate": "1"}
    assert try_bundle(bundle, inputs=named).inputs[0].name == "sound.npy"
    np.save(tmp_path / "wrong.npy", arrays["sound"].astype(np.float64))
    with pytest.raises(SamplesError, match="'sound' is float64, expected float32"):
        try_bundle(bundle, inputs={**named, "sound": str(tmp_path / "wrong.npy")})


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "--input picture=photo.jpg"),
        (["none.jpg"], 4, "there is no file 'none.jpg'"),
        (["a text"], 4, "there is no file 'a text', and the model takes a picture"),
        (["broken.jpg"], 4, "cannot read 'broken.jpg' as an image"),
        (["a.wav"], 4, "no input is one row of float samples"),
        (["--input", "picture"], 2, "'picture' names no value"),
        (["--input", "pictur=pets.png"], 2, "did you mean 'picture'?"),
        (["pets.png", "--limit", "0"], 2, "--limit"),
        (["pets.png", "--out", "pets.png"], 2, "cannot write to 'pets.png'"),
        (["pets.png", "--html", "/dev/null/x.html"], 2, "cannot be written: Not a directory"),
    ],
)
def test_input_when_it_is_none_of_the_models_says_what_to_do(
    tmp_path, monkeypatch, capsys, arguments, code, said
):
    monkeypatch.chdir(tmp_path)
    detector(tmp_path)
    photo(tmp_path / "pets.png")
    (tmp_path / "broken.jpg").write_text("no photo")
    sound(tmp_path / "a.wav", [1, 2])
    assert run(["try", "bundle", *arguments]) == code
    streams = capsys.readouterr()
    assert said in streams.err
    assert "Traceback" not in streams.err
    assert streams.out == ""


def test_photo_when_the_bundle_describes_no_image_says_which_lines_to_add(tmp_path):
    model = answering(tmp_path / "m.onnx", {"x": [1, 3, 24, 40]}, {"y": [[0.5]]})
    bundle = write_bundle(tmp_path / "bundle", {"cpu-fp32": model})
    with pytest.raises(SamplesError) as caught:
        try_bundle(bundle, [str(photo(tmp_path / "a.png"))])
    assert "inputs: {x: {image: {resize: {width: 40, height: 24}, order: RGB" in caught.value.hint


def test_bundle_when_altered_is_refused(tmp_path):
    bundle = detector(tmp_path)
    path = photo(tmp_path / "pets.png")
    (bundle / "files" / "names.txt").write_text("dog\ncat\n")
    with pytest.raises(BundleError, match=r"names\.txt"):
        try_bundle(bundle, [str(path)])
    (bundle / "files" / "names.txt").unlink()
    assert run(["try", str(bundle), str(path)]) == 7


def test_variant_when_its_process_dies_is_one_error_after_what_others_answer(
    tmp_path, monkeypatch, capsys
):
    bundle = detector(tmp_path)

    monkeypatch.setenv("PYTHONPATH", str(Path(worker_tasks.__file__).parents[3]))
    monkeypatch.setattr(running, "run_variant", worker_tasks.run_fp32_alone)
    assert run(["try", str(bundle), str(photo(tmp_path / "pets.png"))]) == 5
    streams = capsys.readouterr()
    assert "dog 0.600" in streams.out
    assert "the variant 'cpu-int8-static' crashed here: the process that ran" in streams.err
    assert "last words" in streams.err
    assert "last words" not in streams.out


def test_bundle_when_nothing_runs_here_is_an_error_with_each_reason(tmp_path):
    bundle = detector(tmp_path)

    broken = b"no model"
    for path in (bundle / "models").iterdir():
        path.write_bytes(broken)

    def hashes(manifest):
        import hashlib

        digest = hashlib.sha256(broken).hexdigest()
        for entry in manifest["files"]:
            if entry["path"].startswith("models/"):
                entry.update(sha256=digest, size_bytes=len(broken))

    change_manifest(bundle, hashes)
    with pytest.raises(ToolError, match="no variant of the bundle runs on this machine"):
        try_bundle(bundle, [str(photo(tmp_path / "pets.png"))])


def test_map_when_laid_over_the_photo_lies_as_the_letterbox_put_it(tmp_path):
    scores = np.full((1, 2, SIDE, SIDE), -1, np.float32)
    scores[0, 0] = 0
    scores[0, 1, 8:16, :16] = 1  # the photo's upper left quarter
    other = scores.copy()
    other[0, 1, 8:16, 16:] = 1
    models = {
        name: answering(
            tmp_path / f"{name}.onnx", {"picture": [1, 3, SIDE, SIDE]}, {"classes": value}
        )
        for name, value in (("cpu-int8-static", other), ("cpu-fp32", scores))
    }
    bundle = write_bundle(tmp_path / "bundle", models, described={"inputs": {"picture": PICTURE}})
    trial = try_bundle(bundle, [str(photo(tmp_path / "a.png"))], out=tmp_path / "drawn")
    seen = {
        name: np.asarray(Image.open(tmp_path / "drawn" / f"a.{name}.png")).astype(int)
        for name in models
    }
    quarters = {
        name: [p[p.shape[0] * y // 4, p.shape[1] * x // 4] for y in (1, 3) for x in (1, 3)]
        for name, p in seen.items()
    }
    upper, second, third, fourth = quarters["cpu-fp32"]
    assert (second == third).all()
    assert (third == fourth).all()
    assert (upper != second).any()
    found = quarters["cpu-int8-static"]
    assert (found[0] == upper).all()
    assert (found[2] == third).all()
    # It differs there, and covers more of the photo.
    assert (np.abs(found[1] - 40) > np.abs(upper - 40)).any()
    share = 1 - (8 * 16) / (SIDE * SIDE)
    assert trial.inputs[0].blocks[0].compared[1].numbers == {"equal_share": pytest.approx(share)}
