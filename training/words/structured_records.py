"""The kinds of records that `structured` writes about: which fields they have, and how a text mentions each.

Every sentence begins with `{who}`, the pair of names that is kept apart for the tests, and has at most ten more words:
so any 13 words in a row of a text hold that pair. A field has one or more keys that a schema may use for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LARGEST_INTEGER = 999
LARGEST_SMALL_INTEGER = 99
_LINES = (Path(__file__).parent / "structured_words.txt").read_text().splitlines()[1:]
WORDS = {kind: words.split() for kind, _, words in (line.partition(": ") for line in _LINES)}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its possible keys, its kind of value, and the sentences that state it (for booleans: yes and no)."""

    keys: tuple[str, ...]
    kind: str  # a list in WORDS, "list of" one, "integer", "small integer", "number" or "boolean"
    sentences: tuple[str, ...]

    @property
    def is_enumerated(self) -> bool:
        """Whether a schema lists the allowed words."""
        return self.kind in {"size", "level", "status"}


@dataclass(frozen=True, slots=True)
class Record:
    """A kind of record: what its main key may be called, and its fields."""

    name: str
    who: tuple[str, ...]
    fields: tuple[Field, ...]


def _field(keys: str, kind: str, *sentences: str) -> Field:
    return Field(tuple(keys.split()), kind, sentences)


RECORDS: tuple[Record, ...] = (
    Record(
        "person",
        ("name", "person"),
        (
            _field("age years", "small integer", "{who} is {v} years old."),
            _field("city town", "city", "{who} lives in {v}.", "{who} has a flat in {v}."),
            _field("job work", "job", "{who} works as a {v}.", "{who} is a {v}."),
            _field("married", "boolean", "{who} is married.", "{who} is not married."),
            _field("hobbies", "list of hobby", "{who} likes {v}."),
        ),
    ),
    Record(
        "order",
        ("customer", "buyer"),
        (
            _field("item product", "thing", "{who} orders a {v}.", "{who} wants to buy a {v}."),
            _field("price cost", "integer", "{who} pays {v} euros."),
            _field("colour", "colour", "{who} chooses the colour {v}."),
            _field("express", "boolean", "{who} asks for express delivery.", "{who} does not need express delivery."),
            _field("city destination", "city", "{who} wants it sent to {v}."),
            _field("size", "size", "{who} takes the {v} size."),
        ),
    ),
    Record(
        "booking",
        ("guest", "name"),
        (
            _field("city hotel_city", "city", "{who} books a hotel in {v}."),
            _field("nights", "small integer", "{who} stays for {v} nights."),
            _field("arrival day", "day", "{who} arrives on {v}."),
            _field("breakfast", "boolean", "{who} takes breakfast.", "{who} takes no breakfast."),
            _field("room", "integer", "{who} gets room {v}."),
        ),
    ),
    Record(
        "pet",
        ("owner", "name"),
        (
            _field("animal pet", "animal", "{who} has a {v}.", "{who} owns a {v}."),
            _field("colour", "colour", "{who} says its colour is {v}."),
            _field("weight", "number", "{who} says it weighs {v} kilos."),
            _field("vaccinated", "boolean", "{who} had it vaccinated.", "{who} did not have it vaccinated."),
            _field("food foods", "list of food", "{who} feeds it {v}."),
        ),
    ),
    Record(
        "ticket",
        ("reporter", "user"),
        (
            _field("device", "thing", "{who} reports a broken {v}."),
            _field("priority", "level", "{who} gives it {v} priority."),
            _field("status", "status", "{who} sees that the ticket is {v}."),
            _field("ticket id", "integer", "{who} has ticket number {v}."),
            _field("urgent", "boolean", "{who} says it is urgent.", "{who} says it is not urgent."),
        ),
    ),
    Record(
        "trip",
        ("traveller", "passenger"),
        (
            _field("origin start", "city", "{who} leaves from {v}.", "{who} starts in {v}."),
            _field("destination goal", "city", "{who} travels to {v}.", "{who} wants to go to {v}."),
            _field("day date", "day", "{who} leaves on {v}.", "{who} travels on {v}."),
            _field("seat", "integer", "{who} has seat {v}."),
            _field("bags", "list of thing", "{who} brings {v}."),
        ),
    ),
    Record(
        "student",
        ("student", "name"),
        (
            _field("languages", "list of language", "{who} speaks {v}."),
            _field("grade score", "number", "{who} has an average of {v}."),
            _field("city school_city", "city", "{who} studies in {v}."),
            _field("birth_month month", "month", "{who} was born in {v}."),
            _field("graduated", "boolean", "{who} has finished school.", "{who} has not finished school."),
        ),
    ),
    Record(
        "event",
        ("host", "organiser"),
        (
            _field("day", "day", "{who} gives a party on {v}."),
            _field("guests", "small integer", "{who} invites {v} guests."),
            _field("menu food", "list of food", "{who} serves {v}."),
            _field("city place", "city", "{who} holds it in {v}."),
            _field("public", "boolean", "{who} lets everyone come.", "{who} lets only friends come."),
        ),
    ),
)
