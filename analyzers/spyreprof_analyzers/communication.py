"""What communication between ranks costs an engine's steps, and whether the link or a late rank is to blame."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from spyreprof.units import NS_PER_S
from spyreprof_analyzers.collectives import connected_writers, match_calls
from spyreprof_analyzers.engine_steps import DECODE, MIXED, PREFILL, steps_by_writer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spyreprof.recording.schema import AnalysisInputs
    from spyreprof.rules import RuleBook
    from spyreprof.trace.profiled import ProfiledStep
    from spyreprof_analyzers.collectives import Calls
    from spyreprof_analyzers.engine_steps import EngineSteps
    from spyreprof_analyzers.facts import Side
    from spyreprof_analyzers.profile import StepSplit

PHASES_OF: dict[Side, tuple[int, ...]] = {"prefill": (PREFILL, MIXED), "decode": (DECODE,)}


@dataclass(frozen=True, slots=True)
class Exposed:
    """Shares of step time that the caller is blocked in collectives, 0 to 1.

    `trace` is the share of profiled steps in which a collective blocked and no other operator ran, `trace_transfer` the
    part of it in which data moved; None without such steps.
    `unsplit` is blocked time of calls that could not be matched with those of all ranks.
    """

    transfer: float
    waiting: float
    unsplit: float
    steps: int
    trace: float | None = None
    trace_transfer: float | None = None

    @property
    def total(self) -> float:
        """All of it."""
        return self.transfer + self.waiting + self.unsplit


@dataclass(frozen=True, slots=True)
class LateRank:
    """The rank that the others wait for most.

    `late_ns` is the median over its `steps` of how long another rank waited for it, `share_of_steps` how many of them
    had a material wait, `others_share` the largest share of another rank's step time, `margin` the part of all waiting
    between ranks that is for this one.
    """

    rank: int
    judged: bool
    late_ns: int
    steps: int
    share_of_steps: float
    others_share: float
    margin: float


@dataclass(frozen=True, slots=True)
class Communication:
    """Collectives of the judged rank's steps in the window.

    `bytes_per_step`, `message_bytes` (median) and `calls_per_step` are of one rank, `wire_bytes_per_s` is what a rank
    sent during transfer; bytes are None where calls did not tell them. `reason` says why waiting and transfer are not
    told apart.
    """

    ranks: int
    rank: int
    exposed: dict[Side, Exposed]
    bytes_per_step: float | None
    message_bytes: float | None
    calls_per_step: float
    wire_bytes_per_s: float | None
    calls: int
    one_clock: bool
    late: LateRank | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that run one model together, their calls and steps, and the one of them that is judged.

    `steps` is by writer, and empty where one process runs alone.
    """

    writers: tuple[str, ...]
    judged: str
    calls: Calls | None
    steps: dict[str, EngineSteps] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every rank of every group left rows."""
        return self.calls is not None and self.calls.missing is None


def ranks_of(inputs: AnalysisInputs, busiest: str, rules: RuleBook) -> Ranks:
    """Find the ranks of the busiest process's engine, and judge the one that waits least for the others.

    It is the one that all others wait for, so its time is the engine's.
    """
    table = inputs.collectives
    if table is None or table.empty or inputs.device_kind != "cpu":
        return Ranks((busiest,), busiest, None)
    writers = connected_writers(table, busiest)
    calls = match_calls(table, writers)
    if len(calls) == 0:
        return Ranks((busiest,), busiest, None)
    waits: dict[str, tuple[int, float]] = {}
    pauses = [pause for pause in inputs.pauses if pause.writer in (None, *writers)]
    of_writer = steps_by_writer(inputs.steps, writers)
    for place, name in enumerate(writers):
        steps = of_writer[name].where(of_writer[name].clear_of(pauses))
        if len(steps) >= 2:
            within = _per_step(calls, place, steps, calls.wait_ns)
            waits[name] = len(steps), float(within.sum() / max(int(steps.duration_ns.sum()), 1))
    # who runs few of the steps waits for nobody because it hardly takes part
    enough = rules["SPY-NET-002"].threshold("min_steps_ratio") * waits.get(busiest, (0, 0.0))[0]
    taking_part = [name for name, (count, _) in waits.items() if count >= enough]
    judged = min(taking_part, key=lambda name: (waits[name][1], name != busiest), default=busiest)
    return Ranks(writers, judged if calls.matched.any() else busiest, calls, of_writer)


def communication(ranks: Ranks, steps: EngineSteps, inputs: AnalysisInputs, rules: RuleBook) -> Communication | None:
    """Measure communication in the judged rank's steps; None where one process runs alone.

    Args:
        ranks: the engine's processes.
        steps: steps of the judged rank in the window, outside of pauses.
        inputs: for the steps of the other ranks, and the profiled steps of the judged one.
        rules: what counts as material.
    """
    calls = ranks.calls
    if calls is None or len(steps) == 0:
        return None
    place = ranks.writers.index(ranks.judged)
    split_ns = {name: _per_step(calls, place, steps, getattr(calls, name)) for name in ("transfer_ns", "wait_ns")}
    blocked = _per_step(calls, place, steps, calls.blocked_ns)
    exposed = {}
    for side, phases in PHASES_OF.items():
        chosen = np.isin(steps.phase, phases)
        length = int(steps.duration_ns[chosen].sum())
        if length == 0:
            continue
        # calls of several threads may overlap: a step is never blocked for longer than it lasts
        capped = np.minimum(blocked, steps.duration_ns) / np.maximum(blocked, 1)
        parts = [float((ns * capped)[chosen].sum()) / length for ns in split_ns.values()]
        total = float((blocked * capped)[chosen].sum()) / length
        trace, trace_transfer = _trace_shares(calls, place, inputs.profiled_steps, side)
        exposed[side] = Exposed(
            transfer=parts[0],
            waiting=parts[1],
            unsplit=max(total - sum(parts), 0.0),
            steps=int(chosen.sum()),
            trace=trace,
            trace_transfer=trace_transfer,
        )
    mine = _within(calls, place, steps)
    moved = calls.bytes[mine]
    known = mine & calls.matched & (calls.wire_bytes > 0) & (calls.transfer_ns > 0)
    sent, sent_ns = int(calls.wire_bytes[known].sum()), int(calls.transfer_ns[known].sum())
    return Communication(
        ranks=len(ranks.writers),
        rank=_world_rank(inputs, ranks.judged, calls.ranks[place]),
        exposed=exposed,
        bytes_per_step=float(moved.sum()) / len(steps) if (moved >= 0).all() else None,
        message_bytes=float(np.median(moved[moved > 0])) if (moved > 0).any() else None,
        calls_per_step=int(mine.sum()) / len(steps),
        wire_bytes_per_s=sent / sent_ns * NS_PER_S if sent_ns else None,
        calls=int(mine.sum()),
        one_clock=calls.one_clock,
        late=_late_rank(ranks, steps, inputs, rules),
        reason=calls.missing,
    )


def link_binds(found: Communication | None, side: Side, split: StepSplit | None, rules: RuleBook) -> bool:
    """Whether moving data is the largest part of a side's steps, and not waiting for a late rank instead."""
    if found is None or side not in found.exposed:
        return False
    rule, share = rules["SPY-NET-001"], found.exposed[side]
    if found.late is not None and found.late.others_share >= share.transfer:
        return False
    if split is None:
        return share.transfer >= rule.threshold("min_transfer_share_alone")
    # what could not be matched or assigned may belong to whatever is largest
    unclear = share.waiting + share.unsplit
    largest_other = max(split.device_compute, split.host, split.exposed_copy, split.unassigned, unclear)
    return share.transfer >= rule.threshold("min_transfer_share") and share.transfer > largest_other


def own_steps(steps: EngineSteps, ranks: Ranks) -> EngineSteps:
    """The same steps, shortened by the time that collectives blocked them."""
    if ranks.calls is None:
        return steps
    place = ranks.writers.index(ranks.judged)
    blocked = np.minimum(_per_step(ranks.calls, place, steps, ranks.calls.blocked_ns), steps.duration_ns)
    return replace(steps, end_ns=steps.end_ns - blocked)


def own_profiled(profiled: tuple[ProfiledStep, ...], ranks: Ranks) -> tuple[ProfiledStep, ...]:
    """The same profiled steps without the time that collectives blocked them.

    A backend that moves data on threads of its own leaves a short operator and a gap in the caller's thread.
    """
    if ranks.calls is None:
        return profiled
    place = ranks.writers.index(ranks.judged)
    made = []
    for step in profiled:
        blocked, traced = _blocked_in(ranks.calls, place, step), _idle_or_communicating(step)
        taken = min(blocked, traced)
        made.append(
            replace(
                step,
                end_ns=step.end_ns - taken,
                operators=tuple(operator for operator in step.operators if operator.kind != "communication"),
                gap_ns=traced - taken,
            )
        )
    return tuple(made)


def with_communication(split: StepSplit, exposed: Exposed | None) -> StepSplit:
    """Put communication back into a split of the time beside it."""
    if exposed is None:
        return split
    rest = max(1.0 - exposed.total, 0.0)
    return replace(
        split,
        device_compute=split.device_compute * rest,
        exposed_communication=exposed.transfer + exposed.unsplit,
        waiting_for_ranks=exposed.waiting,
        exposed_copy=split.exposed_copy * rest,
        host=split.host * rest,
        host_high=split.host_high * rest,
        unassigned=split.unassigned * rest,
    )


def _idle_or_communicating(step: ProfiledStep) -> int:
    return step.gap_ns + sum(operator.ns for operator in step.operators if operator.kind == "communication")


def _blocked_in(calls: Calls, place: int, step: ProfiledStep) -> int:
    return _overlap_ns(calls, place, step, calls.start_ns)


def _moved_in(calls: Calls, place: int, step: ProfiledStep) -> int:
    """How long data moved: the end of each blocked time; nothing of calls that could not be matched."""
    return _overlap_ns(calls, place, step, calls.end_ns - calls.transfer_ns)


def _overlap_ns(calls: Calls, place: int, step: ProfiledStep, from_ns: NDArray[np.int64]) -> int:
    mine = (calls.writer == place) & (calls.start_ns >= 0)
    begin, end = np.maximum(from_ns[mine], step.start_ns), np.minimum(calls.end_ns[mine], step.end_ns)
    return int(np.maximum(end - begin, 0).sum())


def _trace_shares(
    calls: Calls, place: int, profiled: tuple[ProfiledStep, ...], side: Side
) -> tuple[float | None, float | None]:
    """Shares of profiled step time in which a collective blocked and no operator ran: all of it, and transfer alone."""
    chosen = [step for step in profiled if _side_of(step) == side]
    length = sum(step.end_ns - step.start_ns for step in chosen)
    if not length:
        return None, None
    blocked_ns, moved_ns = 0, 0.0
    for step in chosen:
        blocked, moved = _blocked_in(calls, place, step), _moved_in(calls, place, step)
        seen = min(blocked, _idle_or_communicating(step))
        blocked_ns += seen
        # where not all of it was seen, waiting and transfer are seen alike
        moved_ns += seen * moved / max(blocked, 1)
    return blocked_ns / length, moved_ns / length


def _side_of(step: ProfiledStep) -> Side | None:
    """Which side a profiled step speaks for; None where its tokens are unknown or it held none."""
    if step.context_tokens is None:
        return None
    return "prefill" if step.context_tokens > 0 else "decode" if step.generation_requests else None


def _within(calls: Calls, place: int, steps: EngineSteps) -> NDArray[np.bool_]:
    """Which calls of a process began inside its steps; those that nobody waited for by their launch."""
    inside: NDArray[np.bool_] = (calls.writer == place) & (_step_of(calls, steps) >= 0)
    return inside


def _step_of(calls: Calls, steps: EngineSteps) -> NDArray[np.int64]:
    """The step in which each call began to block, -1 for none; steps by start."""
    moment = np.where(calls.start_ns >= 0, calls.start_ns, calls.launch_ns)
    if len(steps) == 0:
        return np.full(len(moment), -1, dtype=np.int64)
    index = np.searchsorted(steps.start_ns, moment, side="right") - 1
    return np.where((index >= 0) & (moment < steps.end_ns[np.maximum(index, 0)]), index, -1)


def _per_step(calls: Calls, place: int, steps: EngineSteps, ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum of a process's calls in each step."""
    index = _step_of(calls, steps)
    chosen = (calls.writer == place) & (index >= 0)
    sums = np.zeros(len(steps), dtype=np.int64)
    np.add.at(sums, index[chosen], ns[chosen])
    return sums


def _late_rank(ranks: Ranks, judged: EngineSteps, inputs: AnalysisInputs, rules: RuleBook) -> LateRank | None:
    """The rank that causes most waiting, if it does so again and again; None where no rank stands out."""
    calls = ranks.calls
    if calls is None or not calls.matched.any():
        return None
    rule = rules["SPY-NET-002"]
    during = (calls.launch_ns >= judged.start_ns[0]) & (calls.launch_ns < judged.end_ns[-1])
    waited_ns = np.where(during & _outside_pauses(calls, ranks, inputs), calls.wait_ns, 0)
    caused = np.array([int(waited_ns[calls.latest == place].sum()) for place in range(len(ranks.writers))])
    place = int(caused.argmax())
    if caused[place] == 0:
        return None
    steps = _steps_between(inputs, ranks, place, judged)
    if len(steps) == 0:
        return None
    late_ns = _per_step(calls, place, steps, np.where(calls.latest == place, calls.caused_ns, 0))
    material = (late_ns > 0) & (late_ns >= rule.threshold("material_wait_ratio") * steps.duration_ns)
    shares = []
    for other in range(len(ranks.writers)):
        theirs = _steps_between(inputs, ranks, other, judged)
        if other != place and len(theirs):
            waited = _per_step(calls, other, theirs, np.where(calls.latest == place, calls.wait_ns, 0))
            shares.append(float(waited.sum()) / max(int(theirs.duration_ns.sum()), 1))
    found = LateRank(
        rank=_world_rank(inputs, ranks.writers[place], calls.ranks[place]),
        judged=ranks.writers[place] == ranks.judged,
        late_ns=int(np.median(late_ns)),
        steps=len(steps),
        share_of_steps=float(material.mean()),
        others_share=max(shares, default=0.0),
        margin=float(caused[place] / caused.sum()),
    )
    enough = found.others_share >= rule.threshold("min_wait_share") and found.margin >= rule.threshold("min_margin")
    return found if enough and found.share_of_steps >= rule.threshold("min_share_of_steps") else None


def _steps_between(inputs: AnalysisInputs, ranks: Ranks, place: int, judged: EngineSteps) -> EngineSteps:
    """Steps of a rank in the judged rank's window, outside of the pauses of any rank."""
    steps = ranks.steps[ranks.writers[place]]
    keep = (steps.start_ns < judged.end_ns[-1]) & (steps.end_ns > judged.start_ns[0])
    return steps.where(keep & steps.clear_of(inputs.pauses))


def _outside_pauses(calls: Calls, ranks: Ranks, inputs: AnalysisInputs) -> NDArray[np.bool_]:
    """Which calls nobody's pause touches: a rank that comes late out of one is waited for until then."""
    begin = np.where(calls.start_ns >= 0, calls.start_ns, calls.launch_ns)
    end = np.maximum(begin, calls.end_ns)
    keep = np.ones(len(calls), dtype=np.bool_)
    for pause in inputs.pauses:
        if pause.writer is None or pause.writer in ranks.writers:
            keep &= (end <= pause.start_ns) | (begin >= pause.end_ns)
    return keep


def _world_rank(inputs: AnalysisInputs, writer: str, otherwise: int) -> int:
    """The process's rank in the world; within its group where steps do not say."""
    known = inputs.steps.loc[inputs.steps["writer"] == writer, "rank"].dropna()
    return int(known.iloc[0]) if len(known) else otherwise
