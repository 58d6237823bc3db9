"""What single requests took and cost: parts of a diagnosis, with the same contract as `findings.py`."""

from __future__ import annotations

from typing import Literal

import msgspec

TailPartName = Literal[
    "queue", "prefill", "decode", "interference", "preemption", "compile", "between_steps", "front_end", "unknown"
]
CostLineName = Literal[
    "input", "cached", "output", "visible_output", "reasoning", "overhead", "idle_capacity", "unexplained"
]


class TailPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one part took of the slowest requests' time, and of the median ones'. None where it cannot be told.

    Attributes:
        slowest_ns, median_ns: summed over the requests of either group.
        slowest_share, median_share: of all time of the group.
        excess_s: what a slowest request has more of it than a median one, on average; for "itl" per token.
    """

    id: TailPartName
    slowest_ns: int | None
    slowest_share: float | None
    median_ns: int | None
    median_share: float | None
    excess_s: float | None


class TailLatency(msgspec.Struct, frozen=True, kw_only=True):
    """What the slowest requests by one latency spend their time on, beside the median requests.

    Attributes:
        metric: "ttft"; "itl", the mean gap between tokens of a request; "itl_max", its largest gap; "e2e".
        requests: how many were ranked. The slowest are 1 % of them, and at least 20.
        slowest, median: requests of the two groups; the median ones are those from the 40th to the 60th percentile.
        slowest_mean_s, median_mean_s: mean of the latency over either group.
        slowest_ns, median_ns: the time that was taken apart, which is exactly the sum of the parts that are not None.
        dominant: the part that makes most of the difference; None where no part does.
        dominant_share: of the difference.
        slowest_output_tokens, median_output_tokens, slowest_prompt_tokens, median_prompt_tokens: means.
        reason: in words, why that part, or why none.
        target_p99_s, target_met: as in the latency of this name.
    """

    metric: Literal["ttft", "itl", "itl_max", "e2e"]
    requests: int
    slowest: int
    median: int
    slowest_mean_s: float
    median_mean_s: float
    slowest_ns: int
    median_ns: int
    parts: tuple[TailPart, ...]
    dominant: TailPartName | None
    dominant_share: float | None
    slowest_prompt_tokens: float | None
    median_prompt_tokens: float | None
    slowest_output_tokens: float | None
    median_output_tokens: float | None
    reason: str
    source: str
    notes: tuple[str, ...] = ()
    target_p99_s: float | None = None
    target_met: bool | None = None


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of time cost. Amounts are in the currency of the user's price.

    Attributes:
        ns: of the judged window; those of all lines add up to it, so that the amounts add up to hours times price.
        tokens: made or computed in that time; None where nobody counted them, or where the time is not of tokens.
        per_million_tokens: of this time alone.
        all_in_per_million_tokens: with its part, by time, of overhead, idle capacity and what is unexplained.
    """

    id: CostLineName
    ns: int
    share: float
    amount: float
    tokens: int | None
    per_million_tokens: float | None
    all_in_per_million_tokens: float | None


class CostCut(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a request with a part of its context or output cut off."""

    of: Literal["context", "output"]
    cut_ratio: float
    amount: float
    change_ratio: float


class RequestCost(msgspec.Struct, frozen=True, kw_only=True):
    """The request at a percentile of cost: the time of its tokens alone, without overhead and idle capacity."""

    percentile: Literal[50, 95]
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    amount: float
    cuts: tuple[CostCut, ...]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What the judged window cost at the user's price, by what it was spent on.

    Attributes:
        price_per_hour: as given, for everything that was recorded.
        amount: hours of the window times price.
        devices: behind that price; None where they were not counted.
        requests: at the median and the 95th percentile; empty where no request is known with its lengths.
        notes: how time was attributed.
    """

    price_per_hour: float
    window_ns: int
    amount: float
    devices: int | None
    lines: tuple[CostLine, ...]
    requests: tuple[RequestCost, ...]
    notes: tuple[str, ...]
