"""The options of every command as typed dataclasses, each option declared once.

convert        quantize, calibrate, prune          inspect   inspect, plan and the other listings
check          audit, verify, diff, compare, loops serve     serve
server_tests   probe, eval, bench                  publish   card, report, publish
release        release and its stages' names       shared    groups of options that several commands use
stages         options that a recipe's release block may set
declare        how an option is declared and read back

`cli` generates the click options from them, `recipe` the keys of the release block, and `release` the arguments of a
stage. Nothing here imports click or pydantic, so the command line starts fast and a plan runs without pydantic.
"""
