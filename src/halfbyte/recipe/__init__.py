"""Recipes: what a file may say, read strictly, and what it decides as plain values.

load          by name or by file;  strict_yaml, schema, errors: how it is read, and refused in one sentence
decisions     what a recipe decides;  release: what it says about a release, which decides no byte
options       of the commands that take one
"""
