"""Which token is what. There is no tokeniser to learn: a token below 256 is a byte of UTF-8.

What lies above the special tokens fills the vocabulary up to its size, and has no text.
"""

from __future__ import annotations

EOS_TOKEN_ID = 256
# Between these two a reasoning model thinks.
THINK_TOKEN_ID = 257
END_THINK_TOKEN_ID = 258
SMALLEST_VOCAB = END_THINK_TOKEN_ID + 1

MARKER_TEXT = {THINK_TOKEN_ID: b"<think>", END_THINK_TOKEN_ID: b"</think>"}


def text_of(token: int) -> bytes:
    """UTF-8 of one token; a character of several bytes is several tokens."""
    return bytes((token,)) if token < EOS_TOKEN_ID else MARKER_TEXT.get(token, b"")
