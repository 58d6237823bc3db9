"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

All tokens of a step, of whatever request, are rows of one (tokens, hidden) matrix. Only attention looks at
which row belongs to which request; everything else is one matrix multiplication per layer for all of them.
That is why batching pays: the weights are read once per step, however many rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .attention import AttentionPlan, PagedKVCache

ROPE_BASE = 10_000.0


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the decoder. `heads` is a multiple of `kv_heads`; hidden / heads is even."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.hidden // self.heads


def rotary_angles(positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (tokens, 1, head_dim / 2), by which the pairs of a head are rotated."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head_dim, 2, dtype=dtype) / head_dim)
    angles = positions.to(dtype)[:, None, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of (tokens, heads, head_dim): after it, q·k depends on the distance only."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class TiledLinear(nn.Module):
    """The same product from weights stored in square tiles, as block-sparse formats store them, multiplied tile by
    tile. Each product is so small that it reaches neither peak of any machine: what a layout costs without a kernel
    that is made for it."""

    def __init__(self, linear: nn.Linear, tile: int) -> None:
        super().__init__()
        self.tile = tile
        # (outputs, inputs) to (output tiles, input tiles, tile inputs, tile outputs)
        tiles = linear.weight.unflatten(0, (-1, tile)).unflatten(2, (-1, tile)).permute(0, 2, 3, 1)
        self.weight = nn.Parameter(tiles.contiguous(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(tokens, inputs) to (tokens, outputs)."""
        rows = x.unflatten(1, (-1, self.tile)).transpose(0, 1).expand(len(self.weight), -1, -1, -1)
        products = torch.bmm(rows.flatten(0, 1), self.weight.flatten(0, 1))
        return products.unflatten(0, (len(self.weight), -1)).sum(1).transpose(0, 1).flatten(1)


class Block(nn.Module):
    """One layer. Its two dense halves are what `--compile` compiles; attention between them stays eager, as
    its shapes change with every step and every request."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        kv_size = config.kv_heads * config.head_dim
        self.attention_norm = nn.RMSNorm(config.hidden)
        # Matrices that read the same input are stored as one: fewer, larger multiplications.
        self.qkv = nn.Linear(config.hidden, config.hidden + 2 * kv_size, bias=False)
        self.attention_out = nn.Linear(config.hidden, config.hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(config.hidden)
        self.gate_up = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def before_attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens, hidden) to rotated queries, rotated keys, and values, each (tokens, heads, head_dim)."""
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, self.config.head_dim))
        q, k, v = heads.split((self.config.heads, self.config.kv_heads, self.config.kv_heads), dim=1)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Attention's output projection and the SwiGLU feed-forward, both added to the residual stream x."""
        x = x + self.attention_out(attended.flatten(1))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Decoder(nn.Module):
    """The whole model; one call is one step."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        last_rows: Tensor,
        cache: PagedKVCache,
        plan: AttentionPlan,
    ) -> Tensor:
        """Compute a step.

        token_ids and positions are (tokens,), all requests one behind the other. Logits are computed for
        `last_rows` only, the rows that a next token is sampled from: (len(last_rows), vocab).
        """
        x = self.embedding(token_ids)
        cos, sin = rotary_angles(positions, self.config.head_dim, x.dtype)
        for index, block in enumerate(self.blocks):
            q, k, v = block.before_attention(x, cos, sin)
            x = block.after_attention(x, cache.attend(index, q, k, v, plan))
        return self.lm_head(self.norm(x[last_rows]))

    def tile_linears(self, tile: int) -> None:
        """Store every layer's matrices in tiles."""
        for block in self.blocks:
            for name in ("qkv", "attention_out", "gate_up", "down"):
                setattr(block, name, TiledLinear(getattr(block, name), tile))

    def compile_blocks(self, backend: str, dynamic: bool) -> None:
        """Compile the dense halves of every layer: once for any number of tokens, or again for each number."""
        if not dynamic:
            # Dynamo gives up on a function after a few variants, as it must be a mistake. Here it is the point.
            torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1_000_000
        for block in self.blocks:
            for half in ("before_attention", "after_attention"):
                compiled = torch.compile(getattr(block, half), backend=backend, dynamic=dynamic, fullgraph=True)
                setattr(block, half, compiled)


def build_decoder(config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32) -> Decoder:
    """A decoder with random weights that depend on config and seed alone."""
    # Built on the meta device first: nn.Linear's own initialisation would take as long again as ours.
    with torch.device("meta"):
        model = Decoder(config)
    model = model.to(dtype).to_empty(device="cpu").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                # Variance 1 / inputs: activations keep their scale through the layers.
                bound = (3 / parameter.shape[1]) ** 0.5
                parameter.uniform_(-bound, bound, generator=generator)
    return model.requires_grad_(False)
