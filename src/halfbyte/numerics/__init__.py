"""Number formats, exact to the bit.

formats.py says what each format is; reference/ is the arithmetic, written to be read; cpu/ is the same arithmetic,
fast; codec.py encodes and decodes whole linears with it.
"""
