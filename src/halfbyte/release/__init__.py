"""A release in one command: halfbyte's own commands in order, each kept once it is done, and a verdict at the end."""
