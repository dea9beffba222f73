"""The things that tools can do: what their functions may be called, what they take, how people ask, what comes back.

A function's name is one of its verbs with one of its nouns, and a parameter has one of its keys: some combinations are
kept for the tests. `{a}`, `{b}`, `{c}` are the values of the first, second and third parameter. A request has at most
twelve words. A result is made of the fields named in `result`, `{r}` and `{s}` in the sentence that reports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_LINES = (Path(__file__).parent / "tools_words.txt").read_text().splitlines()[1:]
WORDS = {kind: words.split() for kind, _, words in (line.partition(": ") for line in _LINES)}
INTEGERS = {
    "minutes": (2, 90),
    "amount": (5, 900),
    "people": (2, 12),
    "id": (100, 9999),
    "degrees": (15, 28),
    "count": (2, 40),
}
ENUMS = {"unit": ("celsius", "fahrenheit"), "seat": ("window", "aisle")}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its possible keys, its kind of value, and what its declaration says."""

    keys: tuple[str, ...]
    kind: str  # a list in WORDS, a range in INTEGERS, an entry of ENUMS, or "switch" (a boolean)
    description: str


@dataclass(frozen=True, slots=True)
class Intent:
    """One thing a user can want, and the function that does it."""

    verbs: tuple[str, ...]
    nouns: tuple[str, ...]
    description: str
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]
    incomplete: str  # a request that does not give the first parameter
    result: tuple[tuple[str, str], ...]  # keys and kinds
    report: str

    @property
    def names(self) -> tuple[str, ...]:
        """All names that the function can have."""
        return tuple(f"{verb}_{noun}" for verb in self.verbs for noun in self.nouns)


def _parameter(text: str) -> Parameter:
    keys, kind, description = text.split(": ")
    return Parameter(tuple(keys.split()), kind, description)


def _intent(names: str, description: str, parameters: tuple[str, ...], requests: tuple[str, ...], *rest: str) -> Intent:
    verbs, nouns = (tuple(words.split()) for words in names.split(" / "))
    incomplete, result, report = rest
    fields = tuple((key, kind) for key, _, kind in (field.partition(":") for field in result.split()))
    return Intent(verbs, nouns, description, tuple(map(_parameter, parameters)), requests, incomplete, fields, report)


INTENTS: tuple[Intent, ...] = (
    _intent(
        "get fetch show read check / weather forecast climate",
        "Weather in a city on a day.",
        ("city town place: city: Name of the city.", "day date weekday: day: Day of the week."),
        ("What is the weather in {a} on {b}?", "Will it rain in {a} on {b}?", "Show me the weather for {a} on {b}."),
        "What is the weather like?",
        "temperature:degrees",
        "It will be {r} degrees in {a} on {b}.",
    ),
    _intent(
        "set start begin run / timer countdown stopwatch",
        "Start a timer.",
        ("minutes duration length: minutes: Length in minutes.",),
        ("Set a timer for {a} minutes.", "Start a timer of {a} minutes.", "Wake me in {a} minutes."),
        "Set a timer.",
        "timer:id",
        "The timer for {a} minutes is running.",
    ),
    _intent(
        "add create set make save / reminder note memo",
        "Remember a task for a day.",
        ("task text topic: task: What to remember.", "day date weekday: day: Day of the week."),
        ("Remind me of the {a} on {b}.", "Please remember the {a} for {b}.", "Do not let me forget the {a} on {b}."),
        "Remind me of something.",
        "reminder:id",
        "I will remind you of the {a} on {b}.",
    ),
    _intent(
        "convert change exchange compute / currency money cash",
        "Convert money between currencies.",
        (
            "amount sum value: amount: How much money.",
            "source from_currency origin: currency: Currency to convert from.",
            "target to_currency goal: currency: Currency to convert to.",
        ),
        ("How much is {a} {b} in {c}?", "Convert {a} {b} to {c}.", "Change {a} {b} into {c}."),
        "Convert some money.",
        "result:amount",
        "{a} {b} are {r} {c}.",
    ),
    _intent(
        "translate render say interpret / word text phrase",
        "Translate a word.",
        ("word text phrase: word: Word to translate.", "language target tongue: language: Language to translate into."),
        ("Translate {a} into {b}.", "How do you say {a} in {b}?", "What is {a} in {b}?"),
        "Translate a word for me.",
        "translation:word",
        "In {b} it is {r}.",
    ),
    _intent(
        "send write mail deliver / message email letter",
        "Send a message to a person.",
        ("recipient person receiver: person: Who gets it.", "topic subject about: task: What it is about."),
        ("Send {a} a message about the {b}.", "Write to {a} about the {b}.", "Tell {a} about the {b}."),
        "Send a message.",
        "message:id",
        "The message about the {b} was sent to {a}.",
    ),
    _intent(
        "call phone ring dial / person contact friend",
        "Call a person on the phone.",
        ("person contact name: person: Who to call.",),
        ("Call {a}.", "Please phone {a}.", "I want to talk to {a} on the phone."),
        "Make a phone call.",
        "minutes:minutes",
        "The call with {a} took {r} minutes.",
    ),
    _intent(
        "get track find check / order parcel delivery",
        "Status of an order.",
        ("order order_id number: id: Number of the order.",),
        ("Where is my order {a}?", "Track order {a}.", "When will order {a} arrive?"),
        "Where is my order?",
        "place:city",
        "Order {a} is in {r}.",
    ),
    _intent(
        "get find look_up check / price cost offer",
        "Price of a product.",
        ("product item article: item: Name of the product.",),
        ("What does a {a} cost?", "How much is a {a}?", "Tell me the price of a {a}."),
        "What is the price?",
        "price:amount",
        "A {a} costs {r} euros.",
    ),
    _intent(
        "add put place store / cart basket purchase",
        "Put products into the cart.",
        ("product item article: item: Name of the product.", "quantity count pieces: count: How many pieces."),
        (
            "Add {b} pieces of {a} to my cart.",
            "I want to buy the {a} {b} times.",
            "Put the {a} {b} times into my cart.",
        ),
        "Put something into my cart.",
        "total:amount",
        "The cart now costs {r} euros.",
    ),
    _intent(
        "book reserve order request / table restaurant dinner",
        "Reserve a table in a restaurant.",
        (
            "city town place: city: Where to eat.",
            "people guests persons: people: How many guests.",
            "day date weekday: day: Day of the week.",
        ),
        ("Book a table in {a} for {b} people on {c}.", "Reserve dinner in {a} for {b} people on {c}."),
        "Book a table.",
        "table:count",
        "Table {r} in {a} is booked for {c}.",
    ),
    _intent(
        "find search list look_up / flight flights plane",
        "Find flights between cities.",
        ("origin source departure: city: City to leave from.", "destination target arrival: city: City to fly to."),
        ("Find a flight from {a} to {b}.", "I want to fly from {a} to {b}.", "Are there flights from {a} to {b}?"),
        "Find me a flight.",
        "flight:id price:amount",
        "Flight {r} from {a} to {b} costs {s} euros.",
    ),
    _intent(
        "find search list look_up / train trains railway",
        "Find trains between cities.",
        ("origin source departure: city: City to leave from.", "destination target arrival: city: City to go to."),
        ("Find a train from {a} to {b}.", "I need a train from {a} to {b}.", "Which train goes from {a} to {b}?"),
        "Find me a train.",
        "train:id minutes:minutes",
        "Train {r} from {a} to {b} takes {s} minutes.",
    ),
    _intent(
        "switch set turn control / light lamp lights",
        "Switch the light in a room.",
        ("room place location: room: Name of the room.", "on state active: switch: True for on, false for off."),
        ("Turn the light in the {a} {b}.", "Switch the {a} light {b}.", "Light {b} in the {a}, please."),
        "Do something with the light.",
        "watts:degrees",
        "The light in the {a} is {b}.",
    ),
    _intent(
        "set change adjust control / heating thermostat radiator",
        "Set the temperature of a room.",
        ("room place location: room: Name of the room.", "degrees temperature value: degrees: Degrees to heat to."),
        ("Heat the {a} to {b} degrees.", "Set the {a} to {b} degrees.", "Make the {a} {b} degrees warm."),
        "Change the heating.",
        "now:degrees",
        "The {a} has {r} degrees and gets {b}.",
    ),
    _intent(
        "get compute measure find / distance route way",
        "Distance between two cities.",
        ("start origin source: city: First city.", "end goal target: city: Second city."),
        ("How far is it from {a} to {b}?", "What is the distance between {a} and {b}?"),
        "How far is it?",
        "kilometres:id",
        "From {a} to {b} it is {r} kilometres.",
    ),
    _intent(
        "get find look_up define / definition meaning explanation",
        "Meaning of a word.",
        ("word term entry: word: Word to explain.",),
        ("What does the word {a} mean?", "Define the word {a}.", "Explain the word {a}."),
        "Explain a word.",
        "similar:word",
        "The word {a} is similar to {r}.",
    ),
    _intent(
        "play start stream open / song music track",
        "Play a song.",
        ("title song name: title: Title of the song.",),
        ("Play the song {a}.", "I want to hear {a}.", "Put on the song {a}, please."),
        "Play some music.",
        "minutes:minutes",
        "Now playing {a}, which takes {r} minutes.",
    ),
    _intent(
        "find search get suggest / recipe recipes dish",
        "Find a recipe.",
        ("dish food meal: food: What to cook.", "people guests persons: people: How many eat."),
        ("Find a recipe for {a} for {b} people.", "How do I cook {a} for {b} people?"),
        "Find a recipe.",
        "recipe:id",
        "Recipe {r} makes {a} for {b} people.",
    ),
    _intent(
        "get read show check / temperature sensor thermometer",
        "Temperature now in a city.",
        ("city town place: city: Name of the city.", "unit scale system: unit: Unit of the answer."),
        ("How warm is it in {a} in {b}?", "Tell me the temperature in {a} in {b}."),
        "How warm is it?",
        "temperature:degrees",
        "In {a} it is {r} degrees {b}.",
    ),
    _intent(
        "find get look_up search / user account profile",
        "Look up a user by number.",
        ("user user_id number: id: Number of the user.",),
        ("Who is user {a}?", "Show me the account of user {a}.", "Find the user with number {a}."),
        "Look up a user.",
        "name:person",
        "User {a} is {r}.",
    ),
    _intent(
        "book reserve choose pick / seat place ticket",
        "Reserve a seat on a train.",
        ("train train_id number: id: Number of the train.", "seat kind position: seat: Kind of seat."),
        ("Reserve a {b} seat on train {a}.", "Book me a {b} seat on train {a}."),
        "Reserve a seat.",
        "seat:count",
        "Seat {r} on train {a} is yours.",
    ),
)
