"""What the engine was given to do, whether it was warm, and how it was measured."""

from __future__ import annotations

from spyreprof.report.diff import thresholds
from spyreprof.report.diff.model import Condition, NeededFor, State
from spyreprof.report.diff.pair import Pair, alike, row, spelled, state_of_texts, who_lacks
from spyreprof.report.figures import count
from spyreprof.report.model import Lengths, Load, Report, Spread
from spyreprof.report.redact import own_words
from spyreprof.units import format_share

BATCH, CONTEXT = "batch", "context"
_LOAD_LOG = "Let the load generator write its result file (samples/README.md shows how), or mark requests."
_THROUGHOUT = "throughout"


def workload(pair: Pair) -> list[Condition]:
    """Rows of the load, of the state of caches, and of the measurement itself."""
    a, b = pair.a.conditions, pair.b.conditions
    return [
        _spread(BATCH, a.batch, b.batch, "requests"),
        _spread(CONTEXT, a.context, b.context, "tokens"),
        *_load(pair.a.load, pair.b.load),
        _prefix_cache(pair),
        _compilation(pair),
        _profiler(pair),
        _made_by(pair),
    ]


def _spread(name: str, a: Spread | None, b: Spread | None, unit: str) -> Condition:
    shown = [spelled(side, lambda s: f"{count(s.mean)} ({count(s.low)} to {count(s.high)})") for side in (a, b)]
    obtain = "Steps tell it where the engine annotates them with their requests."
    if a is None or b is None:
        note = who_lacks(a, b)
        return row(name, shown[0], shown[1], "unknown", needed_for="steps", note=note, obtain=obtain)
    overlap = _overlap(a, b)
    same = alike(a.mean, b.mean, thresholds.MEAN.value) and overlap >= thresholds.OVERLAP.value
    return row(
        name,
        shown[0],
        shown[1],
        "same" if same else "differs",
        needed_for="steps",
        note=f"mean and range of {unit} over decode steps; the ranges overlap by {format_share(overlap)}",
        obtain=f"Give both runs the same load, so that their steps have the same {name}.",
    )


def _overlap(a: Spread, b: Spread) -> float:
    """What both ranges cover over what either does; 1 for two that are the same point."""
    whole = max(a.high, b.high) - min(a.low, b.low)
    shared = min(a.high, b.high) - max(a.low, b.low)
    return max(0.0, shared) / whole if whole > 0 else 1.0


def _load(a: Load | None, b: Load | None) -> list[Condition]:
    if a is None or b is None:
        note = f"{who_lacks(a, b)}: there is no log of requests"
        return [row("load", None, None, "unknown", needed_for="requests", note=note, obtain=_LOAD_LOG)]
    rows = [_arrivals(a, b)]
    for name, ours, theirs in (
        ("prompt tokens", a.prompt_tokens, b.prompt_tokens),
        ("output tokens", a.output_tokens, b.output_tokens),
    ):
        shown = [spelled(side, _spell_lengths) for side in (ours, theirs)]
        state: State = "unknown"
        told: str | None = who_lacks(ours, theirs)
        if ours is not None and theirs is not None:
            state, told = "same" if _alike_lengths(ours, theirs) else "differs", None
        obtain = "Give both runs requests of the same lengths." if state == "differs" else _LOAD_LOG
        rows.append(row(name, shown[0], shown[1], state, needed_for="requests", note=told, obtain=obtain))
    return rows


def _alike_lengths(a: Lengths, b: Lengths) -> bool:
    """By the mean, and by percentiles, which of a few requests are less exact, and which count whole tokens."""
    of_percentiles = ((a.p50, b.p50), (a.p90, b.p90))
    return alike(a.mean, b.mean, thresholds.MEAN.value) and all(
        abs(one - other) <= 1 or alike(one, other, thresholds.PERCENTILE.value) for one, other in of_percentiles
    )


def _spell_lengths(lengths: Lengths) -> str:
    return f"mean {count(lengths.mean)}, p50 {count(lengths.p50)}, p90 {count(lengths.p90)}"


def _arrivals(a: Load, b: Load) -> Condition:
    shown = [spelled(side, _spell_arrivals) for side in (a, b)]
    obtain = "Give both runs the same load, for long enough that a pattern of arrivals shows."
    if a.arrivals is None or b.arrivals is None:
        note = "how requests arrived cannot be told from so few, or from a mixed pattern"
        return row("arrivals", shown[0], shown[1], "unknown", needed_for="requests", note=note, obtain=obtain)
    sizes: dict[str, tuple[float | None, float | None]] = {
        "at_once": (a.requests, b.requests),
        "closed_loop": (a.most_in_flight, b.most_in_flight),
        "open_loop": (a.arrivals_per_s, b.arrivals_per_s),
    }
    one, other = sizes[a.arrivals]
    state: State = "differs"
    if a.arrivals == b.arrivals:
        state = "unknown"
        if one is not None and other is not None:
            state = "same" if alike(one, other, thresholds.MEAN.value) else "differs"
    return row("arrivals", shown[0], shown[1], state, needed_for="requests", obtain=obtain)


def _spell_arrivals(load: Load) -> str:
    rate = "" if load.arrivals_per_s is None else f", {count(load.arrivals_per_s)} requests/s"
    most = "" if load.most_in_flight is None else f", at most {load.most_in_flight} in flight"
    return f"{(load.arrivals or 'unknown').replace('_', ' ')}{rate}{most}"


def _prefix_cache(pair: Pair) -> Condition:
    off = [(report.settings or {}).get("prefix_caching") is False for report in (pair.a, pair.b)]
    hits = [0.0 if no_cache else _hit_ratio(report) for no_cache, report in zip(off, (pair.a, pair.b), strict=True)]
    shown = [
        own_words("off") if no_cache else spelled(ratio, lambda found: f"{format_share(found)} of prompt tokens hit")
        for no_cache, ratio in zip(off, hits, strict=True)
    ]
    state: State = "unknown"
    if hits[0] is not None and hits[1] is not None:
        state = "same" if abs(hits[0] - hits[1]) <= thresholds.HITS.value else "differs"
    note = who_lacks(hits[0], hits[1]) if state == "unknown" else None
    obtain = "Start both with an empty cache, or both after the same requests."
    if state == "unknown":
        obtain = "Have /metrics polled in both runs, or mark the cached tokens of requests."
    return row("prefix cache", shown[0], shown[1], state, needed_for="requests", note=note, obtain=obtain)


def _hit_ratio(report: Report) -> float | None:
    if report.load is not None and report.load.cached_ratio is not None:
        return report.load.cached_ratio
    values = [item.value for item in report.evidence if item.metric == "prefix_cache.hit_ratio"]
    return float(values[0]) if values and isinstance(values[0], (int, float)) else None


def _compilation(pair: Pair) -> Condition:
    shares = [_compiling(report) for report in (pair.a, pair.b)]
    shown = [spelled(share, lambda ratio: f"{format_share(ratio)} of the window") for share in shares]
    state: State = "unknown"
    if shares[0] is not None and shares[1] is not None:
        quiet = max(shares[0], shares[1]) <= thresholds.COMPILING.value
        state = "same" if quiet or abs(shares[0] - shares[1]) <= thresholds.COMPILING.value else "differs"
    note = "without a steady state it is not known" if state == "unknown" else None
    obtain = "Record for long enough that both runs are warm."
    return row("compilation", shown[0], shown[1], state, note=note, obtain=obtain)


def _compiling(report: Report) -> float | None:
    budget = report.time_budget
    if budget is None:
        return None
    return _share(sum(part.ns for part in budget.parts if part.id == "compile"), budget.window_ns)


def _share(part: int, whole: int) -> float | None:
    """A part over a whole that may be none."""
    return part / whole if whole > 0 else None


def _profiler(pair: Pair) -> Condition:
    kinds = [_profiled(report) for report in (pair.a, pair.b)]
    shown = [spelled(kind, str) for kind in kinds]
    state, note = state_of_texts(pair, shown[0], shown[1])
    needed_for: NeededFor = "all"
    if state == "differs" and _THROUGHOUT not in kinds:
        needed_for, note = "nothing", "what a window takes is kept out of the steady state"
    obtain = "Compare runs that were measured in the same way; `spyreprof record` profiles a few steps alone."
    return row("profiler", shown[0], shown[1], state, needed_for=needed_for, note=note, obtain=obtain)


def _profiled(report: Report) -> str | None:
    if report.traces:
        return _THROUGHOUT
    if report.profiler_windows is None:
        return None
    return "windows of few steps" if report.profiler_windows.opened else "no window"


def _made_by(pair: Pair) -> Condition:
    versions = [own_words(report.producer.version) for report in (pair.a, pair.b)]
    state: State = "same" if versions[0] == versions[1] else "differs"
    obtain = "Compare the recordings: then one release judges both."
    return row("judged by spyreprof", versions[0], versions[1], state, obtain=obtain)
