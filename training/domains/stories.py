"""Open-ended prose that ends by itself: stories with a plot, explanations of one or two topics, news with highlights.

A damaged model starts such a text well and then falls into a loop or never stops; so `score` asks only that the model
ended its turn, wrote something, and did not loop. Stories follow a plot (a thing is found, there is a trouble, a first
try fails, a friend helps, it is solved, an ending), so there is always a way to the end. Shares are in MIX; a test
prompt is a pair (hero and thing, topic and reader, or two topics) that training never puts together. Knob: SCENES.
"""

from __future__ import annotations

import random

from halfbyte.degeneracy.watch import has_loop
from training.articles import article
from training.dice import between, chance, weighted
from training.output import END, END_OF_THINKING, answer_of, ended
from training.sample import Item, Sample, held_out
from training.words import stories_lists as lists
from training.words.stories_topics import TOPICS, Topic

DOMAIN = "stories"
MIX = {"story": 0.5, "explanation": 0.3, "summary": 0.12, "document": 0.08}
TEST_FORMS = ("story", "explanation", "story", "two topics")
SCENES = {"short ": (0, 1), "": (1, 3), "long ": (3, 6)}  # how many sentences of scenery a story of this length has
SHARE_THINKING = 0.15
SHARE_TWO_TOPICS = 0.4
MIN_WORDS = 25


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


# --- stories ----------------------------------------------------------------------------------------------------------


def _pair(rng: random.Random, *, for_test: bool) -> tuple[str, str]:
    while True:
        hero, thing = rng.choice(lists.HEROES), rng.choice(lists.THINGS)
        if held_out(f"{DOMAIN}/{hero}/{thing}") == for_test:
            return hero, thing


def _story_prompt(rng: random.Random, hero: str, thing: str, length: str) -> str:
    about = f"{_with_article(hero)} and {_with_article(thing)}"
    return rng.choice(
        (
            f"Write a {length}story about {about}.",
            f"Tell me a {length}story about {about}.",
            f"I want a {length}story about {about}.",
            f"Make up a {length}tale with {about}.",
        )
    )


def _story(rng: random.Random, hero: str, thing: str, length: str) -> tuple[str, str]:
    """Return a plan in a few words, and the story."""
    name, friend = rng.sample(lists.NAMES, 2)
    helper, place = rng.choice(lists.HEROES), rng.choice(lists.PLACES)
    trouble = rng.choice(tuple(lists.TROUBLES))
    low, high = SCENES[length]
    scenes = rng.sample(lists.SCENES, between(rng, low, high))
    tries = rng.sample(lists.FIRST_TRIES[trouble], 2 if length == "long " else 1)
    feeling = rng.choice(lists.FEELINGS)
    opening = rng.choice(
        (
            f"Once there was a {feeling} {hero} called {name} who lived {place}",
            f"{name} was a {feeling} {hero} and lived {place}",
            f"There lived a {feeling} {hero} {place}, and the name of this {hero} was {name}",
        )
    )
    paragraphs = [
        [opening, *(f"{name} {habit}" for habit in rng.sample(lists.HABITS, 1 if length == "short " else 2))],
        [rng.choice(lists.WEATHER) + " that day", rng.choice(lists.FOUND)],
        [rng.choice(lists.TROUBLES[trouble]), *tries],
        [rng.choice(lists.FRIENDS_COME), rng.choice(lists.ADVICE), *scenes],
        [rng.choice(lists.SOLUTIONS[trouble]), *rng.sample(lists.ENDINGS, 1 if length == "short " else 2)],
    ]
    fill = {"N": name, "h": hero, "t": thing, "f": friend, "g": helper, "p": place, "e": feeling}
    text = "\n\n".join(" ".join(f"{sentence.format(**fill)}." for sentence in part) for part in paragraphs)
    plan = f"{name} the {hero} {place}. The {thing} is {trouble}. {friend} the {helper} helps. It ends well."
    return plan.replace("is wanted", "is wanted by others").replace("is afraid", "causes fear"), text


# --- explanations -----------------------------------------------------------------------------------------------------


def _explained(rng: random.Random, topic: Topic) -> str:
    """Return a paragraph or two about one topic: what it is first, something curious last."""
    they, them, have = ("they", "them", "have") if topic.plural else ("it", "it", "has")
    name, capital, be = topic.name, topic.name[0].upper() + topic.name[1:], "are" if topic.plural else "is"
    need, they_ = "need" if topic.plural else "needs", they.capitalize()
    first = f"{capital} {be} {topic.kind}."
    middle = [
        rng.choice((f"You can find {them} {topic.where}.", f"{they_} can be seen {topic.where}.")),
        rng.choice((f"{they_} {have} {topic.parts}.", f"If you look closely, you see {topic.parts}.")),
        rng.choice((f"Most of all, {they} {topic.work}.", f"{they_} {topic.work}.")),
        rng.choice((f"For this {they} {need} {topic.needs}.", f"To do well, {they} {need} {topic.needs}.")),
    ]
    rng.shuffle(middle)
    kept = middle[: between(rng, 3, 4)]
    last = rng.choice(
        (f"It is curious that {topic.curious}.", f"Did you know? {topic.curious[0].upper()}{topic.curious[1:]}.")
    )
    if " it " in f" {topic.curious} " and last.startswith("It"):
        last = f"One more thing: {topic.curious}."
    end = rng.choice((f"That is why many people like {name}.", f"So there is always more to learn about {name}.", ""))
    return " ".join(part for part in [first, *kept, last, end] if part)


def _explanation(rng: random.Random, *, for_test: bool, two: bool) -> tuple[str, str]:
    """Return a question about one or two topics, and an answer to it."""
    while True:
        topic, other = rng.sample(TOPICS, 2)
        reader = rng.choice(lists.TOPIC_USERS)
        if two and held_out(f"{DOMAIN}/{topic.name}/{other.name}") == for_test:
            asked = rng.choice(("Tell me about {} and {}.", "Write a few words about {} and {}."))
            question = asked.format(topic.name, other.name)
            joined = f"{_explained(rng, topic)}\n\n{_explained(rng, other)}"
            return question, joined
        if not two and held_out(f"{DOMAIN}/{topic.name}/{reader}") == for_test:
            asked = rng.choice(("Explain {} to {}.", "Describe {} for {}."))
            return asked.format(topic.name, reader), _explained(rng, topic)


# --- samples and items ------------------------------------------------------------------------------------------------


def _chat(question: str, answer: str, plan: str = "") -> Sample:
    turn = {"role": "assistant", "content": answer}
    if plan:
        turn["reasoning_content"] = plan
    return Sample(DOMAIN, messages=({"role": "user", "content": question}, turn), thinking=bool(plan))


SUMMARIZE = ("Summarize this article:", "Write the highlights of this article:", "What are the main points here?")


def train_sample(rng: random.Random) -> Sample:
    """Return a story, an explanation, an article with its highlights, or bare prose."""
    form = weighted(rng, MIX)
    if form == "explanation":
        return _chat(*_explanation(rng, for_test=False, two=chance(rng, SHARE_TWO_TOPICS)))
    if form == "summary":
        text, highlights = article(rng)
        return _chat(f"{rng.choice(SUMMARIZE)}\n\n{text}", highlights)
    hero, thing = _pair(rng, for_test=False)
    length = rng.choice(tuple(SCENES))
    plan, text = _story(rng, hero, thing, length)
    if form == "document":
        return Sample(DOMAIN, text=text if chance(rng, 0.5) else article(rng)[0])
    return _chat(_story_prompt(rng, hero, thing, length), text, plan if chance(rng, SHARE_THINKING) else "")


def test_items(count: int, seed: int) -> list[Item]:
    """Return prompts whose pair of subjects is new; there is no right answer."""
    rng = random.Random(seed)
    items: dict[str, Item] = {}
    while len(items) < count:
        form = TEST_FORMS[len(items) % len(TEST_FORMS)]
        thinking = False
        if form == "story":
            hero, thing = _pair(rng, for_test=True)
            prompt = _story_prompt(rng, hero, thing, rng.choice(tuple(SCENES)))
            thinking = chance(rng, SHARE_THINKING)
        else:
            prompt, _ = _explanation(rng, for_test=True, two=form == "two topics")
        name = f"{DOMAIN}-{len(items):04d}"
        messages = ({"role": "user", "content": prompt},)
        fields = {"form": form, "boilerplate": []}
        items.setdefault(prompt, Item(DOMAIN, name, messages=messages, thinking=thinking, fields=fields))
    return list(items.values())


def score(item: Item, output: str) -> bool:
    """Whether the model ended its turn by itself, wrote a few sentences of different words, and did not loop."""
    parts = output.partition(END)[0].split(END_OF_THINKING)  # thinking can loop too
    words = answer_of(output).lower().split()
    says_something = len(words) >= MIN_WORDS and len(set(words)) >= MIN_WORDS // 2
    return ended(output) and says_something and not any(has_loop(part) for part in parts)
