"""The options of every command as typed dataclasses, each option declared once.

`cli` generates the click options from them, `recipe` the keys of the release block, and `release` the arguments of a
stage. Nothing here imports click or pydantic, so the command line starts fast and a plan runs without pydantic.
"""
