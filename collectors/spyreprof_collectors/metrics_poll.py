"""Polls the program's /metrics pages twice a second.

Every poll leaves a row: what changed, nothing where nothing did, or that there was no answer. Without the last two a
page that hangs would look like gauges that stand still.

Only addresses that the user named, or that the agent saw a recognised HTTP server bind, are ever contacted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from spyreprof.recording import layout
from spyreprof.units import NS_PER_S
from spyreprof_collectors.manifest import CollectorState
from spyreprof_collectors.metrics_page import NoPageError, NotPrometheusError, Page, UnreachableError
from spyreprof_collectors.shards import ShardTail, ShardWriter, shard_paths

INTERVAL_S = 0.5
_LONGEST_PAUSE_S = 4.0
# A page that was good before, or is not there yet, is asked for again until so many refusals came in a row.
_REFUSALS = 3
# Histogram buckets are nine tenths of a vLLM page's changes (sample engine, 28 polls: 247 of 277 kB) and serve
# quantiles over long stretches only.
BUCKET_INTERVAL_S = 10.0
# More endpoints than a large data-parallel server has on one machine.
_MAX_ENDPOINTS = 32


@dataclass
class Endpoint:
    """One polled page and what came of it."""

    number: int
    page: Page
    last_t_ns: int = 0
    last_lines: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    written_buckets: set[str] = field(default_factory=set)
    buckets_due_ns: int = 0
    last_was_full: bool = False
    polls: int = 0
    failures_in_a_row: int = 0
    refusals_in_a_row: int = 0
    next_ns: int = 0
    given_up: str | None = None
    last_error: str | None = None

    def is_news(self, line: str, with_buckets: bool) -> bool:
        """Whether a sample differs from what was written last."""
        if is_bucket(line):
            return with_buckets and line not in self.written_buckets
        return line not in self.written

    def pause(self, error: Exception) -> None:
        """Put off the next poll after a failure, the longer the more of them came in a row."""
        self.failures_in_a_row += 1
        self.last_error = str(error)
        pause_s = min(INTERVAL_S * 2**self.failures_in_a_row, _LONGEST_PAUSE_S)
        self.next_ns = time.monotonic_ns() + int(pause_s * NS_PER_S)


def is_bucket(line: str) -> bool:
    """Whether a sample line belongs to a histogram bucket."""
    return line.partition("{")[0].endswith("_bucket")


class MetricsCollector:
    """Finds pages, polls them, and writes what changed."""

    def __init__(self, writer: ShardWriter, recording: Path, page: Page | None) -> None:
        self._writer = writer
        self._recording = recording
        self._endpoints: list[Endpoint] = [Endpoint(0, page)] if page is not None else []
        self._discovers = page is None
        self._tails: dict[str, ShardTail] = {}
        self._seen: set[tuple[str, int]] = set()
        self._left_alone: list[str] = []

    def sample(self) -> None:
        """Poll every page that is due."""
        if self._discovers:
            self._discover()
        for endpoint in self._endpoints:
            if endpoint.given_up is None and time.monotonic_ns() >= endpoint.next_ns:
                self._poll(endpoint)

    def hurry(self) -> None:
        """Forget the pauses after failures: the program is about to end."""
        for endpoint in self._endpoints:
            endpoint.next_ns = 0

    def finish(self) -> None:
        """Write the last page of each address whole."""
        for endpoint in self._endpoints:
            if endpoint.polls and not endpoint.last_was_full:
                self._write(endpoint, endpoint.last_lines, full=True)

    def state(self, fault: str | None) -> CollectorState:
        """What the collector got, for the manifest."""
        name = layout.KIND_METRICS
        problem = fault or self._writer.fault
        polled = [endpoint for endpoint in self._endpoints if endpoint.polls]
        reasons = [problem] if problem else []
        reasons += self._left_alone
        for endpoint in self._endpoints:
            if endpoint.given_up:
                reasons.append(f"{endpoint.page.url}: {endpoint.given_up}")
            elif not endpoint.polls:
                reasons.append(f"{endpoint.page.url}: {endpoint.last_error or 'never answered'}")
        if polled:
            return CollectorState(name, "partial" if problem else "ok", "; ".join(reasons) or None)
        if not reasons:
            reasons.append("no recognised HTTP server was seen in the program")
        obtain = "name the page with --metrics-url http://127.0.0.1:PORT/metrics"
        return CollectorState(name, "unavailable", "; ".join(reasons), obtain)

    def _discover(self) -> None:
        for writer, path in shard_paths(self._recording, layout.KIND_PROCESS):
            tail = self._tails.setdefault(writer, ShardTail(path))
            for row in tail.rows():
                if row.get("k") == "listen":
                    self._consider(str(row.get("host") or ""), row.get("port"))

    def _consider(self, host: str, port: object) -> None:
        if not isinstance(port, int) or not 0 < port < 65536 or (host, port) in self._seen:
            return
        self._seen.add((host, port))
        page = Page.of_listener(host, port)
        if page is None:
            self._left_alone.append(f"port {port} listens on an outside address only and was left alone")
        elif len(self._endpoints) >= _MAX_ENDPOINTS:
            self._left_alone.append(f"port {port} is beyond the {_MAX_ENDPOINTS} pages that are polled")
        elif all((known.page.host, known.page.port) != (page.host, page.port) for known in self._endpoints):
            self._endpoints.append(Endpoint(len(self._endpoints), page))

    def _poll(self, endpoint: Endpoint) -> None:
        started_ns = time.monotonic_ns()
        try:
            lines = endpoint.page.fetch()
        except NotPrometheusError as error:
            self._write_poll(endpoint, started_ns, ok=False)
            endpoint.refusals_in_a_row += 1
            patient = endpoint.polls > 0 or isinstance(error, NoPageError)
            if endpoint.refusals_in_a_row >= (_REFUSALS if patient else 1):
                endpoint.given_up = f"polling ended, {error}"
            else:
                endpoint.pause(error)
            return
        except UnreachableError as error:
            self._write_poll(endpoint, started_ns, ok=False)
            endpoint.pause(error)
            return
        endpoint.failures_in_a_row = endpoint.refusals_in_a_row = 0
        endpoint.polls += 1
        # The values are those of some moment between request and answer; a page is made when it is asked for.
        endpoint.last_t_ns = started_ns
        endpoint.last_lines = lines
        first = endpoint.polls == 1
        with_buckets = started_ns >= endpoint.buckets_due_ns
        changed = [line for line in lines if not line.startswith("#") and endpoint.is_news(line, with_buckets)]
        buckets = {line for line in lines if is_bucket(line)}
        endpoint.written = set(lines) - buckets
        if with_buckets:
            endpoint.written_buckets = buckets
            endpoint.buckets_due_ns = started_ns + int(BUCKET_INTERVAL_S * NS_PER_S)
        endpoint.last_was_full = False
        if first:
            self._write(endpoint, lines, full=True)
        elif changed:
            self._write(endpoint, changed, full=False)
        else:
            self._write_poll(endpoint, started_ns, ok=True)

    def _write_poll(self, endpoint: Endpoint, started_ns: int, *, ok: bool) -> None:
        """Note a poll that brought no line; short, since an idle server leaves one every half second."""
        row: dict[str, object] = {"t": started_ns, "endpoint": endpoint.number, "lines": []}
        self._writer.write(row if ok else {**row, "ok": False})

    def _write(self, endpoint: Endpoint, lines: list[str], *, full: bool) -> None:
        endpoint.last_was_full = full
        self._writer.write(
            {
                "t": endpoint.last_t_ns,
                "endpoint": endpoint.number,
                "url": endpoint.page.url,
                "lines": lines,
                "full": full,
            }
        )
