"""The collectors that run beside the program, inside the launcher."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from spyreprof.recording import layout
from spyreprof_collectors.hookless import HooklessProcesses
from spyreprof_collectors.manifest import CollectorState
from spyreprof_collectors.metrics_page import Page
from spyreprof_collectors.metrics_poll import INTERVAL_S as METRICS_INTERVAL_S
from spyreprof_collectors.metrics_poll import MetricsCollector
from spyreprof_collectors.process import BEFORE_END_PATIENCE_S
from spyreprof_collectors.py_spy import TICK_S, PySpyCollector
from spyreprof_collectors.sampled_processes import StepProcesses
from spyreprof_collectors.sampler import Sampler
from spyreprof_collectors.shards import ShardWriter
from spyreprof_collectors.usage import INTERVAL_S as USAGE_INTERVAL_S
from spyreprof_collectors.usage import Stat, UsageCollector


class Collection:
    """Starts, hurries and stops the collectors. Start it with signals blocked, so that no thread takes one.

    Args:
        recording: where to write.
        page: the /metrics page that the user named; None finds pages by itself.
        excluded: process ids below us that are no part of the program; helpers of ours add theirs.
        py_spy_rate_hz: looks at the stacks per second and process; None takes no stacks.
    """

    def __init__(
        self, recording: Path, page: Page | None, excluded: set[int], py_spy_rate_hz: int | None = None
    ) -> None:
        self._stacks_shard = ShardWriter(recording, layout.KIND_STACKS)
        self._py_spy: PySpyCollector | None = None
        if py_spy_rate_hz is not None:
            self._step_processes = StepProcesses(recording, os.getpid())
            self._py_spy = PySpyCollector(self._stacks_shard, self._step_processes, py_spy_rate_hz, excluded)
            self._py_spy.prepare()
        self._usage_shard = ShardWriter(recording, layout.KIND_USAGE)
        self._metrics_shard = ShardWriter(recording, layout.KIND_METRICS)
        self._usage = UsageCollector(self._usage_shard, os.getpid(), excluded)
        self._hookless = HooklessProcesses(recording)
        self._usage.observers.append(self._hookless.look)
        self._metrics = MetricsCollector(self._metrics_shard, recording, page)
        self._usage_sampler = Sampler("usage", USAGE_INTERVAL_S, self._sample_usage)
        self._metrics_sampler = Sampler("metrics", METRICS_INTERVAL_S, self._metrics.sample)
        self._stacks_sampler = Sampler("stacks", TICK_S, self._py_spy.sample) if self._py_spy is not None else None

    def start(self, program_pid: int | None = None) -> None:
        """Begin collecting. Without a thread to be had the program runs on, and the manifest tells."""
        for sampler in (self._usage_sampler, self._metrics_sampler):
            sampler.start()
        if self._py_spy is not None and self._stacks_sampler is not None:
            self._step_processes.begin(program_pid)
            self._stacks_sampler.start()

    def poll_before_end(self, patience_s: float) -> None:
        """Take the counters while the server still answers."""
        self._metrics.hurry()
        self._metrics_sampler.tick_now(patience_s)

    def stop(self) -> list[Stat]:
        """End collecting and write what was kept back.

        Returns:
            Processes of the program that outlived it.
        """
        self._usage_sampler.stop()
        running = self._still_running()
        if running:
            # One of them may be the server, with more to tell.
            self.poll_before_end(BEFORE_END_PATIENCE_S)
        self._metrics_sampler.stop()
        self._metrics.finish()
        if self._py_spy is not None and self._stacks_sampler is not None:
            self._stacks_sampler.stop()
            self._py_spy.finish()
        return running

    def states(self) -> list[CollectorState]:
        """What each collector got; closes their shards."""
        states = [self._usage.state(self._usage_sampler.fault), self._metrics.state(self._metrics_sampler.fault)]
        self._usage_shard.close()
        self._metrics_shard.close()
        if self._py_spy is not None and self._stacks_sampler is not None:
            states.append(self._py_spy.state(self._stacks_sampler.fault))
        self._stacks_shard.close()
        hookless = self._hookless.state()
        return [*states, hookless] if hookless is not None else states

    def _sample_usage(self) -> None:
        with self._no_start():
            self._usage.sample()

    def _no_start(self) -> AbstractContextManager[object]:
        """A py-spy that is just being started looks like one more Python of the program."""
        return self._py_spy.starting if self._py_spy is not None else nullcontext()

    def _still_running(self) -> list[Stat]:
        try:
            with self._no_start():
                return self._usage.members()
        except OSError:
            # without /proc nobody can tell; the collector's state says that it is missing
            return []
