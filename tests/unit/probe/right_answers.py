"""A healthy model's answers to the questions of the profile `kimi`, taken from the profile where possible."""

import json

from fake_openai import Say

from halfbyte.probe.profiles import load_profile

PROGRAMS = {
    "fibonacci": """
def fibonacci(n):
    a, b, out = 0, 1, []
    for _ in range(n):
        out.append(a)
        a, b = b, a + b
    return out
""",
    "word_counts": """
def word_counts(text):
    return {w: text.split().count(w) for w in text.split()}
""",
    "is_palindrome": '''
def is_palindrome(text):
    """Same backwards."""
    return text == text[::-1]
''',
    "Stack": '''
class Stack:
    """A stack."""

    def push(self, x):
        pass
''',
    "InventoryStore": '''
class InventoryStore:
    """Keeps items."""

    def add(self, name: str) -> None:
        pass
''',
    "matrix_product": """
def matrix_product(a, b):
    return [[sum(x * y for x, y in zip(r, c)) for c in zip(*b)] for r in a]
""",
    "two_sum": """
def two_sum(numbers, target):
    for i, a in enumerate(numbers):
        for j in range(i + 1, len(numbers)):
            if a + numbers[j] == target:
                return (i, j)
    return None
""",
    "merge_intervals": """
def merge_intervals(intervals):
    out = []
    for a, b in sorted(intervals):
        if out and a <= out[-1][1]:
            out[-1][1] = max(out[-1][1], b)
        else:
            out.append([a, b])
    return out
""",
    "parse_records": """
def parse_records(text):
    out = []
    for line in text.splitlines():
        if not line.strip():
            continue
        row = {k.strip(): v.strip() for k, v in (p.split('=') for p in line.split(';'))}
        if 'age' in row:
            row['age'] = int(row['age'])
        out.append(row)
    return out
""",
    "topological_sort": """
from graphlib import TopologicalSorter, CycleError


def topological_sort(graph):
    back = {}
    for a, after in graph.items():
        back.setdefault(a, set())
        for b in after:
            back.setdefault(b, set()).add(a)
    try:
        return list(TopologicalSorter(back).static_order())
    except CycleError:
        raise ValueError('cycle')
""",
    "slugify": """
import re


def slugify(text):
    text = text.lower().translate(str.maketrans('ąćęłńóśźż', 'acelnoszz'))
    return re.sub('[^a-z0-9]+', '-', text).strip('-')
""",
    "LRUCache": """
from collections import OrderedDict


class LRUCache:
    def __init__(self, capacity):
        self.d, self.n = OrderedDict(), capacity

    def get(self, key):
        if key not in self.d:
            return None
        self.d.move_to_end(key)
        return self.d[key]

    def put(self, key, value):
        self.d[key] = value
        self.d.move_to_end(key)
        if len(self.d) > self.n:
            self.d.popitem(last=False)
""",
}
CHART = "for name, n in (('Mon', 3), ('Tue', 5), ('Wed', 1)):\n    print(name, '█' * n)\n"
PROSE = (
    "A bicycle stays upright because its rider steers into each small fall. When the frame leans to the left, the front"
    " wheel turns a little to the left as well, and the tyres move back under the weight. Trail and the spin of the"
    " wheels help, yet neither is needed. Riders learn this in childhood and forget that they ever had to think of it."
)
JSON = ("json", "structured", "long-json", "mixed-json", "stable-json")
CODE = ("code", "ascii-code", "long-code", "stable-code", "coding-canary")


def fenced(source: str) -> str:
    return f"```python\n{source}```"


def right_answers() -> dict[str, object]:
    """A part of each question -> the right answer."""
    questions = load_profile("kimi").questions
    result: dict[str, object] = {}
    for name in JSON:
        result |= {one["ask"]: json.dumps(one["answer"], ensure_ascii=False) for one in questions[name]["items"]}
    for name in CODE:
        result |= {one["ask"]: fenced(PROGRAMS[one["answer"]]) for one in questions[name]["items"]}
    for one in questions["math"]["items"]:
        result[one["ask"]] = f"Let us see.\n{one['answer']}"
    for one in questions["unicode-echo"]["items"]:
        result[one["ask"]] = one["answer"]
    for name in ("unicode-math", "philosophy", "stable-unicode"):
        for one in questions[name]["items"]:
            result[one["ask"]] = "Here they are: " + ", ".join(one["answer"]) + "."
    result[questions["unicode-chart"]["items"][0]["ask"]] = fenced(CHART)
    for one in questions["decode-sweep"]["items"]:
        result[one["ask"]] = PROSE
    for one in questions["tool-call"]["items"]:
        function = {"name": one["answer"]["name"], "arguments": json.dumps(one["answer"]["arguments"])}
        call = {"id": "functions.get_weather:0", "type": "function", "function": function}
        result[one["ask"]] = Say(None, None, [call], "tool_calls")
    result[questions["vision"]["ask"]] = "It says K2-192 and SUM=166, above a red square and a blue square."
    result[questions["server"]["unicode_prompt"]] = "🙂🚀 東京 Привет λόγος 道 Zażółć"
    result[questions["server"]["endless"]] = " ".join(f"number {n}" for n in range(3000))
    for number, prompt in enumerate(questions["server"]["prompts"]):
        result[prompt] = f"{number} " + "one two three four five six seven eight nine ten eleven twelve." * (number + 1)
    return result
