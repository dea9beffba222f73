"""Examine this machine, and advise on quantizing and serving with it."""

from halfbyte.doctor.advice import advise
from halfbyte.doctor.facts import Machine, examine

__all__ = ["Machine", "advise", "examine"]
