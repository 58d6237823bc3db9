"""Who owns which block of the paged KV cache: reference counts, a free list in LRU order, prefix caching.

The KV cache is cut into blocks of `block_size` tokens. A request holds a *block table*, the list of its
blocks in sequence order, so its cache need not be contiguous and nothing is reserved for tokens that may
never come. This module is bookkeeping only; the tensors are in `attention.py`.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

ROOT_HASH = b""


def hash_block(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Hash of a full block. It covers the parent's hash too: equal hashes mean equal text from the start on,
    which is what makes cached keys and values reusable (they depend on every token before them)."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockPool:
    """All blocks of the cache. A block is *in use* while some request's table holds it, else it is free.

    A free block keeps its contents, and its hash, until it is handed out again: that is the prefix cache.
    So a warm cache costs nothing, and `usage_ratio` counts blocks in use only.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._references = [0] * num_blocks
        # Oldest first: the block that nobody wanted for longest is overwritten first.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._block_of_hash: dict[bytes, int] = {}
        self._hash_of_block: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now."""
        return len(self._free)

    @property
    def usage_ratio(self) -> float:
        """Blocks in use over all blocks, 0 to 1."""
        return 1 - len(self._free) / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def is_free(self, block: int) -> bool:
        """Whether no request holds the block."""
        return block in self._free

    def references(self, block: int) -> int:
        """How many block tables hold the block."""
        return self._references[block]

    def cached_prefix(self, block_hashes: Sequence[bytes]) -> list[int]:
        """The longest run of blocks, from the first on, whose contents are in the cache. Changes nothing."""
        blocks: list[int] = []
        for block_hash in block_hashes:
            block = self._block_of_hash.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Hold blocks found by `cached_prefix`; several requests may hold the same full block."""
        for block in blocks:
            self._references[block] += 1
            self._free.pop(block, None)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` free blocks, oldest first; what they cached is forgotten.

        Raises:
            ValueError: fewer than `count` blocks are free (the scheduler asks `num_free` first).
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            forgotten = self._hash_of_block.pop(block, None)
            if forgotten is not None:
                del self._block_of_hash[forgotten]
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give up a request's blocks."""
        # Back to front: a block is of no use to anybody without those before it, so the tail is overwritten
        # first.
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def remember(self, block: int, block_hash: bytes) -> None:
        """Make a full, computed block findable. The first block with this text stays the cached one."""
        if self.enable_prefix_caching and block_hash not in self._block_of_hash:
            self._block_of_hash[block_hash] = block
            self._hash_of_block[block] = block_hash
