"""Step rows: from annotations, with or without a profiler, and nothing else of the program."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_program import DECODE, PREFILL, run

pytest.importorskip("torch")

HEAD = f"""
    import threading, time
    import torch
    from torch.profiler import record_function
    DECODE, PREFILL = {DECODE!r}, {PREFILL!r}
"""


def test_every_step_annotation_gives_a_row_and_no_other_text_gets_in(tmp_path: Path) -> None:
    program = f"""{HEAD}
    before = time.monotonic_ns()
    foreign = "secret prompt", "execute_order_66", "step[DECODE bs=2] secret", "execute_context_1(2)"
    newer = "step[DECODE bs=2]", "execute_context_1(8)_generation_2(2)", "execute_new_1_cached_4"
    for name in (PREFILL, *foreign, DECODE, *newer):
        with record_function(name):
            torch.ones(2)
    print(before, time.monotonic_ns())
    """
    ended = run(tmp_path, program)
    before, after = map(int, ended.stdout.split())
    steps = ended.rows("steps")
    assert [row["n"] for row in steps] == [
        PREFILL,
        DECODE,
        "step[DECODE bs=2]",
        "execute_context_1(8)_generation_2(2)",
        "execute_new_1_cached_4",
    ]
    times = [time for row in steps for time in (row["t0"], row["t1"])]
    assert times == sorted(times)
    assert before < times[0]
    assert times[-1] < after
    assert not any(set(row) - {"t0", "t1", "n"} for row in steps)
    everything = "".join(path.read_text() for path in (ended.folder / "shards").iterdir())
    assert "secret" not in everything


def test_steps_as_decorator_in_threads_and_with_an_exception_are_rows(tmp_path: Path) -> None:
    program = f"""{HEAD}
    @record_function(DECODE)
    def step():
        return 5
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    try:
        with record_function(PREFILL):
            raise KeyError("as ever")
    except KeyError as error:
        print(step(), error)
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout) == (0, "5 'as ever'\n")
    assert [row["n"] for row in ended.rows("steps")] == [DECODE, PREFILL, DECODE]


def test_the_program_prints_the_same_bytes_with_and_without_the_agent(tmp_path: Path) -> None:
    program = f"""{HEAD}
    import sys, warnings
    warnings.warn("as ever")
    model = torch.nn.Linear(600, 600)
    for step in range(40):
        with record_function(DECODE):
            model(torch.ones(1, 600))
        time.sleep(0.005)
    print("to stdout", torch.get_num_threads(), [thread.name for thread in threading.enumerate()])
    print("to stderr", file=sys.stderr)
    sys.exit(4)
    """
    bare = run(tmp_path, program, agent=False)
    ended = run(tmp_path, program, window={"after_steps": 5, "after_s": 0})
    assert bare.code == 4
    assert (ended.code, ended.stdout, ended.stderr) == (bare.code, bare.stdout, bare.stderr)
    assert ended.rows("window")[0]["state"] == "saved"


def test_what_the_first_step_tells_of_threads_and_versions(tmp_path: Path) -> None:
    program = f"""{HEAD}
    import os
    torch.set_num_threads(1)
    for step in range(600):
        if step == 300:
            torch.set_num_threads(2)
        with record_function(DECODE):
            pass
    print(torch.__version__, *sorted(os.sched_getaffinity(0)))
    """
    ended = run(tmp_path, program)
    version, *affinity = ended.stdout.split()
    told = ended.process_rows("torch")
    assert [row["threads"] for row in told] == [1, 2]
    assert told[0]["affinity"] == [int(cpu) for cpu in affinity]
    assert (told[0]["device_kind"], told[0]["cuda_built"]) == ("cpu", "+cu" in version)
    assert [(row["torch"], row["vllm"]) for row in ended.process_rows("versions")] == [(version, None)]


def test_a_failing_hook_goes_off_is_recorded_and_the_program_goes_on(tmp_path: Path) -> None:
    program = f"""{HEAD}
    import sys
    steps = sys.modules["_spyreprof.torch_steps"]
    function = record_function.__exit__
    cells = dict(zip(function.__code__.co_freevars, function.__closure__))
    cells["steps"].cell_contents._rows = None
    for _ in range(3):
        with record_function(DECODE):
            torch.ones(2)
    print("went on")
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "went on\n", "")
    failed = [row for row in ended.process_rows("hook") if row["state"] == "failed"]
    assert [row["name"] for row in failed] == ["torch.record_function"]
    assert "NoneType" in failed[0]["reason"]


def test_a_torch_without_the_class_is_said_to_miss_it(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '0.0.1'")
    ended = run(tmp_path, "import torch; print(torch.__version__)")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "0.0.1\n", "")
    assert ended.hooks()["torch.record_function"] == "missing"


def test_torchscript_reads_the_class_as_before(tmp_path: Path) -> None:
    program = f"""{HEAD}
    @torch.jit.script
    def double(x: torch.Tensor):
        with torch.autograd.profiler.record_function("region"):
            return x * 2
    print(double(torch.ones(2)), double.code)
    """
    bare = run(tmp_path, program, agent=False, flags=("-W", "ignore"))
    ended = run(tmp_path, program, flags=("-W", "ignore"))
    assert "region" in bare.stdout
    assert (ended.code, ended.stdout) == (bare.code, bare.stdout)


def test_a_forked_child_of_a_program_with_torch_writes_its_own_steps(tmp_path: Path) -> None:
    program = f"""{HEAD}
    import os
    with record_function(PREFILL):
        pass
    if os.fork() == 0:
        with record_function(DECODE):
            pass
        os._exit(0)
    os.wait()
    """
    ended = run(tmp_path, program, environment={"OMP_NUM_THREADS": "1"})
    assert ended.code == 0, ended.stderr
    shards = {path.name: path.read_text() for path in (ended.folder / "shards").glob("steps-*")}
    assert sorted(text.count("\n") for text in shards.values()) == [1, 1]
    assert sum(DECODE in text for text in shards.values()) == 1


MODELS = """
    class Decoder(torch.nn.Module):
        def __init__(self, tied=False):
            super().__init__()
            self.embed = torch.nn.Embedding(1000, 512)
            self.block = torch.nn.Linear(512, 512, bias=False, dtype=torch.float64)
            self.head = torch.nn.Linear(512, 1000, bias=False)
            if tied:
                self.head.weight = self.embed.weight
        def forward(self, tokens):
            return self.head(self.block(self.embed(tokens).double()).float())
    class Runner:
        def __init__(self, model):
            self.model = model
    class Engine:
        def __init__(self, model):
            self.runner = Runner(model)
            self.small = torch.nn.Linear(2, 2)
        def step(self):
            with record_function(DECODE):
                self.runner.model(torch.tensor([1]))
"""
TABLE, BLOCK = 1000 * 512 * 4, 512 * 512 * 8


@pytest.mark.parametrize(
    "ways",
    ["engine = Engine(Decoder()); step = engine.step", "engine = Engine(torch.compile(Decoder(), backend='eager'))"],
)
def test_parameter_bytes_are_those_of_the_outermost_module_with_embeddings_apart(tmp_path: Path, ways: str) -> None:
    program = f"""{HEAD}{MODELS}
    {ways}
    for _ in range(4):
        engine.step()
    """
    (row,) = run(tmp_path, program).rows("model")
    assert row["module"] == "Decoder"
    assert row["parameter_bytes"] == {"float32": 2 * TABLE, "float64": BLOCK}
    assert row["embedding_bytes"] == TABLE


def test_a_table_tied_to_the_output_head_is_read_whole_and_no_embedding(tmp_path: Path) -> None:
    program = f"""{HEAD}{MODELS}
    def serve(model):
        kept = locals()
        for _ in range(4):
            with record_function(DECODE):
                model(torch.tensor([1]))
        print(sorted(kept))
    serve(Decoder(tied=True))
    """
    ended = run(tmp_path, program)
    (row,) = ended.rows("model")
    assert row["parameter_bytes"] == {"float32": TABLE, "float64": BLOCK}
    assert row["embedding_bytes"] == 0
    assert "model" in ended.stdout


def test_looking_for_the_model_keeps_no_tensor_alive(tmp_path: Path) -> None:
    program = f"""{HEAD}{MODELS}
    import weakref
    model = Decoder()
    def step():
        activation = torch.ones(100)
        watched = weakref.ref(activation)
        with record_function(DECODE):
            model(torch.tensor([1]))
        del activation
        return watched() is None
    print({{step() for _ in range(5)}})
    """
    ended = run(tmp_path, program)
    assert ended.stdout == "{True}\n"
    assert len(ended.rows("model")) == 1
