"""What was run, and on what: model, precision, hardware, and how fast the machine itself was."""

from __future__ import annotations

from spyreprof.report.diff import thresholds
from spyreprof.report.diff.model import Condition
from spyreprof.report.diff.pair import RECORD_AGAIN, Pair, row, spelled, state_of_texts, text
from spyreprof.report.figures import count, spell
from spyreprof.report.model import Conditions, MachinePeak, Public, Report
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
    """Peaks that were measured around both runs: whether the machine itself ran as fast, all the time."""
    shown = [spelled(report.peaks or None, _spell_peaks) for report in (pair.a, pair.b)]
    drift = drift_of_peaks(pair.a, pair.b)
    if drift is None:
        note = "without them nobody knows whether the machine was busy with something else"
        return row("measured peaks", shown[0], shown[1], "unknown", needed_for="nothing", note=note)
    return row(
        "measured peaks",
        shown[0],
        shown[1],
        "same" if drift <= thresholds.PEAKS.value else "differs",
        # Less than that widens the noise of every metric.
        needed_for="all" if drift > thresholds.PEAKS_MOST.value else "nothing",
        note=f"the largest lies {format_share(drift)} above the smallest",
        obtain="The machine itself ran at another speed: record both again while nothing else runs.",
    )


def drift_of_peaks(a: Report, b: Report) -> float | None:
    """By how much the machine's speed changed before, between and after the two runs.

    Returns:
        The largest measurement over the smallest less 1, of the peak that moved most; None where one side has none.
    """
    before, after = _measured(a), _measured(b)
    both = [before[name] + after[name] for name in before.keys() & after.keys()]
    return max((max(values) / min(values) - 1 for values in both), default=None)


def _measured(report: Report) -> dict[str, list[float]]:
    """All measurements of a peak, by resource; the cost of a dispatch moves with it and is less exact."""
    found: dict[str, list[float]] = {}
    for peak in report.peaks:
        values = [value for value in (peak.before, peak.after) if value is not None] or [peak.value]
        if peak.origin == "measured" and peak.resource != "dispatch" and min(values) > 0:
            found.setdefault(peak.resource, []).extend(values)
    return found


def _spell_peaks(peaks: tuple[MachinePeak, ...]) -> str:
    return ", ".join(
        " then ".join(spell(value, peak.unit) for value in (peak.before, peak.after) if value is not None)
        or spell(peak.value, peak.unit)
        for peak in peaks
        if peak.resource != "dispatch"
    )
