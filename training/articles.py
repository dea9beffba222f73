"""Short news articles about made-up towns, with highlights: prose to calibrate with, and to summarize.

Every article has its facts (town, what, how much, who, when) in the highlights too, so a summary can be checked.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from training.dice import between, chance
from training.words.copying_names import FIRST_NAMES, LAST_NAMES

_words = str.split

TOWN_STARTS = _words(
    "Alten Brook Clear Dunn Elm Far Grim Hollow Iron King Long Mill Nord Oak Pine Red Stone Thorn West Wind"
)
TOWN_ENDS = _words("burg field ford gate ham haven hill land mouth port stead ton vale ville well wick wood worth")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")
JOBS = (
    "mayor|head of the council|director of the project|chief engineer|spokeswoman of the town|teacher|shop owner"
    "|local historian|fire chief|doctor at the town clinic"
)


class Event(NamedTuple):
    """A kind of news: what happened, why it matters, and what comes next."""

    happened: str
    why: str
    detail: str
    next: str


EVENTS = (
    Event("opened a new {thing}", "the old one was too small", "The work took {n} months", "guided tours every week"),
    Event("closed its old {thing}", "repairs cost too much", "It had been in use for {n} years", "a public debate"),
    Event(
        "voted for a new {thing}", "more families are moving in", "The vote ended {n} to {m}", "a contest for a plan"
    ),
    Event("repaired its {thing}", "a storm had damaged it", "About {n} workers took part", "a festival in the square"),
    Event("won a prize for its {thing}", "it saves energy", "The jury compared {n} towns", "visits from other regions"),
    Event("sold its {thing}", "the budget had a large gap", "There were {n} offers", "new rules for the owner"),
    Event("lost its {thing} in a fire", "a cable had become hot", "About {n} people had to leave", "a police inquiry"),
    Event("will share its {thing}", "two towns want to save money", "Talks lasted {n} weeks", "a joint office"),
)
THINGS = (
    "library|bridge|swimming pool|train station|school|museum|market hall|hospital|theater|harbor|water tower|park"
    "|bus line|sports hall"
)
QUOTES = (
    "This is a good day for all of us|We have waited for this for a long time|Nobody expected that it would go so fast"
    "|There is still much to do|I hope that the children will profit most|We made mistakes, and we learned from them"
    "|It was not an easy decision|People can be proud of what they have done|The numbers speak for themselves"
)
REACTIONS = (
    "Neighbors reacted with joy|Some shop owners are worried|Many people came to look"
    "|A group of parents had asked for it"
    "|Not everyone agrees|Visitors took pictures|The local paper received many letters"
    "|Older people remember other times"
)
BACKGROUND = (
    "The town lies on a small river and is known for its apples|The region has grown since the new road was built"
    "|Ten years ago the place was almost empty|The town was founded by millers"
    "|Most people there work in small factories"
    "|The area is popular with hikers in summer|Its clock tower can be seen from far away"
)


def _one(rng: random.Random, phrases: str) -> str:
    return rng.choice(phrases.split("|"))


def article(rng: random.Random) -> tuple[str, str]:
    """Return an article of three or four paragraphs, and its highlights, one sentence a line."""
    town, event, thing = rng.choice(TOWN_STARTS) + rng.choice(TOWN_ENDS), rng.choice(EVENTS), _one(rng, THINGS)
    who, job = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}", _one(rng, JOBS)
    day, month = rng.choice(DAYS), rng.choice(MONTHS)
    happened = event.happened.format(thing=thing)
    detail = event.detail.format(n=between(rng, 11, 60), m=between(rng, 2, 10))
    cost = f"{between(rng, 2, 99) * 10},000"
    quote, second = rng.sample(QUOTES.split("|"), 2)
    lead = f"{town} {happened} on {day}. {_one(rng, REACTIONS)}, and the reason is simple: {event.why}. {detail}."
    facts = (
        f'"{quote}," said {who}, {job}. The whole plan costs {cost} dollars, and the town pays it until {month}.'
        f" {_one(rng, BACKGROUND)}."
    )
    after = f'The next step is {event.next}, as {who.split()[1]} explained. "{second}."'
    paragraphs = [lead, facts, after]
    if chance(rng, 0.5):
        hours = between(rng, 7, 11)
        paragraphs.insert(2, f"The {thing} can be reached from {hours} in the morning. {_one(rng, REACTIONS)}.")
    highlights = f"{town} {happened} on {day}.\nThe plan costs {cost} dollars.\n{who}, {job}, announced {event.next}."
    return "\n\n".join(paragraphs), highlights
