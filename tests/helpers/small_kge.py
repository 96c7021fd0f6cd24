"""A knowledge base of four people and two relations, for the tests of embeddings."""

import numpy as np

from phalanx.kg.atoms import Atom
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.vocabulary import Vocabulary

LIKES, PARENT = 0, 1
ANN, BOB, CAT, DAN = 0, 1, 2, 3
TRAIN = np.array([(PARENT, ANN, BOB), (PARENT, ANN, CAT), (PARENT, DAN, CAT), (LIKES, BOB, CAT)], np.int32)
VALID = np.array([(PARENT, DAN, BOB)], np.int32)


def four_people(names: tuple[str, ...] = ("ann", "bob", "cat", "dan")) -> Vocabulary:
    """Return the vocabulary of `four_people_base`."""
    return four_people_base(names).vocabulary


def four_people_base(names: tuple[str, ...] = ("ann", "bob", "cat", "dan")) -> KnowledgeBase:
    """Return the knowledge base; entities have the ids above if the names are in alphabetical order."""
    ann, bob, cat, dan = names
    facts = [("parent", ann, bob), ("parent", ann, cat), ("parent", dan, cat), ("likes", bob, cat)]
    return KnowledgeBase(
        train=tuple(Atom(*fact) for fact in facts), valid=(Atom("parent", dan, bob),), test=(), rules=()
    )
