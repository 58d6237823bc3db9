"""Settings that cannot serve what they allow: an error of the configuration, found without looking at any load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.findings import Advice, ExpectedChange, Finding
from spyreprof_analyzers.memory_reads import kv_bytes_per_token

if TYPE_CHECKING:
    from spyreprof.findings import Severity
    from spyreprof.recording.schema import EngineSettings, ModelFacts
    from spyreprof.rules import RuleBook
    from spyreprof_analyzers.book import EvidenceBook
    from spyreprof_analyzers.context import Context

# Prefill chunks of the Spyre stacks are whole blocks of this many tokens.
_SPYRE_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Clash:
    """Two numbers that do not go together, in words, and the setting that puts it right.

    `numbers` are (metric, value, unit). `severe` ones keep requests from ever being served.
    """

    text: str
    numbers: tuple[tuple[str, float, str], ...]
    setting: str
    from_: int
    to: int
    severe: bool = True


_BUDGET, _CAP = "settings.max_num_batched_tokens", "settings.max_num_seqs"


def clashes(settings: EngineSettings, device_kind: str | None = None) -> tuple[Clash, ...]:
    """All pairs of settings that do not go together; a setting that is not known clashes with none."""
    budget, cap, threshold = (
        settings.max_num_batched_tokens,
        settings.max_num_seqs,
        settings.long_prefill_token_threshold,
    )
    spyre = "spyre" in (settings.platform, device_kind)
    found = [_longer_than_the_cache(settings)]
    if budget is not None and cap is not None and budget < cap:
        text = (
            f"a step may hold {budget} tokens and the batch {cap} requests, of which each needs one: "
            "max_num_batched_tokens must not be below max_num_seqs"
        )
        numbers = ((_BUDGET, float(budget), "tokens"), (_CAP, float(cap), "requests"))
        found.append(Clash(text, numbers, "max_num_batched_tokens", budget, cap))
    states = settings.state_blocks
    if cap is not None and states is not None and cap > states > 0:
        text = (
            f"the batch may hold {cap} requests, and there are {states} state blocks, of which each needs one: "
            "lower max_num_seqs to them"
        )
        numbers = ((_CAP, float(cap), "requests"), ("settings.state_blocks", float(states), "blocks"))
        found.append(Clash(text, numbers, "max_num_seqs", cap, states))
    if spyre and budget is not None and budget % _SPYRE_BLOCK:
        to = budget // _SPYRE_BLOCK * _SPYRE_BLOCK or _SPYRE_BLOCK
        text = f"the prefill chunk of {budget} tokens is no multiple of {_SPYRE_BLOCK}, which Spyre needs"
        found.append(Clash(text, ((_BUDGET, float(budget), "tokens"),), "max_num_batched_tokens", budget, to))
    # Spyre's scheduler sets the threshold itself in every step
    if not spyre and threshold and budget is not None and threshold >= budget:
        text = (
            f"long_prefill_token_threshold of {threshold} tokens is not below the budget of {budget} tokens and has no "
            "effect"
        )
        numbers = (
            ("settings.long_prefill_token_threshold", float(threshold), "tokens"),
            (_BUDGET, float(budget), "tokens"),
        )
        to = max(budget // 2, 1)
        found.append(Clash(text, numbers, "long_prefill_token_threshold", threshold, to, severe=False))
    return tuple(clash for clash in found if clash is not None)


def _longer_than_the_cache(settings: EngineSettings) -> Clash | None:
    tokens, longest = settings.kv_capacity_tokens, settings.max_model_len
    if tokens is None or longest is None or longest <= tokens:
        return None
    size = settings.block_size or 1
    return Clash(
        f"a request may be {longest} tokens long, and the KV cache holds {tokens}: one that is longer waits forever, "
        "and all behind it. Lower max_model_len to that, or give the cache more memory",
        (("settings.max_model_len", float(longest), "tokens"), ("settings.kv_tokens", float(tokens), "tokens")),
        "max_model_len",
        longest,
        tokens // size * size or tokens,
    )


def cannot_serve(context: Context) -> Finding | None:
    """Settings that do not go together."""
    facts = context.facts
    return unservable(facts.settings, facts.parameters, facts.device_kind, context.rules, context.book)


def unservable(
    settings: EngineSettings, model: ModelFacts, device_kind: str | None, rules: RuleBook, book: EvidenceBook
) -> Finding | None:
    """The finding that settings do not go together. Its advice corrects them, and tunes nothing."""
    found = clashes(settings, device_kind)
    if not found:
        return None
    rule = rules["SPY-UNS-001"]
    evidence = [
        book.add(metric, value, unit, "measured", source="engine settings", method="in force", window="settings")
        for clash in found
        for metric, value, unit in clash.numbers
    ]
    each = kv_bytes_per_token(model, settings)
    tokens = settings.kv_capacity_tokens
    against = list(rule.false_positive_notes)
    if each is not None and tokens is not None:
        evidence.append(
            book.add("settings.kv_bytes_per_device", each * tokens, "bytes", "derived", window="settings",
                     source="engine settings and model size",
                     method="tokens of the KV cache times the bytes that one device holds for a token")
        )  # fmt: skip
    severity: Severity = "high" if any(clash.severe for clash in found) else "info"
    sentences = [f"{clash.text[:1].upper()}{clash.text[1:]}." for clash in found]
    return Finding(
        id=rule.id,
        rule_version=rule.version,
        severity=severity,
        title=rule.title,
        text=" ".join(sentences),
        phase=None,
        share=None,
        evidence=tuple(dict.fromkeys(evidence)),
        against=tuple(against),
        advice=tuple(_correct(clash) for clash in found if clash.severe),
    )


def _correct(clash: Clash) -> Advice:
    option = f"--{clash.setting.replace('_', '-')} {clash.to}"
    return Advice(
        id=f"correct_{clash.setting}",
        setting=clash.setting,
        from_=clash.from_,
        to=clash.to,
        from_origin="measured",
        expected=(
            ExpectedChange(metric="requests that are never served", direction="down", note="none is let in any more"),
        ),
        pays=(ExpectedChange(metric="what the settings allow", direction="down", note="to what can be served"),),
        preconditions=("the setting in force is the one that was read",),
        test_arguments=option,
        refuted_if="the engine does not start with it",
    )
