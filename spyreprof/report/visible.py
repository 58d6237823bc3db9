"""Characters that change how a line is shown, turned into characters that show themselves.

A report travels through terminals, tickets and browsers. An escape sequence, a carriage return or a
right-to-left override in it could hide or forge a line; written out as `\\u202e` it can do neither.
"""

from __future__ import annotations

import unicodedata

# Cc controls, Cf formatting (bidi, zero width), Co private use, Cs surrogates, Cn unassigned,
# Zl and Zp line and paragraph separators.
_SHOWN_ESCAPED = frozenset({"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Write out every character that has no glyph of its own; plain text comes back unchanged."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escaped(character) if unicodedata.category(character) in _SHOWN_ESCAPED else character for character in text
    )


def _escaped(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
