"""Words for haystacks: slots of filler sentences, and what needles are about."""

from __future__ import annotations

_words = str.split


def _phrases(text: str) -> list[str]:
    return text.split("|")


# All begin with a consonant, so that "a" is always the right article.
SLOTS = {
    "adj": _words(
        "quiet green narrow wooden bright heavy cold gentle busy golden broad small tall dusty clean proud"
        " late warm plain round steep smooth dark pale rough soft young"
    ),
    "person": _words(
        "baker farmer teacher sailor painter doctor singer miller driver gardener porter tailor writer nurse hunter"
        " guard student butcher weaver captain cook pilot clerk judge smith"
    ),
    "place": _words(
        "market harbor forest bridge square garden station village library mill tower valley kitchen school church"
        " island meadow workshop museum theater castle beach street park farm"
    ),
    "thing": _words(
        "basket ladder letter lamp wagon blanket hammer bottle map rope clock bench carpet drum kettle mirror boat"
        " window gate chair barrel candle book coat bell"
    ),
    "animal": _words("dog cat horse goat crow hen fox mouse cow duck sheep swan rabbit donkey bee"),
    "did": _words(
        "carried watched repaired painted found sold cleaned moved followed forgot borrowed described counted opened"
        " closed lifted measured noticed admired covered"
    ),
    "time": _phrases(
        "in the morning|after lunch|before sunset|on Monday|late at night|during the rain|at noon|every spring"
        "|last winter|on market day|for a while|without a word|once again|as usual|two days later|in autumn"
    ),
    "mood": _words("slowly gladly quietly carefully quickly often rarely happily calmly again together alone"),
}

FILLER = (
    "The {adj} {person} {did} a {thing} near the {place} {time}.",
    "{time}, the {person} {mood} {did} the {adj} {thing} of a {person}.",
    "A {adj} {animal} was sleeping beside the {thing} while the {person} {did} the {adj} {thing}.",
    "Nobody in the {place} knew why the {person} {did} the {adj} {thing} {time}.",
    "There was a {adj} {place} behind the {adj} {place}, and a {animal} lived there.",
    "The {person} and the {person} talked {mood} about the {adj} {place}.",
    "{time}, people from the {place} {did} the {thing} and went home {mood}.",
    "It rained over the {adj} {place}, so the {person} {did} the {thing} {time}.",
    "Every {animal} near the {place} likes the {adj} {thing} of the {person}.",
    "The road from the {place} to the {place} is {adj} and {adj}.",
    "Some say that the {adj} {animal} {did} the {thing} {time}.",
    "A {thing} fell from the {thing}, and the {person} laughed {mood}.",
    "The {person} bought a {adj} {thing} and a {adj} {thing} at the {place}.",
    "When the {person} {did} the {thing}, the {animal} ran {mood} to the {place}.",
)

# What a needle is about: two words make a subject, so that there are more subjects than training can list.
SUBJECT_FIRST = _words(
    "silver crimson hollow northern hidden velvet amber frozen iron coral silent royal copper violet ivory scarlet"
    " stormy crystal wandering marble southern emerald shadow lonely painted thunder winter summer ancient broken"
)
SUBJECT_SECOND = _words(
    "falcon lantern vault engine comet anchor cellar chapel dragon compass garnet temple archive turbine orchard"
    " beacon canyon fortress glacier harp jungle kettle lagoon mast needle oasis palace quarry raven saddle"
)
VALUE_WORDS = _words(
    "tango pepper onyx mango nickel cobalt bamboo cedar cherry cotton denim ember fennel ginger hazel indigo jasmine"
    " kiwi lemon maple nutmeg olive papaya quartz ruby saffron thyme umber vanilla walnut zinc basil"
)
CITIES = _words(
    "Oslo Lima Cairo Delhi Quito Turin Seoul Perth Accra Bergen Dakar Hanoi Kyoto Lyon Minsk Porto Riga Sofia"
)

# How a needle is written, how it is asked for; {s} is the subject, {v} the value.
NEEDLES = {
    "number": (
        ("The code of the {s} is {v}.", "What is the code of the {s}?"),
        ("Remember that the {s} has the number {v}.", "Which number has the {s}?"),
        ("The weight of the {s} is {v} grams.", "How many grams does the {s} weigh?"),
    ),
    "word": (
        ("The password of the {s} is {v}.", "What is the password of the {s}?"),
        ("The secret word for the {s} is {v}.", "What is the secret word for the {s}?"),
    ),
    "city": (
        ("The {s} was last seen in {v}.", "Where was the {s} last seen?"),
        ("The owner of the {s} lives in {v}.", "Where does the owner of the {s} live?"),
    ),
}
