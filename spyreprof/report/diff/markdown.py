"""A comparison as Markdown, for a ticket or a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spyreprof.report.diff.model import Diff
from spyreprof.report.diff.terminal import (
    attribution_sentences,
    change_cells,
    condition_cells,
    finding_sentence,
    numbers,
    phase_sentence,
    side_items,
)
from spyreprof.report.visible import visible

# Colons begin links and the names of emoji, a dot behind www a link.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&@]|:(?=[\w+/-])(?!\d)|(?<=www)\.)", re.IGNORECASE)


def markdown(diff: Diff) -> str:
    """Everything that `render(show_all=True)` draws. No text in it is taken for markup, a link or a mention."""
    lines = [
        f"## {diff.verdict.outcome.replace('_', ' ')}: {_plain(diff.verdict.headline)}",
        "",
        _plain(diff.verdict.reason),
    ]
    lines += ["", *_table(("", "run", "verdict"), [
        [name, ", ".join(side_items(side)), side.headline] for name, side in (("A", diff.a), ("B", diff.b))
    ])]  # fmt: skip
    needs = [[c.name, c.obtain] for c in diff.conditions if c.bearing == "withholds" and c.obtain]
    if needs:
        lines += ["", "### Needed for a comparison", "", *_table(("condition", "how"), needs)]
    lines += ["", "### What changed, from A to B", ""]
    lines += _table(("metric", "A", "B", "change", "outcome", "range"), [change_cells(c) for c in diff.changes])
    lines += ["", "### Where it changed", ""]
    found = diff.attribution
    if found is None:
        lines.append(_plain(f"Not told: {diff.attribution_missing}."))
    else:
        lines += [*map(_plain, attribution_sentences(found)), ""]
        rows = [[part.id, *numbers(part.a_ns, part.b_ns)] for part in found.parts]
        lines += _table(("part", "A ns", "B ns", "change ns"), [*rows, ["sum", *numbers(found.a_ns, found.b_ns)]])
        lines += [""] if found.phases else []
        lines += [f"- {p.phase}: {_plain(phase_sentence(p.by_steps_ns, p.by_step_time_ns))}" for p in found.phases]
    lines += ["", "### Findings", ""]
    lines += [f"- {f.state.replace('_', ' ')}: {_plain(finding_sentence(f))}" for f in diff.findings] or ["None."]
    lines += ["", "### Conditions", ""]
    lines += _table(("condition", "state", "means", "A and B"), [condition_cells(c) for c in diff.conditions])
    return "\n".join(lines) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(map(_plain, row))} |" for row in rows),
    ]


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", visible(text))
