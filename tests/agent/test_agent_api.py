"""`spyreprof_agent`: what a program marks becomes rows, and nothing that it passes can hurt it."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_program import DECODE, EAGER_WINDOWS, ROOT, Finished, run

API = ROOT / "collectors"


def names(ended: Finished) -> list[str]:
    assert (ended.code, ended.stderr) == (0, ""), ended.stderr
    return [row["n"] for row in ended.rows("steps")]


def use_reasons(ended: Finished) -> list[str]:
    hooks = [row for row in ended.process_rows("hook") if row["name"] == "spyreprof_agent arguments"]
    assert all(row["state"] == "failed" for row in hooks)
    return [row["reason"] for row in hooks]


def test_steps_carry_what_is_known_of_them_and_leave_out_the_rest(tmp_path: Path) -> None:
    program = """
    import spyreprof_agent, time
    before = time.monotonic_ns()
    with spyreprof_agent.step():
        pass
    with spyreprof_agent.step("prefill", context_requests=2, context_tokens=10, context_seq_len_sum=12,
                              context_q_k_sum=60):
        pass
    with spyreprof_agent.step("decode", generation_requests=3, generation_tokens=9, executed_context_tokens=0,
                              executed_generation_requests=4, executed_generation_seq_len_sum=128,
                              speculative_tokens=6):
        pass
    step = spyreprof_agent.step("mixed", context_tokens=5, generation_requests=3, generation_tokens=6,
                                generation_seq_len_sum=10**18)
    for _ in range(2):
        step.begin()
        step.end()
    print(before, time.monotonic_ns())
    """
    ended = run(tmp_path, program)
    assert names(ended) == [
        "spyreprof_step[by=api]",
        "spyreprof_step[by=api ph=prefill cr=2 ct=10 cs=12 cqk=60]",
        "spyreprof_step[by=api ph=decode gr=3 gt=9 ect=0 egr=4 egs=128 st=6]",
        *["spyreprof_step[by=api ph=mixed ct=5 gr=3 gt=6 gs=1000000000000000000]"] * 2,
    ]
    before, after = map(int, ended.stdout.split())
    times = [time for row in ended.rows("steps") for time in (row["t0"], row["t1"])]
    assert times == sorted(times)
    assert before < times[0]
    assert times[-1] < after
    assert ended.hooks()["spyreprof_agent"] == "ok"


def test_steps_in_threads_tasks_generators_and_with_exceptions_are_rows(tmp_path: Path) -> None:
    program = """
    import asyncio, threading, spyreprof_agent
    def step(tokens):
        return spyreprof_agent.step("prefill", context_tokens=tokens)
    def work():
        with step(1):
            pass
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    async def task(tokens):
        with step(tokens):
            await asyncio.sleep(0.05)
    async def both():
        await asyncio.gather(task(2), task(3))
    asyncio.run(both())
    def tokens():
        with step(4):
            yield 1
    print(list(tokens()))
    for _ in tokens():
        break
    error = KeyError("as ever")
    try:
        with step(5):
            raise error
    except KeyError as caught:
        print(caught is error, caught.__context__)
    with step(6):
        pass
    """
    ended = run(tmp_path, program)
    assert ended.stdout == "[1]\nTrue None\n"
    assert [int(name.partition("ct=")[2].rstrip("]")) for name in names(ended)] == [1, 2, 3, 4, 4, 5, 6]


def test_only_the_outermost_step_of_a_context_is_a_row(tmp_path: Path) -> None:
    program = """
    import spyreprof_agent
    with spyreprof_agent.step("mixed"):
        with spyreprof_agent.step("decode"), spyreprof_agent.step("prefill"):
            pass
        with spyreprof_agent.phase("prefill"):
            pass
    with spyreprof_agent.phase("decode"):
        pass
    """
    ended = run(tmp_path, program)
    assert names(ended) == ["spyreprof_step[by=api ph=mixed]", "spyreprof_step[by=api ph=decode]"]
    # Inside a step it is a part of it.
    assert [row["n"] for row in ended.rows("phases")] == ["prefill"]


def test_a_step_that_is_forgotten_hides_no_later_one(tmp_path: Path) -> None:
    program = """
    import spyreprof_agent
    def forgets():
        spyreprof_agent.step("prefill").begin()
    forgets()
    again = spyreprof_agent.step("mixed").begin()
    again.begin()
    again.end()
    again.end()
    with spyreprof_agent.step("decode"):
        pass
    """
    ended = run(tmp_path, program)
    assert names(ended) == ["spyreprof_step[by=api ph=mixed]", "spyreprof_step[by=api ph=decode]"]
    assert use_reasons(ended) == ["a step began again before it had ended: the first of the two is not recorded"]


def test_wrong_arguments_are_unknown_and_said_once(tmp_path: Path) -> None:
    program = """
    import spyreprof_agent
    class Odd:
        def __index__(self): raise RuntimeError("do not touch")
        __eq__ = __hash__ = __len__ = __bool__ = __index__
    for _ in range(3):
        for wrong in (-1, 10**12, True, 2.0, "8", [], Odd()):
            with spyreprof_agent.step("decode", generation_requests=wrong):
                pass
        for wrong in ("Decode", "", 5, [], Odd()):
            with spyreprof_agent.step(wrong, generation_requests=1):
                pass
        for wrong in ("Secret name", "a" * 33, "9a", "", None, 7, [], Odd()):
            with spyreprof_agent.phase(wrong):
                pass
    r = spyreprof_agent.request(prompt_tokens=-3).begin()
    r.finished(output_tokens="many", reason="Secret reason")
    r.finished(output_tokens=3)
    spyreprof_agent.request().finished()
    """
    ended = run(tmp_path, program)
    assert set(names(ended)) == {"spyreprof_step[by=api ph=decode]", "spyreprof_step[by=api gr=1]"}
    assert len(names(ended)) == 3 * 12
    assert use_reasons(ended) == [
        "generation_requests is no whole number from 0 to 999999999999: unknown",
        "the phase of a step is none of prefill, decode and mixed: unknown",
        "the name of a phase is no short identifier: it is not recorded",
        "prompt_tokens is no whole number from 0 to 999999999999: unknown",
        "output_tokens is no whole number from 0 to 999999999999: unknown",
    ]
    (request,) = ended.rows("requests")
    assert (request["prompt"], request["output"], request["reason"]) == (None, None, "other")
    assert not ended.rows("phases")
    everything = "".join(path.read_text() for path in (ended.folder / "shards").iterdir())
    assert "Secret" not in everything


def test_whole_numbers_of_numpy_are_counts(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    program = """
    import numpy, spyreprof_agent
    with spyreprof_agent.step(generation_requests=numpy.int64(4), context_tokens=numpy.float64(2)):
        pass
    """
    ended = run(tmp_path, program)
    assert names(ended) == ["spyreprof_step[by=api gr=4]"]
    assert len(use_reasons(ended)) == 1


def test_a_request_is_a_row_with_its_moments(tmp_path: Path) -> None:
    program = """
    import spyreprof_agent
    with spyreprof_agent.request(prompt_tokens=7, cached_tokens=4, max_tokens=9) as whole:
        whole.scheduled()
        for _ in range(3):
            whole.first_token()
    whole.finished(output_tokens=3, reasoning_tokens=1, reason="stop", preemptions=2)
    try:
        with spyreprof_agent.request(prompt_tokens=8) as aborted:
            aborted.scheduled()
            raise KeyError
    except KeyError:
        aborted.finished(output_tokens=9)
    left_open = spyreprof_agent.request(prompt_tokens=9).begin()
    with spyreprof_agent.request(prompt_tokens=10):
        pass
    """
    ended = run(tmp_path, program)
    assert ended.stderr == ""
    whole, aborted, left_open, left = ended.rows("requests")
    moments = [whole[key] for key in ("t0", "ts", "tf", "t1")]
    assert moments == sorted(moments)
    del whole["t0"], whole["ts"], whole["tf"], whole["t1"]
    assert whole == {
        "k": "request", "prompt": 7, "cached": 4, "output": 3, "reasoning": 1, "reason": "stop", "max_tokens": 9,
        "preemptions": 2,
    }  # fmt: skip
    assert (left["max_tokens"], left["preemptions"]) == (None, None)
    assert (aborted["prompt"], aborted["output"], aborted["reason"]) == (8, None, "abort")
    assert aborted["t1"] is not None
    assert [(row["prompt"], row["t1"], row["reason"]) for row in (left_open, left)] == [
        (9, None, None),
        (10, None, None),
    ]


def test_what_is_open_in_a_forked_child_is_its_parents(tmp_path: Path) -> None:
    program = """
    import os, spyreprof_agent
    spyreprof_agent.request(prompt_tokens=5).begin()
    with spyreprof_agent.step("prefill"):
        pid = os.fork()
        if pid == 0:
            with spyreprof_agent.step("decode"):
                pass
            os._exit(0)
        os.waitpid(pid, 0)
    """
    ended = run(tmp_path, program)
    assert sorted(names(ended)) == ["spyreprof_step[by=api ph=decode]", "spyreprof_step[by=api ph=prefill]"]
    assert len(ended.rows("requests")) == 1


def test_the_recorder_that_fails_is_off_and_the_program_goes_on(tmp_path: Path) -> None:
    program = """
    import spyreprof_agent
    request = spyreprof_agent.request().begin()
    spyreprof_agent._recorder.steps._rows = None
    for _ in range(3):
        with spyreprof_agent.step("decode"):
            print("went on")
    request.finished()
    """
    ended = run(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "went on\n" * 3, "")
    failed = [row["name"] for row in ended.process_rows("hook") if row["state"] == "failed"]
    assert failed == ["spyreprof_agent"]


def test_the_copy_of_the_recording_spyreprof_wins_over_an_installed_one(tmp_path: Path) -> None:
    other = tmp_path / "site"
    (other / "spyreprof_agent").mkdir(parents=True)
    (other / "spyreprof_agent" / "__init__.py").write_text("raise RuntimeError('an old one')")
    program = """
    import spyreprof_agent, sys
    with spyreprof_agent.step("decode"):
        print(spyreprof_agent.__file__)
    """
    ended = run(tmp_path, program, paths=(other,))
    assert names(ended) == ["spyreprof_step[by=api ph=decode]"]
    assert ended.stdout == f"{API / 'spyreprof_agent' / '__init__.py'}\n"


def test_a_copy_beside_the_program_that_is_of_another_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "spyreprof_agent.py").write_text("_PROTOCOL, _recorder = 0, None")
    ended = run(tmp_path, "import spyreprof_agent; print(spyreprof_agent._recorder)")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "None\n", "")
    assert ended.hooks()["spyreprof_agent"] == "missing"


def test_without_a_recording_the_package_imports_nothing_and_does_nothing(tmp_path: Path) -> None:
    program = f"""
    import sys
    sys.path.insert(0, {str(API)!r})
    before = set(sys.modules)
    import spyreprof_agent
    print(sorted(set(sys.modules) - before - {{"__future__"}}))
    with spyreprof_agent.step(object(), generation_requests="x"), spyreprof_agent.phase(5):
        with spyreprof_agent.request("many") as r:
            r.scheduled(), r.first_token(), r.finished(-1), r.end()
    """
    ended = run(tmp_path, program, agent=False, flags=("-S", "-E"))
    assert (ended.code, ended.stdout, ended.stderr) == (0, "['spyreprof_agent']\n", "")
    assert not list((ended.folder / "shards").iterdir())


@pytest.mark.parametrize("order", ["import torch, spyreprof_agent", "import spyreprof_agent, torch"])
def test_with_torch_a_marked_step_hides_the_engines_own_annotation_and_appears_in_traces(
    tmp_path: Path, order: str
) -> None:
    pytest.importorskip("torch")
    from spyreprof.trace.reader import read

    program = f"""
    {order}
    from torch.profiler import record_function
    for _ in range(12):
        with spyreprof_agent.step("decode", generation_requests=1):
            with record_function({DECODE!r}):
                torch.ones(8, 8) @ torch.ones(8, 8)
    with record_function({DECODE!r}), spyreprof_agent.step("prefill"):
        pass
    """
    ended = run(tmp_path, program, window=EAGER_WINDOWS)
    step = "spyreprof_step[by=api ph=decode gr=1]"
    assert names(ended) == [step] * 12 + [DECODE]
    assert ended.process_rows("torch")
    windows = [row for row in ended.rows("window") if row["state"] == "saved"]
    assert windows
    table = read(ended.folder / windows[0]["file"])
    assert step in table.name_values
    assert any(row.get("p") for row in ended.rows("steps"))


def test_a_step_inside_a_compiled_function_breaks_no_graph(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = """
    import torch, spyreprof_agent
    from torch._dynamo.utils import counters
    def inside(x):
        with spyreprof_agent.step("decode", generation_requests=1), spyreprof_agent.phase("sample"):
            return x + 1
    def around(x):
        with spyreprof_agent.step("decode"):
            return compiled(x)
    compiled = torch.compile(inside, backend="eager", fullgraph=True)
    print(around(torch.ones(3)), inside(torch.ones(3)))
    for name in ("stats", "frames", "graph_break", "unimplemented"):
        print(name, sorted(counters[name].items()))
    """
    bare = run(tmp_path, program, agent=False, paths=(API,))
    ended = run(tmp_path, program, window=EAGER_WINDOWS)
    assert "unique_graphs" in bare.stdout
    assert (ended.code, ended.stdout, ended.stderr) == (bare.code, bare.stdout, bare.stderr)
    assert names(ended) == ["spyreprof_step[by=api ph=decode]", "spyreprof_step[by=api ph=decode gr=1]"]


def test_every_python_that_may_meet_the_package_can_read_it() -> None:
    """The program's own Python may be older than those that are recorded."""
    import ast

    source = (API / "spyreprof_agent" / "__init__.py").read_text()
    ast.parse(source, feature_version=(3, 7))
