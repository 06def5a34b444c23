"""Rows that break each rule and rows that keep it, made from the shipped ones by changing some values."""

from __future__ import annotations

from rulebook import deepspeed, gpus, language, running, system, toolkit, wheels
from rulebook.rows import Broken, Kept

_SUBJECTS = (toolkit, language, gpus, wheels, system, deepspeed, running)
BROKEN: list[Broken] = [case for subject in _SUBJECTS for case in subject.BROKEN]
KEPT: list[Kept] = [case for subject in _SUBJECTS for case in subject.KEPT]
