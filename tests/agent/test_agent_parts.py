"""The agent's pure parts: encoding of rows, step names, and when a window opens."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Literal

import pytest
from agent_program import BOOT, DECODE, PREFILL
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(BOOT))
from _spyreprof.model_facts import _children
from _spyreprof.rows import encode, encode_step
from _spyreprof.step_names import MAX_COUNT, MAX_SUM, PREFIXES, is_step, kind_of, step_name
from _spyreprof.window_policy import WindowPolicy, WindowSettings

sys.path.remove(str(BOOT))

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), VALUES))
def test_rows_are_the_json_that_the_standard_library_reads(row: dict[str, object]) -> None:
    line = encode(row)
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == row


def test_a_number_that_is_none_is_written_as_missing() -> None:
    assert encode({"a": float("nan"), "b": float("inf")}) == '{"a":null,"b":null}'


def test_a_lone_surrogate_survives_and_other_types_are_refused() -> None:
    assert json.loads(encode({"path": "/tmp/\udcff"})) == {"path": "/tmp/\udcff"}
    with pytest.raises(TypeError):
        encode({"a": object()})


def test_step_rows_leave_out_what_did_not_happen() -> None:
    assert json.loads(encode_step((1, 2, DECODE, 0, False))) == {"t0": 1, "t1": 2, "n": DECODE}
    assert json.loads(encode_step((1, 2, DECODE, 3, True))) == {"t0": 1, "t1": 2, "n": DECODE, "c": 3, "p": 1}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (DECODE, "generation"),
        (PREFILL, "context"),
        ("execute_context_0(0)_generation_5(5)", "generation"),
        ("execute_context_2(300)_generation_5(5)", "context"),
        ("execute_new_0_cached_3", "generation"),
        ("execute_new_1_cached_3", "context"),
        ("step[DECODE bs=16]", "generation"),
        ("step[EXTEND bs=2 toks=4096]", "context"),
        ("step[DECODE bs=2 g_sqsq=2 g_sqsk=30 g_sk=30]", "generation"),
        ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]", "context"),
        ("spyreprof_step[by=api ph=prefill]", "context"),
        ("spyreprof_step[by=api ph=mixed gr=4]", "context"),
        ("spyreprof_step[by=generate ph=decode cr=0 ct=0 cs=0 cqk=0 gr=1 gt=1 gs=8]", "generation"),
        ("spyreprof_step[by=api ct=5 gr=0]", "context"),
        ("spyreprof_step[by=api cr=0 gr=2]", "generation"),
        ("execute_context_2(300)_generation_5(5) and more", None),
        ("execute_context_2(300)_generation_5(5)\n", None),
        ("execute_model", None),
        ("step[DECODE bs=two]", None),
        ("step[secret bs=2]", None),
    ],
)
def test_names_are_steps_only_when_an_engine_spells_them_so(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind
    assert bool(is_step(name)) == (kind is not None)
    if kind is not None:
        assert name.startswith(PREFIXES)


@pytest.mark.parametrize("name", ["spyreprof_step[by=api]", "spyreprof_step[by=api gr=2]"])
def test_a_step_that_may_or_may_not_hold_prompts_is_of_no_kind(name: str) -> None:
    assert is_step(name)
    assert kind_of(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "spyreprof_step[]",
        "spyreprof_step[by=secret]",
        "spyreprof_step[by=api ph=secret]",
        "spyreprof_step[by=api gr=-1]",
        "spyreprof_step[by=api gr=1 cr=1]",
        "spyreprof_step[by=api secret=1]",
        "spyreprof_step[by=api gr=1] and more",
    ],
)
def test_our_own_grammar_takes_its_fields_in_order_and_no_other_text(name: str) -> None:
    assert not is_step(name)


@pytest.mark.parametrize("phase", [None, "prefill", "decode", "mixed"])
@pytest.mark.parametrize("by", ["api", "generate"])
def test_what_the_agent_spells_the_reader_reads(by: Literal["api", "generate"], phase: str | None) -> None:
    from spyreprof.trace.annotations import parse_step_name

    name = step_name(by, phase, (1, 2, MAX_SUM, 4, 5, MAX_COUNT, 7))
    assert is_step(name)
    work = parse_step_name(name)
    assert work is not None
    assert work[:7] == (1, 2, MAX_SUM, 4, 5, MAX_COUNT, 7)
    assert parse_step_name(step_name(by, phase)) is not None


MS = 1_000_000


def policy_after(past_steps: int, step_ms: int = 10, **settings: float) -> tuple[WindowPolicy, int]:
    policy = WindowPolicy(WindowSettings.chosen(dict(settings)))
    for number in range(past_steps):
        policy.step_ended("generation", number * 10 * MS, (number * 10 + step_ms) * MS, compiles=0)
    return policy, past_steps * 10 * MS


def test_no_window_before_both_the_steps_and_the_time_of_warming_up() -> None:
    policy, now_ns = policy_after(499, after_steps=20, after_s=5)
    assert policy.steps_wanted("generation", now_ns) == (0, None)
    policy, now_ns = policy_after(500, after_steps=20, after_s=5)
    assert policy.steps_wanted("generation", now_ns) == (1, None)
    policy, now_ns = policy_after(500, after_steps=501, after_s=5)
    assert policy.steps_wanted("generation", now_ns) == (0, None)


def test_no_window_soon_after_a_compilation() -> None:
    policy, now_ns = policy_after(500)
    policy.step_ended("generation", now_ns, now_ns + 10 * MS, compiles=1)
    for _ in range(9):
        assert policy.steps_wanted("generation", now_ns) == (0, None)
        policy.step_ended("generation", now_ns, now_ns + 10 * MS, compiles=1)
    policy.step_ended("generation", now_ns, now_ns + 10 * MS, compiles=1)
    assert policy.steps_wanted("generation", now_ns) == (1, None)


def test_a_kind_of_step_that_was_not_seen_is_not_waited_for_by_the_other() -> None:
    policy, now_ns = policy_after(500)
    assert policy.steps_wanted("context", now_ns) == (0, None)
    assert policy.steps_wanted("generation", now_ns) == (1, None)


def test_the_first_window_counts_and_the_second_fits() -> None:
    policy, now_ns = policy_after(500, operators=1000, steps=4)
    policy.opened("generation", now_ns)
    assert policy.steps_wanted("generation", now_ns) == (0, None)  # not yet counted
    assert policy.closed("generation", 1, 400, now_ns) is None
    assert policy.steps_wanted("generation", now_ns) == (2, None)
    policy.opened("generation", now_ns)
    assert policy.closed("generation", 2, 800, now_ns) is None
    assert policy.steps_wanted("generation", now_ns + 60_000 * MS) == (0, None)


def test_a_window_that_recorded_nothing_is_tried_again() -> None:
    policy, now_ns = policy_after(500)
    policy.opened("generation", now_ns)
    assert policy.closed("generation", 0, None, now_ns) is None
    later_ns = now_ns + 5_000 * MS
    assert policy.steps_wanted("generation", now_ns) == (0, None)
    assert policy.steps_wanted("generation", later_ns) == (1, None)


def test_the_other_kind_rests_and_all_is_done_in_the_end() -> None:
    policy, now_ns = policy_after(500, steps=1, between_s=5)
    for number in range(3):
        policy.step_ended("context", now_ns, now_ns + number * MS, compiles=0)
    policy.opened("generation", now_ns)
    assert policy.closed("generation", 1, 50, now_ns) is None
    assert policy.steps_wanted("context", now_ns + 4_999 * MS) == (0, None)
    assert policy.steps_wanted("context", now_ns + 5_000 * MS) == (1, None)
    policy.opened("context", now_ns)
    assert not policy.done()
    policy.closed("context", 1, 50, now_ns)
    assert policy.done()


def test_long_steps_are_refused_once_in_words_and_recorded_when_they_got_short() -> None:
    policy, now_ns = policy_after(500, step_ms=600)
    assert policy.steps_wanted("generation", now_ns) == (0, "recent steps are longer than 0.5 s")
    assert policy.steps_wanted("generation", now_ns) == (0, None)
    for _ in range(3):
        policy.step_ended("generation", now_ns, now_ns + 10 * MS, compiles=0)
    assert policy.steps_wanted("generation", now_ns) == (1, None)


def test_settings_that_are_no_numbers_are_left_at_their_defaults() -> None:
    chosen = WindowSettings.chosen(
        {"steps": "4; rm", "operators": None, "max_step_s": 0.1, "other": 3, "after_s": True}
    )
    assert chosen == WindowSettings(max_step_s=0.1)


class Holder:
    def __init__(self, size: int) -> None:
        self.__dict__ = dict.fromkeys(map(str, range(size)), 0)


@pytest.mark.parametrize("container", [dict.fromkeys(range(200_000)), set(range(200_000)), Holder(200_000)])
def test_a_huge_container_is_not_copied_to_look_at_its_first_items(container: object) -> None:
    tracemalloc.start()
    try:
        items = list(_children(container))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(items) == 256
    assert peak_bytes < 200_000


def test_every_module_of_the_agent_is_short() -> None:
    for path in Path(BOOT).rglob("*.py"):
        assert len(path.read_text().splitlines()) < 400, path


def test_a_hook_that_fails_to_install_leaves_the_others_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model hook breaks: it is named, and the profiler windows are still set up."""
    from types import SimpleNamespace

    from _spyreprof import dynamo, model_facts, torch_hooks, torch_steps, windows

    failed: list[str] = []
    installed: list[str] = []
    process = SimpleNamespace(
        hook_failed=lambda name, error: failed.append(name), hook=lambda *_: None, note=lambda *_, **__: None
    )
    agent = SimpleNamespace(process=process, imports=SimpleNamespace(when_imported=lambda *_: None))

    def broken(*_: object) -> None:
        raise RuntimeError("this torch is different")

    monkeypatch.setattr(torch_steps, "install", lambda *_: object())
    monkeypatch.setattr(dynamo, "install", lambda *_: None)
    monkeypatch.setattr(model_facts, "ModelFacts", broken)
    monkeypatch.setattr(torch_hooks, "options", lambda: {"window": {}})
    monkeypatch.setattr(windows, "Windows", lambda *_: SimpleNamespace(install=lambda: installed.append("windows")))
    torch_hooks.install(agent, SimpleNamespace(__version__="2.13.0"))
    assert failed == [model_facts.HOOK]
    assert installed == ["windows"]


@pytest.mark.parametrize("name", ["Steps", "Requests"])
def test_two_threads_that_ask_at_once_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from _spyreprof import install

    module = importlib.import_module(f"_spyreprof.{name.lower()}")
    make, both = getattr(module, name), threading.Barrier(2)

    def make_in_both(agent: install.Agent) -> object:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=1)
        return make(agent)

    monkeypatch.setattr(module, name, make_in_both)
    agent = install.Agent(str(tmp_path), "test")
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(getattr(agent, name.lower()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] is found[1]


def test_a_rank_that_cannot_be_told_is_a_hook_row_and_costs_the_program_nothing() -> None:
    from types import SimpleNamespace

    from _spyreprof.collectives import Collectives, _after

    failed: list[tuple[str, str]] = []
    process = SimpleNamespace(hook_failed=lambda name, error: failed.append((name, str(error))))
    agent = SimpleNamespace(process=process, writer=SimpleNamespace(buffer=lambda _: [], wake=None))

    def get_rank() -> int:
        raise ValueError("a backend that cannot say")

    def init_process_group(backend: str) -> str:
        return f"{backend} is up"

    collectives = Collectives(agent, None, SimpleNamespace(get_rank=get_rank))
    assert _after(init_process_group, collectives._tell_rank)("own") == "own is up"
    assert failed == [("torch.distributed rank", "a backend that cannot say")]
