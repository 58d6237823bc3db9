"""Every number by which two runs are compared, with where it comes from. Guesses wait for calibration."""

from __future__ import annotations

from spyreprof.report.diff.model import Threshold

SINGLE_RUN = Threshold(
    name="noise_of_single_runs",
    value=0.10,
    unit="ratio",
    origin="guessed",
    source="repeats on a shared machine lie about so far apart; `record --repeat` measures it",
)
SINGLE_RUN_TAIL = Threshold(
    name="noise_of_single_runs_in_the_tail",
    value=0.20,
    unit="ratio",
    origin="guessed",
    source="90th and 99th percentiles vary more than medians",
)
BETWEEN_SESSIONS = Threshold(
    name="noise_between_sessions",
    value=0.02,
    unit="ratio",
    origin="guessed",
    source="repeats of one session do not show how a machine changes from one session to the next",
)
PEAKS = Threshold(
    name="same_machine_speed",
    value=0.15,
    unit="ratio",
    origin="guessed",
    source="the limit within which peaks before and after one run count as the same",
)
PEAKS_TWICE = Threshold(
    name="noise_per_change_of_peaks",
    value=2.0,
    unit="",
    origin="guessed",
    source="beyond that limit, what moved between looks at a machine may have moved twice as far meanwhile",
)
PEAKS_MOST = Threshold(
    name="most_change_of_peaks",
    value=0.50,
    unit="ratio",
    origin="guessed",
    source="with peaks further apart, others used the machine: the same command has lost a third of its throughput so",
)
MEAN = Threshold(
    name="same_mean",
    value=0.05,
    unit="ratio",
    origin="guessed",
    source="means of lengths, rates and batches within it count as the same",
)
PERCENTILE = Threshold(
    name="same_percentile",
    value=0.10,
    unit="ratio",
    origin="guessed",
    source="percentiles of lengths within it, or within one token, count as the same",
)
OVERLAP = Threshold(
    name="same_spread",
    value=0.50,
    unit="ratio",
    origin="guessed",
    source="ranges of batch and context that both sides have, over all that either has",
)
HITS = Threshold(
    name="same_cache_hits",
    value=0.05,
    unit="ratio",
    origin="guessed",
    source="difference of prefix-cache hit ratios that counts as the same",
)
COMPILING = Threshold(
    name="no_compilation",
    value=0.01,
    unit="ratio",
    origin="guessed",
    source="share of the window in which compilation counts as none",
)
SAMPLES = Threshold(
    name="samples",
    value=30,
    unit="",
    origin="guessed",
    source="requests or steps on each side, fewer of which show no change",
)
ALL = (
    SINGLE_RUN,
    SINGLE_RUN_TAIL,
    BETWEEN_SESSIONS,
    PEAKS,
    PEAKS_TWICE,
    PEAKS_MOST,
    MEAN,
    PERCENTILE,
    OVERLAP,
    HITS,
    COMPILING,
    SAMPLES,
)
