"""Text generation with transformers, for spyreprof to look at: `generate()` in a loop, nothing marked by hand.

    python samples/hf_generate.py
    spyreprof record -- python samples/hf_generate.py --batch 4

A small Granite model with random, seeded weights: nothing is downloaded. Its weights are some 250 MB in float32, well
beyond a 32 MB cache, so that a decode step reads them from memory, as the step of a real model does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

MISSING = "hf_generate.py needs torch and transformers. Install them: pip install 'torch==2.13.0' transformers"


def build(seed: int) -> Any:
    """Make the model; prompts and weights depend on the seed alone."""
    import torch
    from transformers import GraniteConfig, GraniteForCausalLM

    torch.manual_seed(seed)
    config = GraniteConfig(
        vocab_size=8_192,
        hidden_size=768,
        intermediate_size=2_048,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=4_096,
        bos_token_id=1,
        pad_token_id=0,
        # Random weights would end some answers early: every answer gets all its tokens.
        eos_token_id=None,
    )
    return GraniteForCausalLM(config).eval()


def main() -> int:
    """Answer seeded prompts and print what was done."""
    parser = argparse.ArgumentParser(description="Random prompts through transformers' generate().")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--batch", type=int, default=1, help="prompts per call of generate()")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; 0: its own choice")
    given = parser.parse_args()
    if min(given.requests, given.prompt_tokens, given.new_tokens, given.batch) < 1 or given.threads < 0:
        parser.error("counts are whole numbers from 1")
    try:
        import torch
        import transformers
    except ImportError:
        print(MISSING, file=sys.stderr)
        return 2
    transformers.logging.set_verbosity_error()
    if given.threads:
        torch.set_num_threads(given.threads)
    model = build(given.seed)
    generator = torch.Generator().manual_seed(given.seed)
    done = {"calls": 0, "prompt_tokens": 0, "new_tokens": 0, "prefill_steps": 0, "decode_steps": 0}
    checksum = 0
    began_s = time.monotonic()
    for first in range(0, given.requests, given.batch):
        rows = min(given.batch, given.requests - first)
        prompts = torch.randint(2, 8_192, (rows, given.prompt_tokens), generator=generator)
        answers = model.generate(prompts, max_new_tokens=given.new_tokens, do_sample=False)
        checksum += int(answers[:, given.prompt_tokens :].sum())
        done["calls"] += 1
        done["prompt_tokens"] += prompts.numel()
        done["new_tokens"] += answers.numel() - prompts.numel()
        done["prefill_steps"] += 1
        done["decode_steps"] += given.new_tokens - 1  # the first token comes out of the prefill
    took_s = time.monotonic() - began_s
    print(json.dumps({**done, "checksum": checksum}))
    print(f"{Path(__file__).name}: {done['new_tokens'] / took_s:.1f} new tokens/s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
