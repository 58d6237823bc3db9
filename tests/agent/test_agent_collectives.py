"""Rows of collectives, in two real ranks."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from agent_program import BOOT, DECODE, Finished, run

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

# Rank 0 starts rank 1; both run BODY.
FRAME = """
import datetime, os, subprocess, sys, time
rank = int(sys.argv[2]) if len(sys.argv) > 2 else 0
other = None if rank else subprocess.Popen([sys.executable, *FLAGS, __file__, sys.argv[1], "1"], stdout=subprocess.PIPE)
import torch
import torch.distributed as dist
from torch.distributed import all_reduce
torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[1], rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=60))
t = torch.ones(1000)
BODY
dist.barrier()
dist.destroy_process_group()
if other is not None:
    assert other.wait() == 0
"""


def two_ranks(tmp_path: Path, body: str, *, agent: bool = True, flags: tuple[str, ...] = ()) -> Finished:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = FRAME.replace("FLAGS", repr(list(flags))).replace("BODY", body)
    ended = run(tmp_path, program, str(port), agent=agent, flags=flags)
    assert ended.code == 0, ended.stderr
    return ended


def by_rank(ended: Finished) -> list[list[dict[str, Any]]]:
    rows = ended.rows("collectives")
    return [[row for row in rows if row["rank"] == rank] for rank in (0, 1)]


EVERY_CALL = """
all_reduce(t); dist.all_reduce(t)
dist.all_gather([torch.empty(1000) for _ in range(2)], t)
dist.all_gather_into_tensor(torch.empty(2000), t)
dist.reduce_scatter(torch.empty(500), list(t.chunk(2)))
dist.reduce_scatter_tensor(torch.empty(500), t)
dist.broadcast(t, 0)
dist.reduce(t, 0)
dist.all_to_all_single(torch.empty(1000), t)
dist.gather(t, [torch.empty(1000) for _ in range(2)] if rank == 0 else None)
dist.barrier()
"""


def test_every_call_is_a_row_on_both_ranks_with_its_number_and_bytes(tmp_path: Path) -> None:
    ended = two_ranks(tmp_path, EVERY_CALL)
    assert ended.hooks()["torch.distributed"] == "ok"
    first, second = by_rank(ended)
    expected = [
        ("all_reduce", 4000), ("all_reduce", 4000), ("all_gather", 8000), ("all_gather_into_tensor", 8000),
        ("reduce_scatter", 4000), ("reduce_scatter_tensor", 4000), ("broadcast", 4000), ("reduce", 4000),
        ("all_to_all_single", 4000), ("gather", 8000), ("barrier", 0), ("barrier", 0),
    ]  # fmt: skip
    for rows in (first, second):
        assert [(row["op"], row["bytes"]) for row in rows] == expected
        assert [row["seq"] for row in rows] == list(range(1, len(expected) + 1))
        assert all(row["size"] == 2 and row["blocking"] and row["t0"] <= row["t1"] for row in rows)
    assert len({row["group"] for row in first + second}) == 1
    dist = sorted((row["rank"], row["world"], row["backend"]) for row in ended.process_rows("dist"))
    assert dist == [(0, 2, "gloo"), (1, 2, "gloo")]


def test_a_late_rank_keeps_the_other_blocked_in_the_call(tmp_path: Path) -> None:
    body = """
dist.barrier()
if rank == 1:
    time.sleep(0.5)
dist.all_reduce(t)
"""
    first, second = (rows[1] for rows in by_rank(two_ranks(tmp_path, body)))
    assert second["t0"] - first["t0"] > 200_000_000
    assert first["t1"] > second["t0"]


def test_a_call_with_async_op_has_the_time_of_its_wait_and_of_its_launch(tmp_path: Path) -> None:
    body = """
work = dist.all_reduce(t, async_op=True)
time.sleep(0.05)
work.wait()
forgotten = dist.all_reduce(t, async_op=True)
while not forgotten.is_completed():
    time.sleep(0.01)
del forgotten
"""
    for rows in by_rank(two_ranks(tmp_path, body)):
        waited, forgotten, _barrier = rows
        assert not waited["blocking"]
        assert waited["t0"] - waited["tl"] >= 50_000_000
        assert waited["t1"] >= waited["t0"]
        assert (forgotten["t0"], forgotten["t1"], forgotten["blocking"]) == (None, None, False)
        assert [row["seq"] for row in rows] == [1, 2, 3]


def test_sends_and_receives_are_numbered_by_pair_and_direction(tmp_path: Path) -> None:
    body = """
(dist.send if rank == 0 else dist.recv)(t, 1 - rank)
(dist.recv if rank == 0 else dist.send)(t, 1 - rank)
incoming = dist.irecv(torch.empty(1000), 1 - rank)
dist.isend(t, 1 - rank).wait()
incoming.wait()
"""
    first, second = by_rank(two_ranks(tmp_path, body))
    assert {(r["op"], r["seq"], r["peer"]) for r in first if "peer" in r} == {
        ("send", 1, 1), ("recv", 1, 1), ("isend", 2, 1), ("irecv", 2, 1),
    }  # fmt: skip
    assert {(r["op"], r["seq"], r["peer"]) for r in second if "peer" in r} == {
        ("recv", 1, 0), ("send", 1, 0), ("isend", 2, 0), ("irecv", 2, 0),
    }  # fmt: skip
    assert [row["seq"] for row in first if row["op"] == "barrier"] == [1]


def test_groups_have_numbers_of_their_own_and_ranks_outside_have_no_rows(tmp_path: Path) -> None:
    body = """
both, alone = dist.new_group([1, 0]), dist.new_group([1])
dist.all_reduce(t, group=both)
if rank == 1:
    dist.all_reduce(t, group=alone)
"""
    rows = [row for row in two_ranks(tmp_path, body).rows("collectives") if row["op"] == "all_reduce"]
    both = [row for row in rows if row["size"] == 2]
    alone = [row for row in rows if row["size"] == 1]
    assert len(both) == 2
    assert len(alone) == 1
    assert len({row["group"] for row in both}) == 1
    assert alone[0]["group"] != both[0]["group"]
    assert all(row["seq"] == 1 for row in rows)


OTHER_WAYS = """
import torch.distributed._functional_collectives as functional
everyone = [None, None]
dist.all_gather_object(everyone, {"rank": rank})
with dist._coalescing_manager():
    a, b = torch.ones(10), torch.ones(10)
    dist.all_reduce(a)
    dist.all_reduce(b)
total = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
ops = [dist.P2POp(dist.isend, t, 1 - rank), dist.P2POp(dist.irecv, torch.empty(1000), 1 - rank)]
for request in dist.batch_isend_irecv(ops):
    request.wait()
try:
    dist.all_reduce("no tensor")
except TypeError as error:
    kind = type(error).__name__
if rank == 0:
    print(everyone, a.sum().item(), b.sum().item(), (total + 0).tolist(), kind, dist.all_reduce.__name__,
          dist.all_reduce is dist.distributed_c10d.all_reduce, dist.all_reduce.__module__)
"""


def test_other_ways_to_communicate_do_as_they_do_without_us(tmp_path: Path) -> None:
    bare = two_ranks(tmp_path, OTHER_WAYS, agent=False, flags=("-W", "ignore"))
    ended = two_ranks(tmp_path, OTHER_WAYS, flags=("-W", "ignore"))
    assert ended.stdout == bare.stdout
    assert ended.hooks()["torch.distributed"] == "ok"
    # calls made at one time end together: rows of their own would be wrong
    assert ended.hooks()["torch.distributed coalescing"] == "missing"
    assert not any(row["op"] == "all_reduce" for row in ended.rows("collectives"))


FAILING = """
import traceback
try:
    dist.all_reduce("no tensor")
except TypeError as error:
    first = traceback.extract_tb(error.__traceback__)[1]
    code = dist.all_reduce.__code__
    if rank == 0:
        print(first.filename, first.name, code.co_firstlineno, first.lineno - code.co_firstlineno in range(10))
"""


def test_a_call_that_fails_shows_the_name_and_place_of_torchs_own_function(tmp_path: Path) -> None:
    bare = two_ranks(tmp_path, FAILING, agent=False)
    ended = two_ranks(tmp_path, FAILING)
    assert bare.stdout.startswith("/") and bare.stdout.endswith(" True\n")
    assert ended.stdout == bare.stdout


OWN_WORK = """
class Own(dist.distributed_c10d.Work):
    def wait(self, timeout):
        return super().wait(timeout)

class Inherited(dist.distributed_c10d.Work):
    pass

for work in (Own(), Inherited()):
    try:
        ended = work.wait(datetime.timedelta(milliseconds=1))
    except Exception as error:
        ended = type(error).__name__
    if rank == 0:
        print(ended)
"""


def test_a_class_of_the_programs_own_waits_as_it_does_without_us(tmp_path: Path) -> None:
    bare = two_ranks(tmp_path, OWN_WORK, agent=False)
    ended = two_ranks(tmp_path, OWN_WORK)
    assert "RecursionError" not in bare.stdout
    assert ended.stdout == bare.stdout
    assert ended.hooks()["torch.distributed"] == "ok"


COMPILED = f"""
import torch._dynamo
from torch._dynamo.utils import counters, get_compilation_metrics
from torch.profiler import record_function

def reduced(x):
    x = x * 2
    dist.all_reduce(x)
    return x + 1

def broken(x):
    x = x * 2
    dist.broadcast(x, 0)
    x = x + 1
    dist.barrier()
    return x.relu()

def gathered(x):
    out = torch.empty(2 * x.numel())
    dist.all_gather_into_tensor(out, x)
    return out * 2

results = []
for function in (reduced, broken, gathered):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager")
    for size in (4, 4, 5, 6):
        with record_function({DECODE!r}):
            results.append(compiled(torch.ones(size)).sum().item())
if rank == 0:
    print(results)
    for name in ("frames", "stats", "graph_break", "unimplemented"):
        print(name, sorted(counters[name].items()))
    for metrics in get_compilation_metrics():
        print(metrics.compile_id, metrics.co_name, metrics.graph_op_count, metrics.recompile_reason, metrics.fail_type)
"""


def test_dynamo_compiles_the_same_graphs_around_collectives(tmp_path: Path) -> None:
    bare = two_ranks(tmp_path, COMPILED, agent=False, flags=("-W", "ignore"))
    ended = two_ranks(tmp_path, COMPILED, flags=("-W", "ignore"))
    assert "graph_break" in bare.stdout
    assert ended.stdout == bare.stdout
    assert ended.hooks()["torch.distributed"] == "ok"
    # calls outside of graphs are rows all the same
    assert {row["op"] for row in ended.rows("collectives")} >= {"broadcast", "barrier"}


def test_a_row_that_cannot_be_made_turns_the_hook_off_and_leaves_the_program_be(tmp_path: Path) -> None:
    body = """
sys.modules["torch.distributed.distributed_c10d"]._get_process_group_name = None
dist.all_reduce(t); dist.all_reduce(t)
if rank == 0:
    print(t[0].item())
"""
    ended = two_ranks(tmp_path, body)
    assert ended.stdout == "4.0\n"
    assert ended.hooks()["torch.distributed"] == "failed"
    assert ended.rows("collectives") == []


def test_torch_distributed_is_not_imported_on_the_programs_behalf(tmp_path: Path) -> None:
    program = "import sys; print('torch' in sys.modules, 'torch.distributed' in sys.modules)"
    assert run(tmp_path, program).stdout == "False False\n"
    assert BOOT.is_dir()
