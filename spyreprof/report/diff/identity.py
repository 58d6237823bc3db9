"""What was run, and on what: model, precision, hardware, and how fast the machine itself was."""

from __future__ import annotations

from spyreprof.report.diff import thresholds
from spyreprof.report.diff.model import Condition
from spyreprof.report.diff.pair import RECORD_AGAIN, Pair, row, spelled, state_of_texts, text
from spyreprof.report.figures import count
from spyreprof.report.model import Conditions, Public, Report
from spyreprof.report.redact import own_words
from spyreprof.units import format_bytes, format_share


def identity(pair: Pair) -> list[Condition]:
    """Rows of what no comparison may be about."""
    a, b = pair.a.conditions, pair.b.conditions
    return [
        _model(pair),
        text(pair, "precision", a.precision, b.precision, obtain="Run steps in a torch module, or name --dtype."),
        _quantisation(pair),
        _hardware(pair),
        text(pair, "device", a.device_kind, b.device_kind, obtain="Record with spyreprof, which asks torch."),
        _device_count(pair),
        _peaks(pair),
    ]


def _same_weights(a: Conditions, b: Conditions) -> bool:
    """The same number of bytes in parameters of the same type: no other model, and no other quantisation of it."""
    return a.parameter_bytes is not None and a.parameter_bytes == b.parameter_bytes and a.precision == b.precision


def _model(pair: Pair) -> Condition:
    a, b = pair.a.conditions, pair.b.conditions
    state, note = state_of_texts(pair, a.model, b.model)
    sizes = (a.parameter_bytes, b.parameter_bytes)
    if None not in sizes and sizes[0] != sizes[1]:
        state, note = "differs", "the parameters take another number of bytes"
    elif state == "unknown" and _same_weights(a, b):
        state, note = "same", "by the bytes of its parameters, which are the same to the last"
    shown = [_with_size(side.model, side.parameter_bytes) for side in (a, b)]
    obtain = "Compare runs of the same model." if state == "differs" else "Name the model with --model in the command."
    return row("model", shown[0], shown[1], state, note=note, obtain=obtain)


def _with_size(model: Public | None, size_bytes: int | None) -> Public | None:
    if size_bytes is None:
        return model
    return own_words(f"{model or 'a model'} of {format_bytes(size_bytes)}")


def _quantisation(pair: Pair) -> Condition:
    a, b = pair.a.conditions, pair.b.conditions
    state, note = state_of_texts(pair, a.quantisation, b.quantisation)
    if state == "unknown" and _same_weights(a, b):
        state, note = "same", "by the bytes and the type of the parameters"
    obtain = "Compare runs of the same quantisation."
    if state == "unknown":
        obtain = "Name it with --quantization in the command, or run steps in a torch module."
    return row("quantisation", a.quantisation, b.quantisation, state, note=note, obtain=obtain)


def _hardware(pair: Pair) -> Condition:
    a, b = pair.a.conditions, pair.b.conditions
    state, note = state_of_texts(pair, a.hardware, b.hardware)
    accelerated = [side.device_kind for side in (a, b) if side.device_kind not in {None, "cpu"}]
    if state == "same" and accelerated:
        state, note = "unknown", "no report names the accelerator, and the processor beside it is not what computes"
    elif state == "same" and None in {a.device_kind, b.device_kind}:
        state, note = "unknown", "the processor is the same; whether an accelerator computes is not known"
    obtain = "Compare runs on the same hardware." if state == "differs" else RECORD_AGAIN
    return row("hardware", a.hardware, b.hardware, state, note=note, obtain=obtain)


def _device_count(pair: Pair) -> Condition:
    counts = [_devices(report) for report in (pair.a, pair.b)]
    shown = [spelled(number, count) for number in counts]
    state, note = state_of_texts(pair, shown[0], shown[1])
    obtain = "Compare runs on as many devices."
    if state == "unknown":
        obtain = "Serve with an engine whose settings tell its ranks (tensor_parallel)."
    return row("device count", shown[0], shown[1], state, note=note, obtain=obtain)


def _devices(report: Report) -> int | None:
    if report.conditions.device_count is not None:
        return report.conditions.device_count
    settings = report.settings or {}
    ranks = settings.get("tensor_parallel")
    if not isinstance(ranks, int):
        return None
    for name in ("pipeline_parallel", "data_parallel"):
        factor = settings.get(name, 1)
        ranks *= factor if isinstance(factor, int) else 1
    return ranks


def _peaks(pair: Pair) -> Condition:
    """Peaks that were measured around both runs: whether the machine itself ran as fast."""
    both = [measured_peaks(report) for report in (pair.a, pair.b)]
    shown = [spelled(peaks or None, _spell_peaks) for peaks in both]
    drift = drift_of_peaks(pair.a, pair.b)
    if drift is None:
        note = "peaks are told where the use of them could be judged"
        return row("measured peaks", shown[0], shown[1], "unknown", needed_for="nothing", note=note)
    same = drift <= thresholds.PEAKS.value
    return row(
        "measured peaks",
        shown[0],
        shown[1],
        "same" if same else "differs",
        note=f"they differ by {format_share(drift)}",
        obtain="The machine itself ran at another speed: record both again, one soon after the other.",
    )


def measured_peaks(report: Report) -> dict[str, float]:
    """Peaks of the machine that this report measured, by the name of their evidence."""
    return {
        item.metric.removeprefix("peak.").removesuffix("_per_s"): float(item.value)
        for item in report.evidence
        if item.metric.startswith("peak.")
        and item.origin == "measured"
        and isinstance(item.value, (int, float))
        and item.value > 0
    }


def drift_of_peaks(a: Report, b: Report) -> float | None:
    """By how much the machine's speed differs, the largest of its peaks as a ratio; None where it is not known."""
    before, after = measured_peaks(a), measured_peaks(b)
    shared = before.keys() & after.keys()
    return max((abs(after[name] / before[name] - 1) for name in shared), default=None)


def _spell_peaks(peaks: dict[str, float]) -> str:
    units = {"compute": "FLOP/s", "memory_bandwidth": "B/s"}
    known = [(name, value) for name, value in sorted(peaks.items()) if name in units]
    return ", ".join(f"{value / 1e9:.1f} G{units[name]}" for name, value in known)
