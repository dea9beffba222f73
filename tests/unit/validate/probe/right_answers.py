"""What a sound model says to the questions of the profile `kimi`; made from the profile where it has the answer."""

import json

from fake_openai import Say

from halfbyte.validate.probe.profiles import load_profile

PROGRAMS = {
    "fibonacci": "def fibonacci(n):\n    a, b, out = 0, 1, []\n    for _ in range(n):\n        out.append(a)\n"
    "        a, b = b, a + b\n    return out\n",
    "word_counts": "def word_counts(text):\n    return {w: text.split().count(w) for w in text.split()}\n",
    "is_palindrome": 'def is_palindrome(text):\n    """Same backwards."""\n    return text == text[::-1]\n',
    "Stack": 'class Stack:\n    """A stack."""\n\n    def push(self, x):\n        pass\n',
    "InventoryStore": 'class InventoryStore:\n    """Keeps items."""\n\n    def add(self, name: str) -> None:\n        pass\n',
    "matrix_product": "def matrix_product(a, b):\n    return [[sum(x * y for x, y in zip(r, c)) for c in zip(*b)] for r in a]\n",
    "two_sum": "def two_sum(numbers, target):\n    for i, a in enumerate(numbers):\n        for j in range(i + 1, len(numbers)):\n"
    "            if a + numbers[j] == target:\n                return (i, j)\n    return None\n",
    "merge_intervals": "def merge_intervals(intervals):\n    out = []\n    for a, b in sorted(intervals):\n"
    "        if out and a <= out[-1][1]:\n            out[-1][1] = max(out[-1][1], b)\n        else:\n            out.append([a, b])\n"
    "    return out\n",
    "parse_records": "def parse_records(text):\n    out = []\n    for line in text.splitlines():\n        if not line.strip():\n"
    "            continue\n        row = {k.strip(): v.strip() for k, v in (p.split('=') for p in line.split(';'))}\n"
    "        if 'age' in row:\n            row['age'] = int(row['age'])\n        out.append(row)\n    return out\n",
    "topological_sort": "from graphlib import TopologicalSorter, CycleError\n\n\ndef topological_sort(graph):\n"
    "    back = {}\n    for a, after in graph.items():\n        back.setdefault(a, set())\n        for b in after:\n"
    "            back.setdefault(b, set()).add(a)\n    try:\n        return list(TopologicalSorter(back).static_order())\n"
    "    except CycleError:\n        raise ValueError('cycle')\n",
    "slugify": "import re\n\n\ndef slugify(text):\n    text = text.lower().translate(str.maketrans('ąćęłńóśźż', 'acelnoszz'))\n"
    "    return re.sub('[^a-z0-9]+', '-', text).strip('-')\n",
    "LRUCache": "from collections import OrderedDict\n\n\nclass LRUCache:\n    def __init__(self, capacity):\n"
    "        self.d, self.n = OrderedDict(), capacity\n\n    def get(self, key):\n        if key not in self.d:\n"
    "            return None\n        self.d.move_to_end(key)\n        return self.d[key]\n\n    def put(self, key, value):\n"
    "        self.d[key] = value\n        self.d.move_to_end(key)\n        if len(self.d) > self.n:\n"
    "            self.d.popitem(last=False)\n",
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
    """A part of each question -> what is right."""
    questions = load_profile("kimi").questions
    found: dict[str, object] = {}
    for name in JSON:
        found |= {one["ask"]: json.dumps(one["answer"], ensure_ascii=False) for one in questions[name]["items"]}
    for name in CODE:
        found |= {one["ask"]: fenced(PROGRAMS[one["answer"]]) for one in questions[name]["items"]}
    for one in questions["math"]["items"]:
        found[one["ask"]] = f"Let us see.\n{one['answer']}"
    for one in questions["unicode-echo"]["items"]:
        found[one["ask"]] = one["answer"]
    for name in ("unicode-math", "philosophy", "stable-unicode"):
        for one in questions[name]["items"]:
            found[one["ask"]] = "Here they are: " + ", ".join(one["answer"]) + "."
    found[questions["unicode-chart"]["items"][0]["ask"]] = fenced(CHART)
    for one in questions["decode-sweep"]["items"]:
        found[one["ask"]] = PROSE
    for one in questions["tool-call"]["items"]:
        function = {"name": one["answer"]["name"], "arguments": json.dumps(one["answer"]["arguments"])}
        call = {"id": "functions.get_weather:0", "type": "function", "function": function}
        found[one["ask"]] = Say(None, None, [call], "tool_calls")
    found[questions["vision"]["ask"]] = "It says K2-192 and SUM=166, above a red square and a blue square."
    found[questions["server"]["unicode_prompt"]] = "🙂🚀 東京 Привет λόγος 道 Zażółć"
    found[questions["server"]["endless"]] = " ".join(f"number {n}" for n in range(3000))
    for number, prompt in enumerate(questions["server"]["prompts"]):
        found[prompt] = f"{number} " + "one two three four five six seven eight nine ten eleven twelve." * (number + 1)
    return found
