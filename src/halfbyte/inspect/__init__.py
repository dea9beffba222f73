"""Inspect a checkpoint from its headers.

inspection     roles, formats, sizes and consistency
recipe_sizes   size after each recipe
"""
