"""Hard negatives: letters, forms and templates, which have a paragraph or a page three to five times over."""

import random
from collections.abc import Callable

from benchmarks.degeneracy.sources import phrase, prose, sentences, vocabulary

NAMES = ("Anna", "Ben", "Carla", "David", "Eva", "Farid", "Grace", "Hugo")
COPIES = (2, 5)


def _letters(rng: random.Random, part: str) -> str:
    """The same letter to a few people."""
    body = prose(rng, part, rng.randint(150, 900))
    names = rng.sample(NAMES, rng.randint(*COPIES))
    return "\n\n".join(f"Dear {name},\n\n{body}\n\nYours, {rng.choice(vocabulary(part))}" for name in names)


def _same_letters(rng: random.Random, part: str) -> str:
    """Only the name differs."""
    body = prose(rng, part, rng.randint(60, 400))
    return "\n\n".join(f"Hello {name}, {body}" for name in rng.sample(NAMES, rng.randint(*COPIES)))


def _forms(rng: random.Random, part: str) -> str:
    """A form to be cut out, the same each time."""
    rows = [f"{phrase(rng, part, 1, 2).capitalize()}: {'_' * rng.randint(8, 30)}" for _ in range(rng.randint(3, 8))]
    form = "\n".join([phrase(rng, part, 2, 4).upper(), *rows, rng.choice(sentences(part))])
    return prose(rng, part, 200) + "\n\n" + "\n\n".join([form] * rng.randint(*COPIES))


def _vouchers(rng: random.Random, part: str) -> str:
    """Words only, the same each time, and nothing after them."""
    text = prose(rng, part, rng.randint(120, 700))
    return "Print this page:\n\n" + "\n\n".join([text] * rng.randint(2, 4))


def _templates(rng: random.Random, part: str) -> str:
    """One description for several things: each has its own name and one sentence of its own."""
    before, after = prose(rng, part, rng.randint(100, 400)), prose(rng, part, rng.randint(60, 300))
    return "\n\n".join(
        f"{phrase(rng, part, 1, 2).title()}\n{before} {rng.choice(sentences(part))} {after}"
        for _ in range(rng.randint(3, 6))
    )


def _schedule(rng: random.Random, part: str) -> str:
    """The same day for every day of a week."""
    day = "\n".join(f"{hour}:00 {phrase(rng, part, 2, 5)}" for hour in range(8, 8 + rng.randint(3, 9)))
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
    return "\n\n".join(f"{name}\n{day}" for name in days[: rng.randint(3, 5)])


FAMILIES: dict[str, tuple[str, Callable[[random.Random, str], str]]] = {
    "letters": ("prose", _letters),
    "same letters": ("prose", _same_letters),
    "forms": ("any", _forms),
    "vouchers": ("prose", _vouchers),
    "templates": ("prose", _templates),
    "schedules": ("any", _schedule),
}
