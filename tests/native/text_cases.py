"""Texts and sounds that the C++ library has to make into what Python makes of them.

A folder per kind and case, as ``tests/mobile/vectors.py`` has them::

    characters/<n>/case.json  {text, expected: {nfd, nfc, lower, kinds}}
    wordpiece/wide-<n>        as vectors.py has it, of texts from all of Unicode
    tokenizers/<n>/case.json  {tokenizer, expected}: what Python says of it; null: it is taken
    in_model/<n>/case.json    {tokenizer, texts, expected}
    sounds/<n>/case.json      {sound, dtype, rank, shape}; shape is null where it is refused
               sound.wav
               expected.bin   the tensor, or the words and the hint

The other language writes ``found.json`` or ``found.bin``.
"""

from __future__ import annotations

import copy
import json
import os
import struct
import unicodedata
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.ondevice.runtime import edgepack_sounds as sounds
from edgepack.ondevice.runtime.edgepack_wordpiece import (
    InModel,
    TokenizerError,
    WordPiece,
    _is_punctuation,
)

from tests.docs.write_unicode import HEADER
from tests.mobile.proofs import require
from tests.mobile.vectors import normalizer, tokenizer, write_json
from tests.support.media import write_chunks, write_sound
from tests.support.nets.text_nets import byte_pairs, word_pieces

CHUNK = 2176
REAL_SOUNDS = ("audio/silero_vad/test.wav", "audio/gtcrn/mix.wav", "text/magika/files/wav/test.wav")
"""In ``EDGEPACK_TEST_DATA``, where that is set."""
WIDE_TEXTS = 800
RATE = 16000
Description = dict[str, Any]
_EVERY = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def knows_same_characters() -> bool:
    """Return whether this Python has the tables of Unicode that the C++ library has."""
    return f"Unicode {unicodedata.unidata_version}." in HEADER.read_text(encoding="utf-8")


def write_texts(folder: Path) -> None:
    """Write all cases into a folder that need not exist yet."""
    if knows_same_characters():
        for n, text in enumerate(list_characters()):
            write_characters(folder / "characters" / str(n), text)
        for n, changes in enumerate(NORMALIZERS):
            write_wide(folder / "wordpiece" / f"wide-{n}", changes)
    for n, damaged in enumerate(list_damaged()):
        write_tokenizer(folder / "tokenizers" / str(n), damaged)
    for n, in_model in enumerate(IN_MODEL):
        write_in_model(folder / "in_model" / str(n), in_model)
    for n, (described, dtype, rank) in enumerate(SOUNDS):
        write_sounds(folder / "sounds", n, (described, dtype, rank))


def list_characters() -> Iterator[str]:
    """Yield texts that have each character there is, and texts of what normal forms change."""
    for start in range(0, len(_EVERY), CHUNK):
        yield "".join(map(chr, _EVERY[start : start + CHUNK]))
    random = np.random.default_rng(11)
    pool = list_hard()
    for _ in range(200):
        yield "".join(pool[n] for n in random.integers(0, len(pool), 300))


def list_hard() -> list[str]:
    """Return marks, what is made of parts, letters of Hangul, and some that are none of these."""
    marks = [c for c in map(chr, _EVERY) if unicodedata.combining(c)]
    made = [c for c in map(chr, _EVERY) if unicodedata.normalize("NFD", c) != c]
    # All but the syllables of Hangul, which are eleven thousand.
    made = [c for c in made if not "\uac00" <= c <= "\ud7a3"]
    bases = sorted({part for c in made for part in unicodedata.normalize("NFD", c)})
    hangul = list(map(chr, [*range(0x1100, 0x1200), *range(0xAC00, 0xD7A4, 97)]))
    return [*marks, *marks, *made, *bases, *hangul, *"aeou \u03a3\u0130"]


def write_characters(folder: Path, text: str) -> None:
    """Write a text with what Unicode says of it."""
    folder.mkdir(parents=True)
    expected = {
        "nfd": unicodedata.normalize("NFD", text),
        "nfc": unicodedata.normalize("NFC", text),
        "lower": "".join(c.lower() for c in text),
        "kinds": "".join(map(find_kind, text)),
    }
    write_json(folder / "case.json", text=text, expected=expected)


def find_kind(character: str) -> str:
    """Return a letter for what a tokenizer asks of a character."""
    category = unicodedata.category(character)
    if _is_punctuation(character):
        return "p"
    return {"Mn": "m", "Cc": "o", "Cf": "o", "Co": "o"}.get(category, "-")


NORMALIZERS: list[Description] = [
    {},
    {"lowercase": False},
    {"strip_accents": False},
    {"clean_text": False, "handle_chinese_chars": False},
    {"strip_accents": True, "lowercase": False, "clean_text": False},
]


def write_wide(folder: Path, changes: Description) -> None:
    """Write texts of all of Unicode, and a tokenizer that tells each of their characters."""
    random = np.random.default_rng(len(changes))
    pool = [*list_hard(), *map(chr, random.choice(_EVERY[:0x20000], 6000)), *"  \t\n,.!\u4e2d"]
    texts = [
        "".join(pool[n] for n in random.integers(0, len(pool), size))
        for size in random.integers(1, 60, WIDE_TEXTS)
    ]
    plain = tokenizer(normalizer=normalizer(**changes))
    words = [word for text in texts for word in WordPiece(plain).split_words(text)]
    letters = dict.fromkeys(letter for word in words for letter in word)
    pairs = dict.fromkeys(word[at : at + 2] for word in words[::3] for at in range(len(word) - 1))
    pieces = [*letters, *(f"##{letter}" for letter in letters), *(f"##{pair}" for pair in pairs)]
    model = {**plain["model"], "vocab": dict(plain["model"]["vocab"])}
    for piece in pieces:
        model["vocab"].setdefault(piece, len(model["vocab"]))
    described = {**plain, "model": model}
    made = WordPiece(described)
    unknown = model["vocab"]["[UNK]"]
    encoded = [{"text": text, **made.encode(text, 96, pad=True)._asdict()} for text in texts]
    known = sum(unknown not in each["input_ids"] for each in encoded)
    require(known > WIDE_TEXTS / 2, f"only {known} texts are told apart")
    folder.mkdir(parents=True)
    write_json(folder / "case.json", length=96, pad=True, texts=encoded)
    (folder / "tokenizer.json").write_text(json.dumps(described, ensure_ascii=False), "utf-8")


def list_damaged() -> Iterator[Description]:
    """Yield tokenizers that lack one thing each, one is whole."""
    whole = tokenizer(padding={"direction": "Right", "pad_id": 4, "pad_type_id": 1})
    yield whole
    for place in list_places(whole):
        damaged = copy.deepcopy(whole)
        *above, last = place
        within: Any = damaged
        for key in above:
            within = within[key]
        del within[last]
        yield damaged


def list_places(within: Any) -> Iterator[list[Any]]:
    """Yield the keys that lead to each value but those of the vocabulary."""
    keys = within if isinstance(within, dict) else range(len(within))
    for key in keys:
        yield [key]
        if key != "vocab" and isinstance(within[key], dict | list):
            yield from ([key, *more] for more in list_places(within[key]))


def write_tokenizer(folder: Path, described: Description) -> None:
    """Write a tokenizer with what Python says of it."""
    folder.mkdir(parents=True)
    said = None
    try:
        WordPiece(described)
    except TokenizerError as error:
        said = str(error)
    write_json(folder / "case.json", tokenizer=described, expected=said)


FORM = {"normalizer": {"type": "NFC"}}
IN_MODEL = (
    word_pieces(),
    byte_pairs(),
    byte_pairs(**FORM),
    byte_pairs(added_tokens=[{**t, "lstrip": True} for t in byte_pairs()["added_tokens"][1:]]),
)
IN_MODEL_TEXTS = [
    "", "hello", "cafe\u0301 \u1112\u1161\u11ab \u212b", "a\0b", "a <pad> b", "<s>", "[PAD]",
    "x[SEP]", "\u0958 \u0344 \u03a9\u0301\u0345\u0323",
]  # fmt: skip


def write_in_model(folder: Path, described: Description) -> None:
    """Write what a model that makes tokens itself gets of texts."""
    folder.mkdir(parents=True)
    parsed = InModel.parse(json.dumps(described))
    expected = [said_or_made(partial(parsed.encode_text, text)) for text in IN_MODEL_TEXTS]
    write_json(folder / "case.json", tokenizer=described, texts=IN_MODEL_TEXTS, expected=expected)


def said_or_made(encode: Any) -> str:
    """Return the text that is made, or the error."""
    try:
        return str(encode().decode("utf-8"))
    except ValueError as error:
        return f"error: {error}"


KINDS = ("s8", "s16", "s24", "s32", "f32", "f64")
SOUNDS = [
    ({"rate": RATE, "channels": channels, "length": length}, dtype, rank)
    for channels, length, (dtype, rank) in product(
        (1, 2),
        (None, 30, 200),
        (("float32", 1), ("float32", 3), ("int16", 2), ("float16", 3), ("float64", 2)),
    )
]
"""How inputs are described: ``sound``, the type, and how many axes."""


def write_sounds(folder: Path, number: int, described: tuple[Description, str, int]) -> None:
    """Write files, good and damaged, with their tensors as an input is described."""
    real = [Path(os.environ.get("EDGEPACK_TEST_DATA", ".")) / path for path in REAL_SOUNDS]
    files = [path.read_bytes() for path in real if path.exists()]
    files += list_files(folder.parent / "scratch.wav", number)
    for n, data in enumerate(files):
        write_one(folder / f"{number}-{n}", data, described)


def list_files(scratch: Path, seed: int) -> Iterator[bytes]:
    """Yield files of each kind, and damaged ones, other ones for each seed."""
    random = np.random.default_rng(seed)
    good = []
    for kind, channels in product(KINDS, (1, 2)):
        values = random.uniform(-1, 1, (random.integers(1, 120), channels))
        write_sound(scratch, values, kind=kind)
        good.append(scratch.read_bytes())
    yield from good
    for kind in ("f32", "f64"):
        for value in (np.nan, -np.inf, 1e30, 3.4028235e38, 3.40282357e38, 1e300, 1e-45, -0.0):
            values = random.uniform(-1, 1, 60)
            values[random.integers(0, 60)] = value
            with np.errstate(over="ignore"):
                write_sound(scratch, values, kind=kind)
            yield scratch.read_bytes()
    write_sound(scratch, np.zeros(9), rate=44100)
    yield scratch.read_bytes()
    write_sound(scratch, np.zeros((9, 3)))
    yield scratch.read_bytes()
    yield from list_extensible(scratch)
    yield from (b"", b"RIFF", b"RIFX\xff\x00'\"\t\n\r\\WAVE", b"RIFF....WAVE", b"RIFF....WAVEfmt ")
    for _ in range(30):
        yield damage(good[random.integers(0, len(good))], random)


def list_extensible(scratch: Path) -> Iterator[bytes]:
    """Yield files with an extensible header, whole and cut, and chunks that lie."""
    head = struct.pack("<HHIIHH", 0xFFFE, 1, RATE, RATE * 3, 3, 24)
    head += struct.pack("<HHIH", 22, 24, 4, 1) + bytes.fromhex("000000001000800000aa00389b71")
    for size in (len(head), 26, 25, 16, 15, 0):
        write_chunks(scratch, {b"fmt ": head[:size], b"data": bytes(range(250, 256)) * 2})
        yield scratch.read_bytes()
    write_chunks(scratch, {b"fmt ": head, b"data": b""})
    yield scratch.read_bytes()
    for name in (b"\xe9'\xad\x85", b'a"b\x7f', b"\n\\'\""):
        write_chunks(scratch, {b"fmt ": head, name: b"12345", b"data": bytes(9)})
        whole = scratch.read_bytes()
        yield whole
        at = whole.index(name) + 4
        yield whole[:at] + b"\xff\xff\xff\xff" + whole[at + 4 :]


def damage(data: bytes, random: np.random.Generator) -> bytes:
    """Return a file with some bytes of its head changed, or without its end."""
    changed = bytearray(data)
    for at in random.integers(0, min(len(data), 64), random.integers(0, 3)):
        changed[at] = random.choice([0, 1, 2, 3, 6, 7, 17, 24, 32, 85, 254, 255])
    return bytes(changed[: random.integers(0, len(data))] if random.random() < 0.4 else changed)


def write_one(folder: Path, data: bytes, described: tuple[Description, str, int]) -> None:
    """Write one file with the tensor that it is, or what is said of it."""
    folder.mkdir(parents=True)
    sound, dtype, rank = described
    (folder / "sound.wav").write_bytes(data)
    shape = None
    try:
        with np.errstate(over="ignore"):
            tensor = sounds.make_tensor(data, sound, dtype, rank)
        shape = list(tensor.shape)
        expected = tensor.tobytes()
    except sounds.SoundError as error:
        expected = f"{error}\n{error.advice}".encode()
    (folder / "expected.bin").write_bytes(expected)
    write_json(folder / "case.json", sound=sound, dtype=dtype, rank=rank, shape=shape)


def compare_characters(cases: Path, results: Path) -> str:
    """Return how many characters are known alike."""
    if not knows_same_characters():
        return (
            f"characters are not looked at: this Python has Unicode {unicodedata.unidata_version}"
        )
    count = 0
    for case, facts, found in list_found(cases, results, "characters"):
        for key, expected in facts["expected"].items():
            at = next((n for n, e in enumerate(expected) if found[key][n : n + 1] != e), None)
            same = at is None and len(found[key]) == len(expected)
            place = 0 if at is None else at
            require(same, f"{case}: {key} differs at {place}: {expected[place : place + 9]!a}")
        count += len(facts["text"])
    return f"{count} characters"


def compare_damaged(cases: Path, results: Path) -> str:
    """Return how many tokenizers are taken or refused alike."""
    refused = 0
    for case, facts, found in list_found(cases, results, "tokenizers"):
        said = facts["expected"]
        if said is not None and said.startswith("it is not whole"):
            # Which key lacks is said in the words of each language.
            same = found is not None and found.startswith("the bundle is damaged: ")
        else:
            same = found == said
        require(same, f"{case}: {found!r}, not {said!r}")
        refused += said is not None
    return f"{refused} damaged tokenizers are refused"


def compare_in_model(cases: Path, results: Path) -> str:
    """Return how many texts are given alike to models that make tokens themselves."""
    count = 0
    for case, facts, found in list_found(cases, results, "in_model"):
        require(found == facts["expected"], f"{case}: {found}, not {facts['expected']}")
        count += len(found)
    return f"{count} texts for models with tokenizers"


def list_found(cases: Path, results: Path, kind: str) -> Iterator[tuple[Path, Any, Any]]:
    """Yield each case with its facts and what was found."""
    for case in sorted((cases / kind).iterdir()):
        facts = json.loads((case / "case.json").read_text(encoding="utf-8"))
        found = (results / kind / case.name / "found.json").read_text(encoding="utf-8")
        yield case, facts, json.loads(found)


def compare_sounds(cases: Path, results: Path) -> str:
    """Return how many sounds have the same bits, and how many are refused in the same words."""
    taken, refused = 0, set()
    for case in sorted((cases / "sounds").iterdir()):
        expected = (case / "expected.bin").read_bytes()
        found = (results / "sounds" / case.name / "found.bin").read_bytes()
        shape = json.loads((case / "case.json").read_text())["shape"]
        if shape is None:
            require(found == expected, f"{case}: {found[:300]!r}, not {expected!r}")
            refused.add(expected)
            continue
        require(found == str(shape).encode() + b"\n" + expected, f"{case} differs")
        taken += 1
    require(taken > 100 and len(refused) > 100, f"only {taken} are taken, {len(refused)} refused")
    return f"{taken} sounds have the same bits, {len(refused)} refusals the same words"


COMPARISONS = (compare_characters, compare_damaged, compare_in_model, compare_sounds)
