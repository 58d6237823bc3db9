"""An engine that no profiler knows, and the few lines that make it known: `spyreprof_agent`.

    python samples/own_engine.py
    spyreprof record --no-calibrate -- python samples/own_engine.py --seed 7

Standard library only. The "model" multiplies small matrices in plain Python: its arithmetic means nothing, its shape is
that of an LLM engine: requests arrive, prompts are computed in chunks, and running requests get a token per step.
Without `spyreprof record` the marks do nothing; without the package, leave them out.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import deque
from dataclasses import dataclass, field

import spyreprof_agent

WIDTH = 24


@dataclass
class Sequence:
    """One request in the engine."""

    prompt: list[int]
    wanted: int
    mark: spyreprof_agent.Request
    computed: int = 0
    output: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens that the next decode step looks at."""
        return len(self.prompt) + len(self.output)


class Engine:
    """Chunked prefill of one prompt at a time, and decode of all others together."""

    def __init__(self, seed: int, chunk_tokens: int, max_running: int) -> None:
        rng = random.Random(seed)
        self.weights = [[rng.uniform(-1, 1) for _ in range(WIDTH)] for _ in range(WIDTH)]
        self.chunk_tokens, self.max_running = chunk_tokens, max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.steps = {"prefill": 0, "decode": 0}
        self.parts = {"schedule": 0, "sample": 0}
        self.finished: list[Sequence] = []

    def submit(self, prompt: list[int], wanted: int) -> None:
        """A request arrives."""
        mark = spyreprof_agent.request(prompt_tokens=len(prompt), max_tokens=wanted).begin()
        self.waiting.append(Sequence(prompt, wanted, mark))

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.waiting or self.running:
            with spyreprof_agent.phase("schedule"):
                self.parts["schedule"] += 1
                if self.waiting and len(self.running) < self.max_running:
                    self.running.append(self.waiting.popleft())
                    self.running[-1].mark.scheduled()
                prompts = [sequence for sequence in self.running if sequence.computed < len(sequence.prompt)]
            if prompts:
                self.prefill(prompts[0])
            else:
                self.decode(self.running)

    def prefill(self, sequence: Sequence) -> None:
        """Compute the next chunk of a prompt."""
        chunk = sequence.prompt[sequence.computed :][: self.chunk_tokens]
        length = sequence.computed + len(chunk)
        self.steps["prefill"] += 1
        with spyreprof_agent.step(
            "prefill",
            context_requests=1,
            context_tokens=len(chunk),
            context_seq_len_sum=length,
            context_q_k_sum=len(chunk) * length,
        ):
            state = [self.forward(token) for token in chunk][-1]
        sequence.computed = length
        if length == len(sequence.prompt):
            self.sample([sequence], [state])

    def decode(self, sequences: list[Sequence]) -> None:
        """Compute one more token of each."""
        self.steps["decode"] += 1
        lengths = sum(sequence.length for sequence in sequences)
        with spyreprof_agent.step("decode", generation_requests=len(sequences), generation_seq_len_sum=lengths):
            states = [self.forward(sequence.output[-1]) for sequence in sequences]
        self.sample(sequences, states)

    def forward(self, token: int) -> list[float]:
        """Stand in for a model."""
        vector = [float((token * (place + 3)) % 17) for place in range(WIDTH)]
        return [sum(weight * value for weight, value in zip(row, vector, strict=True)) for row in self.weights]

    def sample(self, sequences: list[Sequence], states: list[list[float]]) -> None:
        """Choose the next token of each sequence, and let go of those that are complete."""
        with spyreprof_agent.phase("sample"):
            self.parts["sample"] += 1
            for sequence, state in zip(list(sequences), states, strict=True):
                sequence.output.append(state.index(max(state)) + 1)
                sequence.mark.first_token()
                if len(sequence.output) == sequence.wanted:
                    sequence.mark.finished(output_tokens=sequence.wanted, reason="length", preemptions=0)
                    self.running.remove(sequence)
                    self.finished.append(sequence)


def main() -> None:
    """Serve seeded requests and print what was done."""
    parser = argparse.ArgumentParser(description="A toy engine that marks its own steps, phases and requests.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--prompt-tokens", type=int, default=48, help="at most; at least a quarter of it")
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--max-running", type=int, default=8)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    engine = Engine(given.seed, chunk_tokens=16, max_running=given.max_running)
    for _ in range(given.requests):
        length = rng.randint(max(given.prompt_tokens // 4, 1), given.prompt_tokens)
        engine.submit([rng.randrange(1, 1000) for _ in range(length)], given.new_tokens)
    engine.run()
    print(
        json.dumps(
            {
                "steps": engine.steps,
                "parts": engine.parts,
                "prompt_tokens": [len(sequence.prompt) for sequence in engine.finished],
                "output_tokens": [len(sequence.output) for sequence in engine.finished],
                "checksum": sum(sum(sequence.output) for sequence in engine.finished),
            }
        )
    )


if __name__ == "__main__":
    main()
