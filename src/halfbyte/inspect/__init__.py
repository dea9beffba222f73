"""What a checkpoint is, from its headers alone.

inspection    roles, formats, sizes, and whether parts agree;  text: the same in words
gains         what each recipe would make of them
"""
