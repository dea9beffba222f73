"""Pieces of tiny programs: what a step is called in English, and how it is written in Python.

Filled in by the generator: {k} a number, {n} a small one, {l} a length, {c} a letter, {s} a separator. In the code, `x`
is the number, `w` the word and `c` the character at hand.
"""

from __future__ import annotations

_words = str.split

VERBS = _words("make find get build solve compute gather pick list scan check run turn shape read do take show")
NOUNS = _words(
    "values result items score parts total answer data things output pieces lines rows marks cells bits codes"
)

NUMBER_FILTERS = {
    "the numbers": "",
    "the even numbers": "x % 2 == 0",
    "the odd numbers": "x % 2 == 1",
    "the positive numbers": "x > 0",
    "the negative numbers": "x < 0",
    "the numbers greater than {k}": "x > {k}",
    "the numbers less than {k}": "x < {k}",
    "the numbers divisible by {k}": "x % {k} == 0",
    "the numbers other than {k}": "x != {k}",
}
NUMBER_MAPS = {
    "": "x",
    "doubles each": "x * 2",
    "squares each": "x * x",
    "adds {k} to each": "x + {k}",
    "subtracts {k} from each": "x - {k}",
    "multiplies each by {k}": "x * {k}",
    "takes each modulo {k}": "x % {k}",
}
NUMBER_ENDS = {
    "returns their sum": "sum({all})",
    "returns their number": "len({list})",
    "returns the list": "{list}",
    "returns them sorted": "sorted({all})",
    "returns them sorted downwards": "sorted({all})[::-1]",
    "returns the first {n}": "{list}[:{n}]",
    "returns the last {n}": "{list}[-{n}:]",
    "returns them reversed": "{list}[::-1]",
}

WORD_FILTERS = {
    "the words": "",
    "the words longer than {l} letters": "len(w) > {l}",
    "the words shorter than {l} letters": "len(w) < {l}",
    "the words of {l} letters": "len(w) == {l}",
    "the words starting with '{c}'": "w.startswith('{c}')",
    "the words ending with '{c}'": "w.endswith('{c}')",
    "the words with '{c}'": "'{c}' in w",
    "the words without '{c}'": "'{c}' not in w",
}
WORD_MAPS = {
    "": "w",
    "makes each upper case": "w.upper()",
    "capitalizes each": "w.capitalize()",
    "reverses each": "w[::-1]",
    "takes each first letter": "w[0]",
    "adds '{c}' to each": "w + '{c}'",
    "repeats each {n} times": "w * {n}",
    "takes each length": "len(w)",
}
WORD_ENDS = {
    "returns the list": "{list}",
    "returns them sorted": "sorted({all})",
    "returns them reversed": "{list}[::-1]",
    "returns their number": "len({list})",
    "returns them joined by '{s}'": "'{s}'.join({all})",
}

CHARACTER_FILTERS = {
    "the vowels": "c in 'aeiou'",
    "the digits": "c.isdigit()",
    "the letters": "c.isalpha()",
    "the capital letters": "c.isupper()",
    "the small letters": "c.islower()",
    "the characters other than '{c}'": "c != '{c}'",
    "the characters after '{c}'": "c > '{c}'",
    "the characters before '{c}'": "c < '{c}'",
}
CHARACTER_MAPS = {
    "": "c",
    "makes each upper case": "c.upper()",
    "doubles each": "c * 2",
    "writes each {n} times": "c * {n}",
    "puts '{c}' after each": "c + '{c}'",
}
CHARACTER_ENDS = {
    "returns a string": "''.join({all})",
    "returns a list": "{list}",
    "returns their number": "len({list})",
    "returns a reversed string": "''.join({list}[::-1])",
}

ARITHMETIC_STARTS = {
    "adds a and b": "a + b",
    "multiplies a and b": "a * b",
    "subtracts b from a": "a - b",
    "takes the larger of a, b": "max(a, b)",
    "takes the smaller of a, b": "min(a, b)",
}
ARITHMETIC_STEPS = {
    "adds {k}": "result + {k}",
    "subtracts {k}": "result - {k}",
    "multiplies by {k}": "result * {k}",
    "takes it modulo {k}": "result % {k}",
    "halves it {n} times": "result // 2**{n}",
    "adds a": "result + a",
    "subtracts b": "result - b",
    "squares it": "result * result",
    "drops the sign": "abs(result)",
}

COMPARISONS = {"greater than": ">", "less than": "<", "equal to": "==", "at least": ">=", "at most": "<="}
LABELS = _words(
    "red blue green gold small large warm cold odd even left right up down yes no low high near far fast slow old new"
    " soft hard wet dry thin thick pass fail open shut good bad full short long dark light"
)

LOOP_CONDITIONS = {
    "divisible by {k}": "i % {k} == 0",
    "not divisible by {k}": "i % {k} != 0",
    "greater than {k}": "i > {k}",
    "less than {k}": "i < {k}",
    "at least {k}": "i >= {k}",
}
RULES = ("n + {c}", "n * {k}", "n * {k} + {c}", "n * {k} - {c}", "n * n + {c}", "{c} - n * {k}")
LOOP_BODIES = {
    "adds up numbers": ("0", "total += i"),
    "counts numbers": ("0", "total += 1"),
    "adds up squares": ("0", "total += i * i"),
    "multiplies numbers": ("1", "total *= i"),
    "adds up doubles": ("0", "total += 2 * i"),
}
