"""`/metrics`: the engine's state in the Prometheus text format, under vLLM's metric names.

Written out by hand to show how little there is to it. Gauges are the state now, counters only ever grow,
and a histogram is a row of counters "at most this large" with a sum and a count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# vLLM's boundaries, so that its dashboards fit.
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))


def one_two_five(largest: int) -> tuple[float, ...]:
    """Boundaries 1, 2, 5, 10, 20, 50, ... up to `largest`."""
    steps = (mantissa * 10**exponent for exponent in range(len(str(largest))) for mantissa in (1, 2, 5))
    return tuple(float(step) for step in steps if step <= largest)


class Histogram:
    """Counts of observed values by upper boundary."""

    def __init__(self, boundaries: Sequence[float]) -> None:
        self.boundaries = tuple(boundaries)
        self.counts = [0] * (len(self.boundaries) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.boundaries, value)] += 1
        self.sum += value

    def samples(self) -> Iterable[tuple[str, dict[str, str], float]]:
        """Suffix, labels and value of each exposed sample; bucket counts are cumulative."""
        running = 0
        for boundary, count in zip((*self.boundaries, float("inf")), self.counts, strict=True):
            running += count
            yield "_bucket", {"le": "+Inf" if boundary == float("inf") else str(boundary)}, running
        yield "_sum", {}, self.sum
        yield "_count", {}, running


@dataclass
class RequestHistograms:
    """What is known of requests and steps only once they happened."""

    max_model_len: int
    time_to_first_token_s: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_S))
    inter_token_latency_s: Histogram = field(default_factory=lambda: Histogram(TOKEN_GAP_S))
    e2e_request_latency_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    request_queue_time_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    request_prefill_time_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    request_decode_time_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_TOKENS))
    request_prompt_tokens: Histogram = field(init=False)
    request_generation_tokens: Histogram = field(init=False)

    def __post_init__(self) -> None:
        self.request_prompt_tokens = Histogram(one_two_five(self.max_model_len))
        self.request_generation_tokens = Histogram(one_two_five(self.max_model_len))


class Exposition:
    """Builds one page of the text format; every sample carries the common labels."""

    def __init__(self, common_labels: Mapping[str, str]) -> None:
        self._common = dict(common_labels)
        self._lines: list[str] = []

    def gauge(self, name: str, documentation: str, value: float, **labels: str) -> None:
        """A value that goes up and down."""
        self._family(name, documentation, "gauge")
        self._sample(name, labels, value)

    def counter(self, name: str, documentation: str, value: float) -> None:
        """A total since start; its sample ends in `_total`."""
        self._family(f"{name}_total", documentation, "counter")
        self._sample(f"{name}_total", {}, value)

    def counters(self, name: str, documentation: str, label: str, values: Mapping[str, float]) -> None:
        """A total since start for each value of a label."""
        self._family(f"{name}_total", documentation, "counter")
        for label_value, value in values.items():
            self._sample(f"{name}_total", {label: label_value}, value)

    def histogram(self, name: str, documentation: str, histogram: Histogram) -> None:
        """A distribution."""
        self._family(name, documentation, "histogram")
        for suffix, labels, value in histogram.samples():
            self._sample(name + suffix, labels, value)

    def text(self) -> str:
        """The page."""
        return "\n".join(self._lines) + "\n"

    def _family(self, name: str, documentation: str, kind: str) -> None:
        self._lines += [f"# HELP {name} {documentation}", f"# TYPE {name} {kind}"]

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in (self._common | dict(labels)).items())
        self._lines.append(f"{name}{{{pairs}}} {float(value)}")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
