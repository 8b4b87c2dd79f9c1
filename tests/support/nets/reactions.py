"""Chemical reactions for a transformer that finds where each atom goes, and whether it does.

Each reaction is written as its molecules' atoms and bonds, and the bonds that are other ones in its
product. So it is known where each of the product's atoms was before. The product's atoms stand in
another order.

What the model takes is told by its makers (chython's ``chython/reactions/attention/_encode.py``,
3.7): one row of tokens, which begins with one for the reaction and has one for each molecule before
its atoms. Atoms are their elements' numbers plus 2, ``neighbors`` counts each one's bonds and
hydrogens, plus 2, ``distances`` counts the bonds between two atoms of a molecule, 10 at most, plus
2, and ``roles`` are 2 before the reaction and 3 after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

Array = np.ndarray[Any, Any]
Bonds = dict[tuple[int, int], int]

_NUMBERS = {"B": 5, "C": 6, "N": 7, "O": 8, "F": 9, "P": 15, "S": 16, "Cl": 17, "Br": 35}
_VALENCES = {"B": 3, "C": 4, "N": 3, "O": 2, "F": 1, "P": 3, "S": 2, "Cl": 1, "Br": 1}
_ORDERS = {".": 0, "-": 1, "=": 2, "#": 3}
_FARTHEST = 10
_REACTION, _MOLECULE, _BEFORE, _AFTER = 1, 0, 2, 3
REACTIONS = (
    # An acid and an alcohol; an acid and an amine; a chloride of an acid and an amine.
    ("C C O O C C O", "1-2 2=3 2-4 5-6 6-7", "2.4 2-7"),
    ("C C O O C C N", "1-2 2=3 2-4 5-6 6-7", "2.4 2-7"),
    ("C C C O Cl N C C", "1-2 2-3 3=4 3-5 6-7 6-8", "3.5 3-6"),
    # A bromide and an alcohol, and an amine.
    ("C C C Br C O", "1-2 2-3 3-4 5-6", "3.4 3-6"),
    ("C C C Br N C C O", "1-2 2-3 3-4 5-6 6-7 7-8", "3.4 3-5"),
    # Diels and Alder's, Suzuki's, Grignard's and Wittig's, near enough.
    ("C C C C C C C N", "1=2 2-3 3=4 5=6 6-7 7#8", "1-2 2=3 3-4 4-5 5-6 1-6"),
    (
        "C C C C C C Br C C C C C C B O O O C",
        "1=2 2-3 3=4 4-5 5=6 6-1 1-7 4-17 17-18 8=9 9-10 10=11 11-12 12=13 13-8 8-14 14-15 14-16",
        "1.7 8.14 1-8",
    ),
    ("C C C O C C Br", "1-2 2-3 2=4 5-6 6-7", "2-4 6.7 2-6"),
    ("C C C O C C P C C C", "1-2 2-3 3=4 5-6 6=7 7-8 7-9 7-10", "3.4 6.7 3=6"),
    # Water and an ester; an aldehyde and an amine; hydrogen and a ketone.
    ("C C C O O C C O", "1-2 2-3 3=4 3-5 5-6 6-7", "3.5 3-8"),
    (
        "C C C C C C C O N C C",
        "1=2 2-3 3=4 4-5 5=6 6-1 1-7 7=8 9-10 10-11",
        "7.8 7=9",
    ),
    ("C C C O C C", "1-2 2-3 3=4 3-5 5-6", "3-4"),
    # Something added to one double bond, and to another.
    ("C C C O C O S C C", "1=2 2-3 3=4 3-5 7-8 8-9", "1-2 1-7"),
    ("C C C O C Br Br", "1-2 2=3 3-5 6-7", "2-3 6.7 2-6 3-7"),
)
"""Atoms, bonds before, and bonds that are others afterwards; "1.2" is none."""


@dataclass(frozen=True)
class Reaction:
    """What the model takes, and what it should find."""

    inputs: Mapping[str, Array]
    """int64: ``atoms``, ``neighbors`` and ``roles`` (1, tokens), ``distances`` (1, tokens, tokens).
    """
    numbers: Array
    """(tokens,): each atom's number in the reaction, 0 for tokens that are none."""
    kinds: Mapping[int, int]
    """By atom: the same for those that only their numbers tell apart."""


def list_reactions() -> list[Reaction]:
    """Return all reactions."""
    return [_make_reaction(*texts, seed=seed) for seed, texts in enumerate(REACTIONS)]


def count_found(reaction: Reaction, attention: Array) -> tuple[int, int]:
    """Return for how many atoms of the product it is found where they were, and of how many.

    Args:
        reaction: What the model was given.
        attention: (tokens, tokens): how much each looks at each. Of the product's atoms and those
            before, each takes one of its element, so that they look at each other most in all.
    """
    roles, atoms = (reaction.inputs[name][0] for name in ("roles", "atoms"))
    before, after = np.flatnonzero(roles == _BEFORE), np.flatnonzero(roles == _AFTER)
    both = attention[np.ix_(after, before)] + attention[np.ix_(before, after)].T
    both = both * (atoms[after][:, None] == atoms[before])
    rows, columns = linear_sum_assignment(both, maximize=True)
    given, right = reaction.numbers[before[columns]], reaction.numbers[after[rows]]
    found = [reaction.kinds[a] == reaction.kinds[b] for a, b in zip(given, right, strict=True)]
    return sum(found), len(found)


def _make_reaction(atoms: str, bonds: str, changes: str, *, seed: int) -> Reaction:
    elements = dict(enumerate(atoms.split(), 1))
    before = _read_bonds(bonds)
    after = {pair: order for pair, order in (before | _read_bonds(changes)).items() if order}
    product = max(_list_molecules(elements, after), key=len)
    product = [int(k) for k in np.random.default_rng(seed).permutation(product)]
    molecules = [(each, before, _BEFORE) for each in _list_molecules(elements, before)]
    numbers, roles, neighbors, blocks = [0], [_REACTION], [0], [np.ones((1, 1))]
    for molecule, its, role in [*molecules, (product, after, _AFTER)]:
        numbers += [0, *molecule]
        roles += [_MOLECULE, *[role] * len(molecule)]
        neighbors += [0, *(_count_neighbors(k, elements, its) + 2 for k in molecule)]
        blocks.append(np.ones((1 + len(molecule),) * 2))
        blocks[-1][1:, 1:] = _count_steps(molecule, its) + 2
    tokens = [_NUMBERS[elements[k]] + 2 if k else int(r == _MOLECULE)
              for k, r in zip(numbers, roles, strict=True)]  # fmt: skip
    distances, place = np.zeros((len(numbers),) * 2), 0
    for block in blocks:
        distances[place : place + len(block), place : place + len(block)] = block
        place += len(block)
    rows = {"atoms": tokens, "neighbors": neighbors, "distances": distances, "roles": roles}
    inputs = {name: np.array(values, np.int64)[None] for name, values in rows.items()}
    return Reaction(inputs, np.array(numbers), _find_kinds(elements, before))


def _read_bonds(text: str) -> Bonds:
    found = re.findall(r"(\d+)(\W)(\d+)", text)
    return {(min(int(a), int(b)), max(int(a), int(b))): _ORDERS[sign] for a, sign, b in found}


def _list_neighbors(atom: int, bonds: Bonds) -> list[int]:
    return [a + b - atom for a, b in bonds if atom in (a, b)]


def _list_molecules(elements: Mapping[int, str], bonds: Bonds) -> Iterator[list[int]]:
    """Yield the atoms of each molecule."""
    left = set(elements)
    while left:
        reached, new = set[int](), {min(left)}
        while new:
            reached |= new
            new = {near for atom in new for near in _list_neighbors(atom, bonds)} - reached
        left -= reached
        yield sorted(reached)


def _count_neighbors(atom: int, elements: Mapping[int, str], bonds: Bonds) -> int:
    """Return an atom's bonds to others and to hydrogens, which fill up its valence."""
    used = sum(order for pair, order in bonds.items() if atom in pair)
    return len(_list_neighbors(atom, bonds)) + max(0, _VALENCES[elements[atom]] - used)


def _count_steps(atoms: list[int], bonds: Bonds) -> Array:
    """Return the bonds between each two atoms of a molecule, (atoms, atoms)."""
    steps = np.where(np.eye(len(atoms)), 0, len(atoms))
    for a, b in bonds:
        if a in atoms:
            steps[[atoms.index(a), atoms.index(b)], [atoms.index(b), atoms.index(a)]] = 1
    for k in range(len(atoms)):
        steps = np.minimum(steps, steps[:, [k]] + steps[k])
    return np.minimum(steps, _FARTHEST)


def _find_kinds(elements: Mapping[int, str], bonds: Bonds) -> dict[int, int]:
    """Return a number for each atom, the same where a molecule's structure is the same around them.

    The bonds of a ring are written as double and single ones in turn, so their order is no part.
    """
    places = {atom: n for n, each in enumerate(_list_molecules(elements, bonds)) for atom in each}
    seen: dict[int, Any] = {
        atom: (places[atom], element, _count_neighbors(atom, elements, bonds))
        for atom, element in elements.items()
    }
    numbers: dict[int, int] = {}
    for _ in elements:
        order = sorted(set(seen.values()))
        numbers = {atom: order.index(kind) for atom, kind in seen.items()}
        seen = {
            atom: (numbers[atom], *sorted(numbers[near] for near in _list_neighbors(atom, bonds)))
            for atom in elements
        }
    return numbers
