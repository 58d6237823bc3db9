"""Settings that cannot serve what they allow: an error of the configuration, found without looking at any load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyreprof.findings import Finding
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
    """Two numbers that do not go together, in words. `severe` ones keep requests from ever being served."""

    text: str
    numbers: tuple[tuple[str, float, str], ...]
    severe: bool


def clashes(settings: EngineSettings) -> tuple[Clash, ...]:
    """All pairs of settings that do not go together; a setting that is not known clashes with none."""
    found = []
    tokens, longest, budget = settings.kv_capacity_tokens, settings.max_model_len, settings.max_num_batched_tokens
    cap, threshold = settings.max_num_seqs, settings.long_prefill_token_threshold
    # blocks of hybrid models hold groups of layers: only what the engine itself says of tokens counts there
    counted = tokens is not None and (settings.kv_tokens is not None or settings.state_blocks is None)
    if counted and tokens is not None and longest is not None and longest > tokens:
        found.append(
            Clash(
                f"a request may be {longest} tokens long, and the KV cache holds {tokens}: one that is longer waits "
                "forever, and all behind it. Lower max_model_len to that, or give the cache more memory",
                (("settings.max_model_len", longest, "tokens"), ("settings.kv_tokens", tokens, "tokens")),
                True,
            )
        )
    if budget is not None and cap is not None and budget < cap:
        found.append(
            Clash(
                f"a step may hold {budget} tokens and the batch {cap} requests, of which each needs one: "
                "max_num_batched_tokens must not be below max_num_seqs",
                (("settings.max_num_batched_tokens", budget, "tokens"), ("settings.max_num_seqs", cap, "requests")),
                True,
            )
        )
    if cap is not None and settings.state_blocks is not None and cap > settings.state_blocks:
        found.append(
            Clash(
                f"the batch may hold {cap} requests, and there are {settings.state_blocks} state blocks, of which each "
                "needs one: lower max_num_seqs to them",
                (
                    ("settings.max_num_seqs", cap, "requests"),
                    ("settings.state_blocks", settings.state_blocks, "blocks"),
                ),
                True,
            )
        )
    spyre = settings.platform == "spyre"
    if spyre and budget is not None and budget % _SPYRE_BLOCK:
        found.append(
            Clash(
                f"the prefill chunk of {budget} tokens is no multiple of {_SPYRE_BLOCK}, as Spyre needs it: set "
                f"max_num_batched_tokens to {budget // _SPYRE_BLOCK * _SPYRE_BLOCK or _SPYRE_BLOCK}",
                (("settings.max_num_batched_tokens", budget, "tokens"),),
                True,
            )
        )
    # Spyre's scheduler sets the threshold itself in every step
    if not spyre and threshold and budget is not None and threshold >= budget:
        found.append(
            Clash(
                f"long_prefill_token_threshold of {threshold} tokens is not below the budget of {budget} tokens and "
                "has no effect",
                (("settings.long_prefill_token_threshold", threshold, "tokens"),
                 ("settings.max_num_batched_tokens", budget, "tokens")),
                False,
            )
        )  # fmt: skip
    return tuple(found)


def cannot_serve(context: Context) -> Finding | None:
    """Settings that do not go together."""
    return unservable(context.facts.settings, context.facts.parameters, context.rules, context.book)


def unservable(settings: EngineSettings, model: ModelFacts, rules: RuleBook, book: EvidenceBook) -> Finding | None:
    """The finding that settings do not go together. It names what to correct, and advises no tuning."""
    found = clashes(settings)
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
    )
