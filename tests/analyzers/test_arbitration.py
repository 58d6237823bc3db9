"""Advice that cannot be followed together never appears together, and what is held back is said."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from spyreprof import registry
from spyreprof.findings import Advice, Finding
from spyreprof.rules import RuleBook
from spyreprof_analyzers.arbitration import arbitrate
from spyreprof_analyzers.context import NOTHING_AGAINST

RULES = registry.rules()
ADVISING = sorted(rule.id for rule in RULES.rules if rule.catalogue is not None)


def advice(setting: str, start: float | str | None, to: float | str) -> Advice:
    return Advice(
        id=setting, setting=setting, from_=start, to=to, from_origin="measured", expected=(), pays=(),
        preconditions=(), test_arguments="", refuted_if="it does not",
    )  # fmt: skip


def finding(rule_id: str, *advised: Advice, severity: str = "medium", share: float = 0.5) -> Finding:
    return Finding(
        id=rule_id, rule_version=1, severity=severity, title="t", text="x", phase=None, share=share, evidence=("e1",),
        against=(NOTHING_AGAINST,), advice=advised,
    )  # fmt: skip


def settings(findings: tuple[Finding, ...]) -> list[tuple[str, str, object]]:
    return [(found.id, one.setting, one.to) for found in findings for one in found.advice]


QUEUE = finding("SPY-QUE-001", advice("max_num_seqs", 8, 16))
PREEMPTED = finding("SPY-KVC-002", advice("max_num_seqs", 8, 4))


def test_advice_that_does_not_meet_stays_as_it_is() -> None:
    found = (QUEUE, finding("SPY-INT-001", advice("max_num_batched_tokens", 2048, 1024)))
    assert arbitrate(found, "queue_bound", RULES) == found


def test_the_batch_is_never_raised_beside_advice_on_memory() -> None:
    for memory in (PREEMPTED, finding("SPY-KVC-001", advice("KV cache blocks", 100, 200)), finding("SPY-KVC-001")):
        left = arbitrate((QUEUE, memory), "queue_bound", RULES)
        assert left[1] == memory
        assert left[0].advice == ()
        assert left[0].against == (
            f"advice on max_num_seqs is held back: {memory.id} asks for memory, and this needs more of it",
        )


def test_more_clients_are_not_advised_where_memory_is_short() -> None:
    decode = finding("SPY-DEC-001", advice("client concurrency", 2, 4))
    assert settings(arbitrate((decode, PREEMPTED), "decode_bandwidth_bound", RULES)) == [
        ("SPY-KVC-002", "max_num_seqs", 4)
    ]


def test_a_smaller_batch_may_stand_beside_more_memory() -> None:
    found = (PREEMPTED, finding("SPY-KVC-001", advice("KV cache blocks", 100, 200)))
    assert arbitrate(found, "kv_capacity_bound", RULES) == found


def test_what_is_only_told_of_memory_holds_nothing_back() -> None:
    found = (QUEUE, finding("SPY-KVC-001", severity="info"))
    assert arbitrate(found, "queue_bound", RULES) == found


def test_of_two_that_move_one_setting_apart_the_earlier_of_the_catalogue_speaks() -> None:
    host = finding("SPY-HST-001", advice("max_num_batched_tokens", 2048, 4096), severity="high")
    phase = finding("SPY-INT-001", advice("max_num_batched_tokens", 2048, 1024), severity="low")
    left = arbitrate((host, phase), "host_bound", RULES)
    assert settings(left) == [("SPY-INT-001", "max_num_batched_tokens", 1024)]
    assert left[0].against == (
        "advice on max_num_batched_tokens is held back: SPY-INT-001 changes it otherwise",
    )  # fmt: skip


def test_one_setting_gets_one_value() -> None:
    found = (
        finding("SPY-INT-001", advice("max_num_batched_tokens", 2048, 1024)),
        finding("SPY-HST-001", advice("max_num_batched_tokens", 2048, 512)),
    )
    assert settings(arbitrate(found, "host_bound", RULES)) == [("SPY-INT-001", "max_num_batched_tokens", 1024)]


def test_a_limit_on_one_prompt_stands_only_below_the_budget_of_a_step() -> None:
    limit = finding("SPY-HOL-001", advice("long_prefill_token_threshold", 0, 4096))
    for budget, left_over in ((4096, 1), (8192, 2)):
        smaller = finding("SPY-INT-001", advice("max_num_batched_tokens", 16384, budget))
        left = arbitrate((limit, smaller), "undetermined", RULES)
        assert len(settings(left)) == left_over
    assert "no effect" in arbitrate((limit, finding("SPY-INT-001", advice("max_num_batched_tokens", 8192, 4096))),
                                    "undetermined", RULES)[1].against[0]  # fmt: skip


def test_larger_steps_are_not_advised_where_memory_is_short() -> None:
    chunk = finding("SPY-PRE-002", advice("max_num_batched_tokens", 512, 2048))
    assert settings(arbitrate((chunk, finding("SPY-KVC-001")), "undetermined", RULES)) == []


def test_settings_without_an_order_meet_where_their_values_differ() -> None:
    found = (finding("SPY-PFX-001", advice("x", "off", "on")), finding("SPY-HST-001", advice("x", "off", "auto")))
    left = arbitrate(found, "host_bound", RULES)
    assert settings(left) == [("SPY-PFX-001", "x", "on")]
    assert left[1].against == ("advice on x is held back: SPY-PFX-001 changes it otherwise",)


def test_while_compilation_takes_the_window_nothing_later_is_advised() -> None:
    compiled = finding("SPY-CMP-001", advice("warm-up", "off", "on"))
    left = arbitrate((compiled, QUEUE), "compile_bound", RULES)
    assert settings(left) == [("SPY-CMP-001", "warm-up", "on")]
    assert settings(arbitrate((compiled, QUEUE), "queue_bound", RULES)) == [
        ("SPY-CMP-001", "warm-up", "on"),
        ("SPY-QUE-001", "max_num_seqs", 16),
    ]


def test_nothing_is_tuned_before_what_cannot_be_served_is_put_right() -> None:
    first = msgspec.structs.replace(RULES["SPY-LOD-001"], id="SPY-XXX-001", catalogue="unservable")
    rules = RuleBook((*RULES.rules, first))
    broken = finding("SPY-XXX-001", advice("max_model_len", 8192, 4096), severity="high")
    left = arbitrate((broken, QUEUE), "queue_bound", rules)
    assert settings(left) == [("SPY-XXX-001", "max_model_len", 4096)]
    assert left[1].against == ("advice on max_num_seqs is held back: SPY-XXX-001 comes first",)
    mild = msgspec.structs.replace(broken, severity="low")
    assert len(settings(arbitrate((mild, QUEUE), "queue_bound", rules))) == 2


def test_what_else_speaks_against_a_finding_stays() -> None:
    queue = msgspec.structs.replace(QUEUE, against=("the gauge is coarse",))
    left = arbitrate((queue, PREEMPTED), "queue_bound", RULES)
    assert left[0].against[0] == "the gauge is coarse"
    assert len(left[0].against) == 2


ADVICE = st.builds(
    advice,
    st.sampled_from(("max_num_seqs", "client concurrency", "max_num_batched_tokens", "KV cache blocks")),
    st.just(8),
    st.sampled_from((2, 4, 16)),
)
FINDINGS = st.lists(
    st.builds(
        lambda rule_id, advised, severity: finding(rule_id, *advised, severity=severity),
        st.sampled_from(ADVISING),
        st.lists(ADVICE, max_size=2),
        st.sampled_from(("high", "medium", "low", "info")),
    ),
    max_size=6,
)


def same_again(dropped: Finding, left: tuple[Finding, ...]) -> bool:
    """Each piece of its advice stands with another finding of its rule."""
    return all(any(one in other.advice for other in left if other.id == dropped.id) for one in dropped.advice)


def test_a_rule_that_speaks_twice_advises_once() -> None:
    host = finding("SPY-HST-001", advice("enforce_eager", "on", "off"))
    left = arbitrate((host, host), "host_bound", RULES)
    assert settings(left) == [("SPY-HST-001", "enforce_eager", "off")]
    assert left[1].against == (NOTHING_AGAINST,)


@given(FINDINGS)
def test_whatever_was_found_no_setting_is_moved_twice_and_memory_goes_before_the_batch(found: list[Finding]) -> None:
    left = arbitrate(found, "undetermined", RULES)
    assert [one.id for one in left] == [one.id for one in found]
    moved = [setting for _, setting, _ in settings(left)]
    assert len(moved) == len(set(moved))
    short = any(RULES[one.id].catalogue == "memory" and one.severity != "info" for one in found)
    takers = ("max_num_seqs", "client concurrency", "max_num_batched_tokens")
    grown = [one for one in settings(left) if one[1] in takers and one[2] == 16]
    own = {one.id for one in found if RULES[one.id].catalogue == "memory"}
    assert not short or all(rule_id in own for rule_id, _, _ in grown)
    for before, after in zip(found, left, strict=True):
        assert after.against
        assert len(after.advice) == len(before.advice) or after.against != before.against or same_again(before, left)
    assert arbitrate(left, "undetermined", RULES) == left
