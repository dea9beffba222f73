"""Recipes: YAML files validated against a strict schema and turned into plain values.

load          load a recipe by name or by path
strict_yaml, schema, errors    parse, validate and report errors
decisions     the validated recipe as dataclasses
release       the `release` block, which does not affect output bytes
"""
