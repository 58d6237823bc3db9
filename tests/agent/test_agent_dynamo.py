"""Dynamo compiles the same graphs, breaks them at the same places and recompiles as often, with us and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_program import DECODE, EAGER_WINDOWS, run

pytest.importorskip("torch")

# Prints all of Dynamo's counters, the reasons of breaks, and how often each frame was compiled and why again.
PROGRAM = f"""
import sys
import torch
import torch._dynamo
from torch.profiler import record_function
from torch._dynamo.utils import counters, get_compilation_metrics

STEP = {DECODE!r}
backend, fullgraph = sys.argv[1], True

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(512, 512)
    def forward(self, x):
        with record_function(STEP):
            return self.linear(x).relu()

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()
        self.scale = 1.0
    def forward(self, x):
        with record_function("region"):
            x = self.first(x)
        if not fullgraph:
            annotation = record_function(STEP)
            annotation.__enter__()
            torch._dynamo.graph_break()
            annotation.__exit__(None, None, None)
        return self.second(x) * self.scale

@record_function(STEP)
def decorated(x):
    return x + 1

class Scope:
    def __enter__(self):
        self.annotation = record_function(STEP)
        self.annotation.__enter__()
    def __exit__(self, *error):
        self.annotation.__exit__(*error)

def scoped(x):  # Dynamo gives this one up and runs it, still watching every function that it calls
    with Scope():
        return x + 3

def drive():
    model = Model()
    compiled = torch.compile(model, backend=backend, fullgraph=fullgraph)
    with torch.no_grad():
        for rows in (1, 2, 3, 7, 7, 7, 7, 7):
            with record_function(STEP):
                compiled(torch.ones(rows, 512))
            with record_function(STEP):
                torch.compile(decorated, backend=backend)(torch.ones(rows))
        if not fullgraph:
            torch.compile(scoped, backend=backend)(torch.ones(3))
        model.scale = 2.0
        with record_function(STEP):
            compiled(torch.ones(7, 512))

drive()
torch._dynamo.reset()
fullgraph = False
drive()
for name in sorted(counters):
    if name not in ("inductor",):
        print(name, sorted(counters[name].items()))
for metrics in get_compilation_metrics():
    print(metrics.compile_id, metrics.co_name, metrics.graph_op_count, metrics.recompile_reason, metrics.fail_type,
          metrics.guard_count)
"""


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_dynamo_compiles_the_same_and_its_compilations_are_rows(tmp_path: Path, backend: str) -> None:
    bare = run(tmp_path, PROGRAM, backend, agent=False, flags=("-W", "ignore"))
    ended = run(tmp_path, PROGRAM, backend, window=EAGER_WINDOWS, flags=("-W", "ignore"))
    assert bare.code == 0, bare.stderr
    assert "unique_graphs" in bare.stdout
    assert "graph_break" in bare.stdout
    assert (ended.code, ended.stdout) == (bare.code, bare.stdout)
    # The hooks were at work meanwhile.
    assert ended.hooks()["torch._dynamo.trace_rules"] == "ok"
    assert len(ended.rows("model")) == 1
    assert any(row["state"] == "saved" for row in ended.rows("window"))
    # Also those after torch._dynamo.reset(), which drops everybody's callbacks.
    compiles, steps = ended.rows("compile"), ended.rows("steps")
    inside = [sum(step["t0"] <= row["t0"] and row["t1"] <= step["t1"] for row in compiles) for step in steps]
    assert [step.get("c", 0) for step in steps] == inside
    assert sum(inside) == len(compiles) - 1  # `scoped` is called between steps
    assert inside[0] > 0
    assert any(inside[len(steps) // 2 :])


def test_dynamo_is_not_imported_for_a_program_that_does_not(tmp_path: Path) -> None:
    program = f"""
    import sys, torch
    from torch.profiler import record_function
    for _ in range(20):
        with record_function({DECODE!r}):
            torch.ones(2)
    print(sorted(name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))))
    """
    bare = run(tmp_path, program, agent=False)
    ended = run(tmp_path, program, window={"after_steps": 5, "after_s": 0})
    assert ended.stdout == bare.stdout
    assert ended.rows("window")


def test_no_window_opens_where_dynamo_watches_every_call(tmp_path: Path) -> None:
    program = f"""
    import torch, torch._dynamo
    from torch.profiler import record_function
    from torch._dynamo.utils import counters
    def step():
        with record_function({DECODE!r}):
            return torch.ones(2)
    class Scope:
        def __enter__(self):
            self.annotation = record_function({DECODE!r})
            self.annotation.__enter__()
        def __exit__(self, *error):
            self.annotation.__exit__(*error)
    def scoped(x):
        with Scope():
            return x + 3
    for _ in range(3):
        step()
    torch.compile(scoped, backend="eager")(torch.ones(3))
    print(sorted(counters["frames"].items()), sorted(counters["stats"].items()))
    step()
    """
    window = {"steps": 1, "after_steps": 1, "after_s": 0}
    bare = run(tmp_path, program, agent=False, flags=("-W", "ignore"))
    ended = run(tmp_path, program, window=window, flags=("-W", "ignore"))
    assert bare.code == 0, bare.stderr
    assert ended.stdout == bare.stdout
    *_, watched, last = ended.rows("steps")
    (opened,) = ended.rows("window")
    assert opened["state"] == "saved"
    assert watched["t1"] < opened["t0"] < last["t0"]
