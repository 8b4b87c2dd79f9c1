"""The example ``commands``: what its README says works, and its files are what train.py writes."""

from __future__ import annotations

import csv
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from edgepack.ondevice.runtime.edgepack_wordpiece import WordPiece
from edgepack.project.profile import find_host_target
from edgepack.steps.base import run_step
from edgepack.steps.graph.attention import FusedAttention

EXAMPLE = Path(__file__).parents[3] / "examples" / "commands"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the README's blocks of code in a language."""
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return [text.replace("linux-x86-64", find_host_target()) for text in found]


def run(argv: list[str], folder: Path) -> str:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout


@pytest.mark.slow(reason="builds the example in processes of its own")
def test_commands_of_the_readme_build_the_example_and_answer_a_text(tmp_path: Path):
    folder = tmp_path / "commands"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("dist", "__pycache__"))
    lines = [line for line in blocks("sh")[0].splitlines() if line.startswith("edgepack ")]
    printed = [run([sys.executable, "-m", *shlex.split(line)], folder) for line in lines]
    assert "cpu-int8-dynamic" in printed[0]
    assert "lights-on" in printed[1]
    assert run([sys.executable, "-c", blocks("python")[0]], folder) == "lights-on\n"
    built = dict(re.findall(r"(cpu-[\w-]+) +\S +[\d.]+ .*?(\d\.\d{4})", printed[0]))
    told = dict(re.findall(r"\| (cpu-[\w-]+) \| ([\d.]+) %", README))
    assert built.keys() == told.keys()
    # Another processor may round a sentence of 160 to the other side.
    for variant, percent in told.items():
        assert 100 * float(built[variant]) == pytest.approx(float(percent), abs=1.3)


def read_evaluation() -> list[tuple[str, str]]:
    with (EXAMPLE / "evaluation.csv").open(encoding="utf-8", newline="") as file:
        return [(text, wanted) for text, wanted in csv.reader(file)]


def test_token_ids_of_the_evaluation_are_those_that_a_bundle_makes_of_its_texts():
    tokenizer = WordPiece.parse((EXAMPLE / "tokenizer.json").read_text(encoding="utf-8"))
    names = (EXAMPLE / "labels.txt").read_text(encoding="utf-8").split()
    with np.load(EXAMPLE / "evaluation.npz") as samples:
        for row, (text, wanted) in enumerate(read_evaluation()):
            made = tokenizer.encode(text, 16, pad=True)
            assert samples["input_ids"][row].tolist() == made.input_ids
            assert samples["attention_mask"][row].tolist() == made.attention_mask
            assert names[samples["labels"][row]] == wanted


def load_sentences() -> ModuleType:
    spec = importlib.util.spec_from_file_location("commands_sentences", EXAMPLE / "sentences.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_evaluation_is_what_the_script_puts_together_and_no_sentence_of_the_training():
    sentences = load_sentences()
    names = list(sentences.TRAINING)
    trained = {sentence.text for sentence in sentences.draw_training(700 * 48, 0)}
    made = [(text, names[label]) for text, label in sentences.list_evaluation(3, 20, trained)]
    assert read_evaluation() == made
    assert not trained & {text for text, _ in made}


def test_attention_of_the_example_can_be_fused(tmp_path: Path):
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    shutil.copy(EXAMPLE / "commands.onnx", tmp_path / "in" / "model.onnx")
    notes = run_step(FusedAttention(), {"model": tmp_path / "in"}, tmp_path / "out")
    assert notes.facts == {"fused_attention": 2}
