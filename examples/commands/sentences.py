"""Sentences that people might say to a home, put together from parts, with what they want.

The evaluation's sentences are made of other patterns than those of the training, and of some words
that the training never has.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

ROOMS = ("kitchen", "bedroom", "bathroom", "hall", "office", "living room")
OTHER_ROOMS = ("garage", "cellar", "nursery")
LAMPS = ("light", "lights", "lamp", "lamps")
MUSIC = ("some jazz", "the radio", "a song", "my playlist", "some music", "the news", "an album")
TIMES = ("two", "three", "five", "ten", "fifteen", "twenty", "thirty")
DAYS = ("today", "tomorrow", "tonight", "this weekend", "on monday", "this afternoon")

BEFORE = ("please ", "can you ", "could you ", "now ", "hey ", "we want you to ", "why not ")
AFTER = (" please", " now", " in here", " a little", " for us", " so we can sleep", " at once")

TRAINING = {
    "lights-on": (
        "turn on the {lamp} in the {room}",
        "turn the {room} {lamp} on",
        "switch the {lamp} on",
        "switch on the {room} {lamp}",
        "put the {lamp} on in the {room}",
        "it is dark in the {room}",
        "i can not see anything in the {room}",
        "make it bright in the {room}",
        "we need more light in the {room}",
        "{lamp} on",
        "it is so dark",
        "more light",
    ),
    "lights-off": (
        "turn off the {lamp} in the {room}",
        "turn the {room} {lamp} off",
        "switch the {lamp} off",
        "switch off the {room} {lamp}",
        "put the {lamp} out in the {room}",
        "it is too bright in the {room}",
        "make it dark in the {room}",
        "no more light in the {room}",
        "nobody needs the {lamp} that is on in the {room}",
        "{lamp} off",
        "it is so bright",
        "less light",
    ),
    "warmer": (
        "make it warmer in the {room}",
        "it is cold in the {room}",
        "turn up the heating in the {room}",
        "turn the heating up",
        "i am freezing",
        "the {room} is too cold",
        "raise the temperature in the {room}",
        "heat the {room}",
        "two degrees more in the {room}",
        "it is so cold",
        "we are cold in the {room}",
        "put the heating up",
    ),
    "colder": (
        "make it colder in the {room}",
        "it is hot in the {room}",
        "turn down the heating in the {room}",
        "turn the heating down",
        "i am sweating",
        "the {room} is too hot",
        "lower the temperature in the {room}",
        "cool the {room}",
        "two degrees less in the {room}",
        "it is so hot",
        "we are hot in the {room}",
        "put the heating down",
    ),
    "music-play": (
        "play {music}",
        "play {music} in the {room}",
        "i want to hear {music}",
        "put {music} on",
        "start {music}",
        "let me listen to {music}",
        "turn on {music}",
        "we like to hear {music}",
        "switch {music} on",
    ),
    "music-stop": (
        "stop {music}",
        "stop {music} in the {room}",
        "turn {music} off",
        "i do not want to hear {music}",
        "be quiet",
        "no more music",
        "end {music}",
        "silence in the {room}",
        "that is enough of {music}",
        "switch {music} off",
        "do not play {music}",
    ),
    "timer": (
        "set a timer for {time} minutes",
        "start a timer of {time} minutes",
        "wake me in {time} minutes",
        "remind me in {time} minutes",
        "tell me when {time} minutes are over",
        "count down {time} minutes",
        "alarm in {time} minutes",
        "give me {time} minutes for the eggs",
        "a timer of {time} minutes",
        "set an alarm for {time} minutes",
    ),
    "weather": (
        "how is the weather {day}",
        "will it rain {day}",
        "is it going to snow {day}",
        "do i need an umbrella {day}",
        "what is the weather like {day}",
        "will the sun shine {day}",
        "how cold will it be {day}",
        "is there a storm coming {day}",
        "tell me if it will snow {day}",
        "can we expect sun {day}",
    ),
}
"""Patterns by what is wanted, in the order of the classes."""

EVALUATION = {
    "lights-on": (
        "please switch the {room} {lamp} on",
        "why is it so dark in the {room}",
        "{lamp} on in the {room} please",
        "could we have some more light in the {room}",
    ),
    "lights-off": (
        "please switch the {room} {lamp} off",
        "it is far too bright in here",
        "{lamp} off in the {room} please",
        "nobody needs the {lamp} in the {room} now",
    ),
    "warmer": (
        "it is so cold in here",
        "please turn the heating in the {room} up",
        "can you heat the {room} a little",
        "we are freezing in the {room}",
    ),
    "colder": (
        "it is so hot in here",
        "please turn the heating in the {room} down",
        "can you cool the {room} a little",
        "we are sweating in the {room}",
    ),
    "music-play": (
        "please play {music} now",
        "we want to listen to {music} in the {room}",
        "can i hear {music}",
        "put on {music} in the {room}",
    ),
    "music-stop": (
        "please stop {music} now",
        "we do not want to listen to {music}",
        "switch {music} off in the {room}",
        "enough of {music} for now",
    ),
    "timer": (
        "please remind me in {time} minutes",
        "i need a timer of {time} minutes",
        "can you wake me {time} minutes from now",
        "set the alarm to {time} minutes",
    ),
    "weather": (
        "is it going to rain {day}",
        "can we expect snow {day}",
        "tell me the weather {day}",
        "should i take an umbrella {day}",
    ),
}
"""Other patterns, for the evaluation."""


class Sentence(NamedTuple):
    """What is said, and the number of the class."""

    text: str
    label: int


def fill(pattern: str, rooms: tuple[str, ...], drawn: random.Random) -> str:
    """Return a pattern with words in its gaps."""
    return pattern.format(
        room=drawn.choice(rooms),
        lamp=drawn.choice(LAMPS),
        music=drawn.choice(MUSIC),
        time=drawn.choice(TIMES),
        day=drawn.choice(DAYS),
    )


def draw_training(count: int, seed: int) -> list[Sentence]:
    """Return sentences to train with; half of them with words around that say nothing."""
    drawn = random.Random(seed)
    names = list(TRAINING)
    found = []
    for _ in range(count):
        label = drawn.randrange(len(names))
        text = fill(drawn.choice(TRAINING[names[label]]), ROOMS, drawn)
        before = drawn.choice(BEFORE) * (drawn.random() < 0.5)
        after = drawn.choice(AFTER) * (drawn.random() < 0.5)
        found.append(Sentence(before + text + after, label))
    return found


def list_evaluation(seed: int, each: int, trained: Collection[str]) -> list[Sentence]:
    """Return sentences to evaluate with: as many of each class, no two alike, none trained."""
    drawn = random.Random(seed)
    found: dict[Sentence, None] = {}
    for label, patterns in enumerate(EVALUATION.values()):
        mine: dict[Sentence, None] = {}
        while len(mine) < each:
            text = fill(drawn.choice(patterns), ROOMS + OTHER_ROOMS, drawn)
            if text not in trained:
                mine[Sentence(text, label)] = None
        found |= mine
    return list(found)
