"""Tiny engines, and a plain decoder to compare with. Importable only where torch is."""

from __future__ import annotations

import math
import random

import torch
from engine.core import Engine, EngineConfig
from engine.model import Decoder, ModelConfig, build_decoder
from engine.scheduler import Request

VOCAB = 300


def tiny_engine(
    seqs: int = 4,
    budget: int = 16,
    blocks: int = 64,
    block_size: int = 4,
    caching: bool = True,
) -> Engine:
    """In double precision: rounding must not decide which token is the likeliest."""
    sizes = ModelConfig(layers=2, hidden=32, ffn=48, heads=4, kv_heads=2, vocab=VOCAB)
    model = build_decoder(sizes, seed=1, dtype=torch.float64)
    length = blocks * block_size
    return Engine(model, EngineConfig(seqs, budget, length, blocks, block_size, caching))


def prompts(count: int, seed: int, low: int = 1, high: int = 40) -> list[list[int]]:
    numbers = random.Random(seed)
    return [numbers.choices(range(VOCAB), k=numbers.randint(low, high)) for _ in range(count)]


def generate(engine: Engine, texts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Outputs of all prompts, submitted at once."""
    requests = [Request(str(i), text, max_tokens) for i, text in enumerate(texts)]
    for request in requests:
        engine.submit(request)
    while engine.step():
        pass
    return [request.output_token_ids for request in requests]


def generate_plainly(model: Decoder, text: list[int], max_tokens: int) -> list[int]:
    """One request, without any cache: every token from a full computation of all tokens before it."""
    tokens = list(text)
    for _ in range(max_tokens):
        tokens.append(int(plain_logits(model, tokens)[-1].argmax()))
    return tokens[len(text) :]


def plain_logits(model: Decoder, tokens: list[int]) -> torch.Tensor:
    """Written out from the weights: complex rotation, repeated KV heads, softmax over a triangle."""
    sizes = model.config
    count, dim = len(tokens), sizes.head_dim
    x = model.embedding.weight[torch.tensor(tokens)]
    turns = torch.outer(
        torch.arange(count, dtype=x.dtype),
        10_000.0 ** (-torch.arange(dim // 2, dtype=x.dtype) * 2 / dim),
    )
    rotation = torch.polar(torch.ones_like(turns), turns)[:, None]

    def rotated(heads: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(heads[..., : dim // 2], heads[..., dim // 2 :]) * rotation
        return torch.cat((turned.real, turned.imag), dim=-1)

    def normed(rows: torch.Tensor) -> torch.Tensor:
        return rows / (rows.pow(2).mean(-1, keepdim=True) + torch.finfo(rows.dtype).eps).sqrt()

    for block in model.blocks:
        wq, wk, wv = block.qkv.weight.split((sizes.hidden, sizes.kv_heads * dim, sizes.kv_heads * dim))
        h = normed(x)
        q = rotated((h @ wq.T).view(count, sizes.heads, dim))
        k = rotated((h @ wk.T).view(count, sizes.kv_heads, dim))
        v = (h @ wv.T).view(count, sizes.kv_heads, dim)
        k, v = (heads.repeat_interleave(sizes.heads // sizes.kv_heads, dim=1) for heads in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -math.inf)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(count, -1)
        x = x + attended @ block.attention_out.weight.T
        gate, up = (normed(x) @ block.gate_up.weight.T).chunk(2, dim=-1)
        x = x + (gate * gate.sigmoid() * up) @ block.down.weight.T
    return normed(x) @ model.lm_head.weight.T
