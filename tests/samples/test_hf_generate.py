"""The transformers sample: recorded steps equal what the program counted, with the real library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spyreprof.recording.store import Recording, open_recording

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "hf_generate.py"
PATIENCE_S = 280

# Every way of generating that has a loop of its own, on a model of a few kilobytes.
WAYS = """
import threading, torch
from transformers import GraniteConfig, GraniteForCausalLM
torch.manual_seed(0)
torch.set_num_threads(1)
def make(layers):
    return GraniteForCausalLM(GraniteConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, bos_token_id=1, pad_token_id=0, eos_token_id=None)).eval()
model, drafts = make(2), make(1)
forwards = []
model.register_forward_hook(lambda *_: forwards.append(1))
def prompts(rows, length):
    return torch.randint(2, 64, (rows, length))
padded = torch.ones(3, 9, dtype=torch.long)
padded[0, :4] = 0
class Streamer:
    def put(self, tokens): pass
    def end(self): pass
common = dict(max_new_tokens=4, do_sample=False)
for name, given in dict(
    greedy=dict(inputs=prompts(1, 7)),
    sampled=dict(inputs=prompts(1, 7), do_sample=True),
    padded=dict(inputs=prompts(3, 9), attention_mask=padded),
    beams=dict(inputs=prompts(2, 5), num_beams=3),
    uncached=dict(inputs=prompts(1, 7), use_cache=False),
    chunked=dict(inputs=prompts(1, 10), prefill_chunk_size=4),
    assisted=dict(inputs=prompts(1, 7), assistant_model=drafts),
    streamed=dict(inputs=prompts(1, 7), streamer=Streamer()),
    static=dict(inputs=prompts(1, 7), cache_implementation="static"),
).items():
    forwards.clear()
    out = model.generate(**{**common, **given})
    print(name, len(forwards), tuple(out.shape), int(out.sum()))
threads = [threading.Thread(target=model.generate, args=(prompts(1, 6),), kwargs=common) for _ in range(2)]
forwards.clear()
for thread in threads: thread.start()
for thread in threads: thread.join()
print("threads", len(forwards))
"""


def environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPYREPROF_")}
    return {**own, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "collectors", ROOT / "analyzers")))}


def run(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def record(tmp_path: Path, *program: str) -> tuple[str, Recording]:
    out = tmp_path / "run.spyreprof"
    recording = ("-m", "spyreprof", "record", "--no-calibrate", "--out", str(out), "--")
    ended = run(tmp_path, *recording, sys.executable, *program)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, open_recording(out)


def test_without_the_library_it_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text("raise ImportError('not here')")
    own = {**environment(), "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, str(SAMPLE)], env=own, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("hf_generate.py needs torch and transformers.")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.slow
def test_its_recorded_steps_are_those_that_it_counted(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    options = ("--requests", "5", "--batch", "2", "--prompt-tokens", "12", "--new-tokens", "4")
    printed, recording = record(tmp_path, str(SAMPLE), *options)
    said: dict[str, Any] = json.loads(printed)
    steps = recording.steps
    assert set(steps["source"]) == {"transformers"}
    assert steps["phase"].value_counts().to_dict() == {"prefill": said["prefill_steps"], "decode": said["decode_steps"]}
    assert steps["context_tokens"].sum() == said["prompt_tokens"]
    # The first token of an answer comes out of the prefill.
    assert steps["generation_tokens"].sum() == said["new_tokens"] - 5
    assert steps["context_requests"].max() == 2
    assert len(recording.requests) == 5
    assert set(recording.requests["prompt_tokens"]) == {12}
    assert recording.versions["transformers"]
    assert printed == run(tmp_path, str(SAMPLE), *options).stdout


@pytest.mark.slow
def test_every_way_of_generating_gives_a_row_for_each_forward_pass(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "ways.py").write_text(WAYS)
    printed, recording = record(tmp_path, "ways.py")
    assert printed == run(tmp_path, "ways.py").stdout
    forwards = {line.split()[0]: int(line.split()[1]) for line in printed.splitlines()}
    assert len(recording.steps) == sum(forwards.values())
    assert not recording.steps["phase"].isna().any()
    # One prefill for each call of generate(), but for the chunks of one and the uncached steps of another.
    prefills = (recording.steps["phase"] == "prefill").sum()
    assert prefills >= len(forwards) + 1 + forwards["uncached"] - 1
    assert (recording.steps["context_seq_len_sum"] >= recording.steps["context_tokens"]).all()
    assert not recording.requests["failed"].any()
