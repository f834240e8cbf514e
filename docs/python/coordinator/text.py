"""What others chose the words of, made harmless before it is printed.

A title, an error message or a document may hold escape sequences, line feeds or marks that
turn the order of reading. None of it reaches a terminal.
"""

from __future__ import annotations

import unicodedata

_STEERS = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
_JOINERS = "\u200c\u200d"  # scripts and emoji need them
_REPLACEMENT = "\ufffd"


def inert(text: str, limit: int = 200) -> str:
    """text on one line, with nothing in it that steers, and no longer than limit."""
    head = "".join(c if c in _JOINERS or unicodedata.category(c) not in _STEERS else _REPLACEMENT for c in text[:limit])
    return head + "…" if len(text) > limit else head
