"""Broken models, planted where they would come from; each has to be refused.

*In the pipeline*: the step of a recipe leaves its file broken, and edgepack goes on with it:
proves, judges, bundles. The plant has passed if the variant is shipped and is broken as
``judging.py`` has it, or says less than half of what fp32 says.

*In the bundle*: the file of a sound variant is broken after the build, and the bundle's own loader
chooses a variant. The plant has passed if it chooses the broken one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import onnx
from edgepack.api import build

from tests.proofs.breakages import BREAKAGES
from tests.proofs.building import write_project
from tests.proofs.cases import Case, Made
from tests.proofs.judging import judge, skills
from tests.proofs.net import REFUSED
from tests.proofs.planted_steps import planted_step
from tests.proofs.running import collect
from tests.proofs.shipped import Bundle, Variant, read_bundle
from tests.proofs.zoo_classes import zoo as classes
from tests.proofs.zoo_dense import zoo as dense
from tests.proofs.zoo_detection import zoo as detection
from tests.proofs.zoo_scores import zoo as scores
from tests.proofs.zoo_streams import zoo as streams
from tests.proofs.zoo_vectors import zoo as vectors

_CASES: dict[str, Case] = {
    case.name: case
    for zoo in (classes, scores, detection, dense, vectors, streams)
    for case in zoo.cases
}
HALF = 0.5
_LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
from edgepack_loader import load
print(load(sys.argv[1], variant=sys.argv[2]).variant)
"""


@dataclass
class Planted:
    """A breakage in one place of one case."""

    case: str
    breakage: str
    recipe: str = "Int8Static"
    place: str = "pipeline"
    target: object = "linux-x86-64"
    quick: bool = False
    passed: bool = False
    told: str = "not tried"

    @property
    def name(self) -> str:
        """For people and folders."""
        return f"{self.breakage}-{self.recipe}-{self.place}-{self.case}"

    @property
    def words(self) -> str:
        """The recipe as manifests have it."""
        return re.sub(r"(?<=.)(?=[A-Z])", "-", self.recipe).lower()


def _products(recipe: str) -> dict[str, object]:
    variants = [{"backend": "cpu", "recipe": recipe}, {"backend": "cpu", "recipe": "fp32"}]
    return {"id": "linux-x86-64", "variants": variants}


PLANTS = [
    *(
        Planted(
            case,
            breakage,
            quick=case == "speech-quality" and breakage == "mean-only",
        )
        for case in (
            "softmax",
            "speech-quality",
            "presence",
            "mask-logits",
            "denoise",
            "image-embedding",
        )
        for breakage in (
            "wrong-scales",
            "rounded-by-other-scales",
            "saturating-scales",
            "shifted-zero-points",
            "swapped-channels",
            "offset-only",
            "mean-only",
            "nearly-mean",
            "constant",
        )
    ),
    Planted("yolo", "unsure", quick=True),
    Planted("yolo", "offset-only"),
    Planted("yolo", "constant"),
    Planted("many-heads", "unsure"),
    Planted("wake-word", "unsure"),
    *(
        Planted(case, "constant", quick=case == "heard-letters")
        for case in ("heard-letters", "class-index", "mask-argmax", "yes-or-no", "any-length")
    ),
    Planted("thin-lines", "unsure"),
    Planted("presence", "unsure"),
    Planted("logits", "one-class"),
    Planted("mask-logits", "one-class"),
    Planted("two-classes-of-a-shape", "swapped-outputs"),
    Planted("leaky-sum", "dead-state"),
    Planted("tags", "constant", recipe="Int8Dynamic", target=_products("int8-dynamic")),
    Planted("tags", "constant", recipe="Int4Weight", target=_products("int4-weight")),
    Planted("softmax", "overflowing", recipe="Fp16", target="jetson"),
    Planted("speech-quality", "offset-only", recipe="Fp16", target="jetson"),
    Planted("speech-quality", "offset-only", recipe="Fp32"),
    Planted("softmax", "swapped-channels", recipe="Fp32"),
    *(
        Planted(case, breakage, place="bundle", quick=case == "softmax" and breakage == "constant")
        for case in ("softmax", "speech-quality", "yolo", "mask-logits", "two-classes-of-a-shape")
        for breakage in (
            "wrong-scales",
            "rounded-by-other-scales",
            "shifted-zero-points",
            "swapped-channels",
            "offset-only",
            "mean-only",
            "nearly-mean",
            "constant",
            *(("unsure",) if case == "yolo" else ()),
            *(("swapped-outputs",) if case.startswith("two") else ()),
        )
    ),
]


def plant(planted: Planted, folder: Path) -> None:
    """Plant a breakage and note whether it passed, and why not."""
    folder.mkdir(parents=True)
    made = _CASES[planted.case].make(folder)
    if planted.place == "bundle":
        _in_bundle(planted, made, folder)
    else:
        _in_pipeline(planted, made, folder)


def _in_pipeline(planted: Planted, made: Made, folder: Path) -> None:
    project = write_project(folder, made, [planted.target])
    step = planted_step(planted.recipe, planted.breakage)
    module = planted.words.replace("-", "_")
    with mock.patch(f"edgepack.steps.recipes.{module}.{planted.recipe}", step):
        result = build(project=project, out=folder / "dist", use_cache=False)
    bundles = [read_bundle(built.bundle.path) for built in result.bundles]
    shipped = [v for b in bundles for v in b.variants if v.entry["recipe"] == planted.words]
    unused = [each for found in result.unused.values() for each in found]
    lost = [each.reason for each in unused if planted.words in each.variant]
    if not shipped:
        # Without a reason nothing was refused: the recipe was not planned, or planted, at all.
        planted.passed = not lost
        planted.told = (
            f"refused: {' '.join(lost[0].split())[:160]}" if lost else "PASSED: no reason"
        )
        return
    found = judge(shipped[0], made, collect(made.model, made.unseen, made.state))
    share = found.worst.share if found.worst else 1.0
    planted.passed = bool(found.broken) or share < HALF
    did = (
        "PASSED"
        if planted.passed
        else "shipped, and weak"
        if found.weak
        else "shipped, does little"
    )
    what = "; ".join(found.broken or found.weak) or f"it says {share:.3f} of what fp32 says"
    planted.told = f"{did}: {what}"


def _in_bundle(planted: Planted, made: Made, folder: Path) -> None:
    project = write_project(folder, made, [planted.target])
    result = build(project=project, out=folder / "dist")
    bundle = read_bundle(result.bundles[0].bundle.path)
    variant = next((v for v in bundle.variants if v.entry["recipe"] == planted.words), None)
    if variant is None:
        planted.told = f"nothing to break: no {planted.words} is shipped"
        return
    model = onnx.load(str(variant.model))
    own = collect(variant.model, made.unseen, made.state)
    BREAKAGES[planted.breakage](model, made.calibration)
    onnx.save(model, str(variant.model))
    effect = _effect(variant, made, own)
    why = _refusal(bundle, variant)
    planted.passed = not why and effect < HALF
    words = "PASSED" if planted.passed else f"refused: {why}" if why else "taken, does little"
    planted.told = f"{words}; the broken file says {effect:.3f} of what it said"


def _effect(variant: Variant, made: Made, own: dict) -> float:
    """Return how much of what a sound file says the broken one says: 0 is a constant's."""
    try:
        outputs = collect(variant.model, made.unseen, made.state)
    except REFUSED:
        # What does not run says nothing.
        return 0.0
    told = skills(made, own, outputs).values()
    return min((skill.share for skill in told if skill), default=1.0)


def _refusal(bundle: Bundle, variant: Variant) -> str:
    """Return why the bundle's loader refuses a variant; nothing if it takes it.

    It is asked for by name: that it takes another one first would say nothing of this one.
    """
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(bundle.path), variant.entry["id"]],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.returncode:
        return ""
    return done.stderr.strip().splitlines()[-1][:200]
