"""Inspect a checkpoint from its headers.

inspection    roles, formats, sizes and consistency
gains         size after each recipe
"""
