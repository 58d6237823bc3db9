"""The paged KV cache's tensors, and attention over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .scheduler import ScheduledRequest


@dataclass(frozen=True)
class QuerySpan:
    """One request's rows within the step's flattened batch, and where its keys and values are."""

    first_row: int
    num_queries: int
    seq_len: int
    blocks: Tensor  # (blocks,) block table of the request, cut to seq_len
    mask: Tensor | None  # (num_queries, seq_len) which keys a query may see; None means all


@dataclass(frozen=True)
class AttentionPlan:
    """What attention needs to know of a step. Made once, used by every layer."""

    spans: tuple[QuerySpan, ...]
    slots: Tensor  # (tokens,) where the new keys and values go: block * block_size + offset


def plan_attention(parts: Sequence[ScheduledRequest], block_size: int) -> AttentionPlan:
    """Lay out a step's requests one behind the other, without padding."""
    spans: list[QuerySpan] = []
    slots: list[int] = []
    first_row = 0
    for part in parts:
        table = part.request.block_table
        slots += [
            table[position // block_size] * block_size + position % block_size
            for position in range(part.start, part.seq_len)
        ]
        mask = None
        if part.num_tokens > 1:
            # Causal, for a chunk that starts behind `start` earlier tokens: query i sees keys up to
            # start + i.
            everything = torch.ones(part.num_tokens, part.seq_len, dtype=torch.bool)
            mask = everything.tril(diagonal=part.start)
        num_blocks = -(-part.seq_len // block_size)
        blocks = torch.tensor(table[:num_blocks])
        spans.append(QuerySpan(first_row, part.num_tokens, part.seq_len, blocks, mask))
        first_row += part.num_tokens
    return AttentionPlan(tuple(spans), torch.tensor(slots))


class PagedKVCache:
    """Keys and values of all layers, each (num_blocks, block_size, kv_heads, head_dim)."""

    def __init__(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        shape = (num_blocks, block_size, kv_heads, head_dim)
        self.block_size = block_size
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(layers)]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan) -> Tensor:
        """Store the step's keys and values, then attend.

        q is (tokens, heads, head_dim); k and v are (tokens, kv_heads, head_dim). Returns the shape of q.
        """
        keys, values = self.keys[layer], self.values[layer]
        keys.flatten(0, 1).index_copy_(0, plan.slots, k)
        values.flatten(0, 1).index_copy_(0, plan.slots, v)

        attended = torch.empty_like(q)
        for span in plan.spans:
            rows = slice(span.first_row, span.first_row + span.num_queries)
            attended[rows] = _grouped_query_attention(
                q[rows],
                keys[span.blocks].flatten(0, 1)[: span.seq_len],
                values[span.blocks].flatten(0, 1)[: span.seq_len],
                span.mask,
            )
        return attended


def _grouped_query_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """One request: q is (queries, heads, head_dim); keys and values are (seq_len, kv_heads, head_dim).

    Several query heads share a KV head. Instead of repeating the keys for each of them, the heads of a
    group are laid out as further query rows of their KV head.
    """
    num_queries, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    grouped = q.reshape(num_queries, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    if mask is not None:
        mask = mask.repeat(group, 1)
    out = functional.scaled_dot_product_attention(
        grouped.reshape(1, kv_heads, group * num_queries, head_dim),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
    )
    return out.reshape(kv_heads, group, num_queries, head_dim).permute(2, 0, 1, 3).reshape(q.shape)
