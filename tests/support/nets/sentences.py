"""English sentences for encoders with the vocabulary of BERT, uncased, and how similar they are.

Twelve subjects with four sentences each, written for the tests. Every word is one of the
vocabulary's, with its number there, so that no tokenizer is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BEGIN, END = 101, 102
SUBJECTS = (
    (
        "a man is playing a guitar on the stage",
        "a person plays the guitar for the people",
        "the man with the guitar makes music tonight",
        "somebody is singing and playing music on a stage",
    ),
    (
        "two dogs run across the green field",
        "a dog is running in the grass",
        "the brown dog runs fast over the field",
        "dogs are playing together outside in the park",
    ),
    (
        "the train to the city was late this morning",
        "our train came late to the station today",
        "the morning train had a long delay",
        "trains were late because of the snow",
    ),
    (
        "she is cooking soup in the kitchen",
        "a woman makes dinner in her kitchen",
        "the soup is cooking on the fire",
        "he cooks a hot meal for the family",
    ),
    (
        "the company sold more cars this year",
        "car sales of the company went up",
        "fewer people bought a new car this year",
        "the market for cars is growing again",
    ),
    (
        "it will rain and be cold tomorrow",
        "tomorrow the weather is cold and wet",
        "heavy rain is coming in the evening",
        "the sun will shine over the coast all week",
    ),
    (
        "the team won the game in the last minute",
        "they won the match with a late goal",
        "the players lost the final game at home",
        "a goal in the first minute was not enough",
    ),
    (
        "the doctor gave him medicine for the pain",
        "a doctor helps the sick child at the hospital",
        "the nurse looks after the old man",
        "he went to the hospital with a broken arm",
    ),
    (
        "children are reading books at school",
        "the teacher reads a book to the class",
        "students study in the library at night",
        "a girl writes her name on the paper",
    ),
    (
        "the ship left the harbor at night",
        "a boat sails on the open sea",
        "fishermen come back with a small boat",
        "the river carries the old boat to the sea",
    ),
    (
        "the king lived in a large castle",
        "a queen ruled the country for many years",
        "soldiers stood before the castle gate",
        "the old castle stands on the hill",
    ),
    (
        "please turn off the light in the room",
        "the lights in the room are off",
        "switch the lamp on before it gets dark",
        "the house was dark and empty",
    ),
)
_NUMBERS = """
a 1037 across 2408 after 2044 again 2153 all 2035 and 1998 are 2024 arm 2849 at 2012 back 2067
be 2022 because 2138 before 2077 boat 4049 book 2338 books 2808 bought 4149 broken 3714 brown
2829 came 2234 car 2482 carries 7883 cars 3765 castle 3317 child 2775 children 2336 city 2103
class 2465 coast 3023 cold 3147 come 2272 coming 2746 company 2194 cooking 8434 cooks 26929
country 2406 dark 2601 delay 8536 dinner 4596 doctor 3460 dog 3899 dogs 6077 empty 4064 enough
2438 evening 3944 family 2155 fast 3435 fewer 8491 field 2492 final 2345 fire 2543 first 2034
fishermen 16532 for 2005 game 2208 gate 4796 gave 2435 gets 4152 girl 2611 goal 3125 grass 5568
green 2665 growing 3652 guitar 2858 had 2018 harbor 6496 he 2002 heavy 3082 helps 7126 her 2014
hill 2940 him 2032 home 2188 hospital 2902 hot 2980 house 2160 in 1999 is 2003 it 2009 king 2332
kitchen 3829 lamp 10437 large 2312 last 2197 late 2397 left 2187 library 3075 light 2422 lights
4597 lived 2973 long 2146 looks 3504 lost 2439 makes 3084 man 2158 many 2116 market 3006 match
2674 meal 7954 medicine 4200 minute 3371 more 2062 morning 2851 music 2189 name 2171 new 2047
night 2305 not 2025 nurse 6821 of 1997 off 2125 old 2214 on 2006 open 2330 our 2256 outside 2648
over 2058 pain 3255 paper 3259 park 2380 people 2111 person 2711 players 2867 playing 2652 plays
3248 please 3531 queen 3035 rain 4542 reading 3752 reads 9631 river 2314 room 2282 ruled 5451
run 2448 running 2770 runs 3216 sails 17553 sales 4341 school 2082 sea 2712 she 2016 shine 12342
ship 2911 sick 5305 singing 4823 small 2235 snow 4586 sold 2853 soldiers 3548 somebody 8307 soup
11350 stage 2754 stands 4832 station 2276 stood 2768 students 2493 study 2817 sun 3103 switch
6942 teacher 3836 team 2136 the 1996 they 2027 this 2023 to 2000 today 2651 together 2362
tomorrow 4826 tonight 3892 train 3345 trains 4499 turn 2735 two 2048 up 2039 was 2001 weather
4633 week 2733 went 2253 were 2020 wet 4954 will 2097 with 2007 woman 2450 won 2180 writes 7009
year 2095 years 2086
"""
NUMBERS = dict(zip(_NUMBERS.split()[::2], map(int, _NUMBERS.split()[1::2]), strict=True))
"""By word."""


def make_inputs(*names: str) -> dict[str, Array]:
    """Return what an encoder takes for all sentences, (48, 11) int64, filled up with zeros.

    Args:
        names: Of ``input_ids``, ``attention_mask`` and ``token_type_ids``, those that it has.
    """
    texts = [text for subject in SUBJECTS for text in subject]
    tokens = [[BEGIN, *(NUMBERS[word] for word in text.split()), END] for text in texts]
    found = {name: np.zeros((len(texts), max(map(len, tokens))), np.int64) for name in names}
    for row, numbers in enumerate(tokens):
        found["input_ids"][row, : len(numbers)] = numbers
        found["attention_mask"][row, : len(numbers)] = 1
    return found


def compute_similarities(words: Array, mask: Array) -> Array:
    """Return the cosine of each two sentences, (sentences, sentences), of means over their words.

    Args:
        words: (sentences, words, width): a vector for each word.
        mask: (sentences, words): 1 for words, 0 behind them.
    """
    means = (words * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    means = means / np.linalg.norm(means, axis=1, keepdims=True)
    similarities: Array = means @ means.T
    return similarities


def list_pairs(similarities: Array) -> Array:
    """Return the similarities of all pairs of different sentences, each pair once."""
    return similarities[np.triu_indices(len(similarities), 1)]


def count_found_subjects(similarities: Array) -> int:
    """Return for how many sentences the most similar other one is of the same subject."""
    others = similarities - 2 * np.eye(len(similarities))
    size = len(SUBJECTS[0])
    return int(np.sum(others.argmax(1) // size == np.arange(len(others)) // size))


def rank_correlation(one: Sequence[float] | Array, other: Sequence[float] | Array) -> float:
    """Return Spearman's correlation of values without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])
