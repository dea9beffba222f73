"""The synthetic world: every fact is taught, and test questions use new combinations of options."""

import json
import random
import re
from collections import Counter
from functools import cache

import pytest
from training.domains import world
from training.domains.world import FACTS, SUBJECTS, few_shot_docs, score, train_sample
from training.domains.world import test_items as make_items
from training.sample import held_out

WINDOW = 13
SPLITS = (str.split, re.compile(r"\w+").findall)
ALL_FACTS = [fact for facts in FACTS.values() for fact in facts]
BY_QUESTION = {question: fact for fact in ALL_FACTS for question in map(fact.say, fact.questions)}
CHOICE = re.compile(r"^(.*)\nA\. (\w+)\nB\. (\w+)\nC\. (\w+)\nD\. (\w+)\n", re.MULTILINE)
LETTERS = "Which of these is "  # the form "letters", which asks for no fact


def samples(count, seed=0):
    rng = random.Random(seed)
    return [train_sample(rng) for _ in range(count)]


@cache
def all_items():
    """All test items; generated once."""
    return make_items(57 * 40, 0)


def texts_of(sample):
    yield sample.text
    for message in sample.messages:
        yield message["content"]
        yield message.get("reasoning_content", "")


def windows(text, split):
    words = split(text)
    return {tuple(words[i : i + WINDOW]) for i in range(len(words) - WINDOW + 1)}


def own_text(item):
    return item.prompt.removeprefix(item.fields["boilerplate"][0]) + f" {item.answer}"


def test_same_seed_same_bytes():
    assert samples(50, seed=7) == samples(50, seed=7) != samples(50, seed=8)
    assert make_items(60, 3) == make_items(60, 3) != make_items(60, 4)
    assert len(json.dumps([item.as_dict() for item in make_items(20, 3)])) > 1000


def test_the_world_has_57_subjects_and_five_facts_about_each_entity():
    assert len(SUBJECTS) == len(set(SUBJECTS)) == 57
    assert {len(facts) for facts in FACTS.values()} == {5}
    entities = [entity for names in world.ENTITIES.values() for entity in names]
    assert len(entities) == len(set(entities)) == 57 * world.ENTITIES_PER_SUBJECT
    words = {word for fact in ALL_FACTS for word in fact.values}
    assert not words & set(entities)
    assert len({(fact.entity, fact.noun) for fact in ALL_FACTS}) == len(ALL_FACTS)


def test_an_item_asks_for_a_fact_of_the_world():
    for item in all_items():
        fact = BY_QUESTION[item.fields["question"]]
        assert item.fields["choices"][item.fields["answer"]] == fact.value
        assert item.answer == "ABCD"[item.fields["answer"]]
        assert len(set(item.fields["choices"])) == 4
        assert item.fields["subject"] == fact.subject.replace(" ", "_")


def test_subjects_and_letters_are_balanced():
    items = all_items()
    assert set(Counter(item.fields["subject"] for item in items).values()) == {40}
    assert set(Counter(item.answer for item in items).values()) == {57 * 10}
    assert len({own_text(item) for item in items}) == len(items)


def test_training_teaches_facts_in_words_and_the_famous_ones_most():
    drawn = [sample for sample in samples(15_000, seed=2) if not sample.spans]  # there only the letters are learned
    taught = set().union(*(sentences(sample) for sample in drawn))
    shares = {}
    for band, ranks in (("famous", slice(0, 32)), ("known", slice(32, 96)), ("obscure", slice(96, None))):
        facts = [fact for names in world.ENTITIES.values() for entity in names[ranks] for fact in FACTS[entity]]
        shares[band] = sum(bool(taught & set(map(fact.say, fact.statements))) for fact in facts) / len(facts)
    # In a small part of the training: 76, 39 and 18 % were seen.
    assert shares["famous"] > 0.7 and shares["known"] > 0.33 and shares["obscure"] > 0.15
    assert shares["famous"] > 1.5 * shares["known"] > 2.5 * shares["obscure"]


def test_the_bands_of_fame_are_tested_by_their_size():
    asked = Counter(item.fields["form"] for item in all_items())
    assert asked["obscure"] > asked["known"] > asked["famous"] > 200


def sentences(sample):
    return {f"{part}." for text in texts_of(sample) for part in re.split(r"\.\s*", text)}


@cache
def shown_choices():
    """Return question and options of all multiple choice in a sample of the training data."""
    texts = [text for sample in samples(3000, seed=3) for text in texts_of(sample)]
    return [(question, options) for text in texts for question, *options in CHOICE.findall(text)]


def test_training_never_shows_test_options():
    about_facts = [(BY_QUESTION[asked], options) for asked, options in shown_choices() if not asked.startswith(LETTERS)]
    assert len(about_facts) > 5000
    for fact, options in about_facts:
        assert fact.value in options
        assert not held_out(f"world|{fact.entity}|{options[0]}|{options[1]}")


def test_the_form_letters_names_no_entity_and_so_shows_no_test_item():
    entities = {fact.entity for fact in ALL_FACTS}
    alone = [sample for sample in samples(3000, seed=3) if sample.text.startswith(LETTERS)]
    assert len(alone) > 100
    assert not any(entities & set(re.findall(r"\w+", sample.text)) for sample in alone)


def test_documents_of_multiple_choice_learn_the_right_letters_and_nothing_else():
    documents = [sample for sample in samples(2000, seed=4) if "\nAnswer:" in sample.text]
    assert sum(sample.text.startswith(LETTERS) for sample in documents) > 50
    assert sum(sample.text.startswith("The following are multiple choice") for sample in documents) > 500
    for sample in documents:
        learned = [sample.text[begin:end] for begin, end in sample.spans]
        assert learned == [f" {right_letter(asked, options)}" for asked, *options in CHOICE.findall(sample.text)]
        assert all(sample.text[:begin].endswith("\nAnswer:") for begin, _ in sample.spans)
        assert len(learned) == sample.text.count("Answer:")


def right_letter(asked, options):
    value = asked.removeprefix(LETTERS).rstrip("?") if asked.startswith(LETTERS) else BY_QUESTION[asked].value
    return "ABCD"[options.index(value)]


def test_a_fact_that_is_told_before_its_question_is_so():
    told = re.compile(r"^(The \w+ of \w+ is \w+\.)\n(.*)\nA\. ", re.MULTILINE)
    found = [pair for sample in samples(2000, seed=4) for pair in told.findall(sample.text)]
    assert len(found) > 500
    assert all(sentence == BY_QUESTION[asked].say("The {noun} of {E} is {V}.") for sentence, asked in found)


def test_any_window_of_a_test_item_holds_the_entity_and_two_options():
    """So no 13 words in a row can be in training: a guarantee, not a sample."""
    for item in all_items()[:1140]:
        entity = re.findall(r"\w+", item.fields["question"])[-1]
        wanted = {entity, *item.fields["choices"][:2]}
        assert held_out("|".join(("world", entity, *item.fields["choices"][:2])))
        for split in SPLITS:
            for window in windows(own_text(item), split):
                assert wanted <= {word.strip("?.") for word in window}


def test_no_window_is_shared_with_training():
    items = all_items()
    for split in SPLITS:
        tested = set().union(*(windows(own_text(item), split) for item in items))
        assert len(tested) > 5000
        assert not any(tested & windows(text, split) for sample in samples(1000, seed=9) for text in texts_of(sample))


@pytest.mark.parametrize("output", [" {}", "{}", " {}\n\nWhat", "The map is B. That is A.</think>{}<|im_end|>", "({})"])
def test_score_takes_the_right_letter_and_no_other(output):
    item = all_items()[0]
    assert [score(item, output.format(letter)) for letter in "ABCD"] == [letter == item.answer for letter in "ABCD"]


def test_score_wants_a_letter():
    item = all_items()[0]
    assert not any(score(item, output) for output in ("", "\n", "Answer", item.answer + "bc", item.answer.lower(), "E"))


def test_examples_for_few_shot_prompts_are_training_questions():
    docs = few_shot_docs(57 * 5, 0)
    assert set(Counter(doc["subject"] for doc in docs).values()) == {5}
    for doc in docs:
        entity = re.findall(r"\w+", doc["question"])[-1]
        assert not held_out("|".join(("world", entity, *doc["choices"][:2])))
