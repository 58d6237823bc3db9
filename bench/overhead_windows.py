"""What profiler windows cost the recorded program: pauses, slower steps, and the whole loop beside one without them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from overhead_loop import SIZES, compared, in_words, recording, rotated, rows, run_loop

# As `record` opens them for each kind of step, one step and then three, but soon.
WINDOWS = {"window": {"steps": 4, "after_steps": 20, "after_s": 0, "between_s": 0}}
NO_WINDOWS: dict[str, object] = {"window": None}
AMORTISED_STEPS = 1000


def measured(size: str, rounds: int) -> dict[str, Any]:
    """Run the loop with windows, without, and without again, in processes that take turns."""
    seconds: dict[str, list[float]] = {"windows": [], "none": [], "none_again": []}
    sets = []
    for number in range(rounds):
        for key in rotated(list(seconds), number):
            with recording(WINDOWS if key == "windows" else NO_WINDOWS) as (folder, environment):
                seconds[key].append(run_loop(size, environment))
                if key == "windows":
                    sets.append(costs(rows(folder, "window"), rows(folder, "steps")))
    ratios, noise = (
        [one / bare for one, bare in zip(seconds[key], seconds["none"], strict=True)]
        for key in ("windows", "none_again")
    )
    saved = [one for one in sets if one is not None]
    return {
        "size": SIZES[size]._asdict(),
        "rounds": rounds,
        "windows": summed_up(saved),
        "loop": compared(ratios, noise),
        "steps_per_loop": SIZES[size].steps,
    }


def costs(windows: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the saved windows of one process cost it; None when it saved none.

    Args:
        windows: rows with `t0` opening, `t1`..`t2` recorded, `t3` the program went on.
        steps: rows of all its steps, `p` for those inside a window.
    """
    saved = [row for row in windows if row["state"] == "saved" and row["operators"]]
    usual = [step["t1"] - step["t0"] for step in steps if not step.get("p")]
    profiled = [step["t1"] - step["t0"] for step in steps if step.get("p")]
    if not saved or not usual or not profiled:
        return None
    step_ns = statistics.median(usual)
    opening = [row["t1"] - row["t0"] for row in saved]
    closing = [row["t3"] - row["t2"] for row in saved]
    operators = sum(row["operators"] for row in saved)
    return {
        "windows": len(saved),
        "profiled_steps": len(profiled),
        "operators_per_step": operators / len(profiled),
        "step_ms": step_ns / 1e6,
        "opening_ms": statistics.mean(opening) / 1e6,
        "closing_ms": statistics.mean(closing) / 1e6,
        "closing_us_per_operator": sum(closing) / operators / 1e3,
        "slowdown_ratio": statistics.mean(profiled) / step_ns,
        "slowdown_us_per_operator": (sum(profiled) - len(profiled) * step_ns) / operators / 1e3,
        "pauses_ms": (sum(opening) + sum(closing)) / 1e6,
        "slowdown_ms": (sum(profiled) - len(profiled) * step_ns) / 1e6,
    }


def summed_up(sets: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Medians over processes, with the smallest and largest; None without any.

    A slowdown that not all processes saw in the same direction is noise, and no part of the amortised cost.
    """
    if not sets:
        return None
    values = {key: [one[key] for one in sets] for key in sets[0]}
    told: dict[str, Any] = {
        key: {"median": statistics.median(of), "min": min(of), "max": max(of)} for key, of in values.items()
    }
    slowdown = told["slowdown_ratio"]
    told["slowdown_beyond_noise"] = not slowdown["min"] <= 1 <= slowdown["max"]
    cost_ms = told["pauses_ms"]["median"]
    if told["slowdown_beyond_noise"]:
        cost_ms += told["slowdown_ms"]["median"]
    # one set of windows, four profiled steps, on so many steps
    told["amortised_us_per_step"] = cost_ms * 1e3 / AMORTISED_STEPS
    told["amortised_ratio"] = told["amortised_us_per_step"] / (told["step_ms"]["median"] * 1e3)
    return told


_LABELS = (
    ("opening_ms", "pause of opening one, ms"),
    ("closing_ms", "pause of closing and export of one, ms"),
    ("closing_us_per_operator", "  per operator, µs"),
    ("slowdown_ratio", "profiled step over usual step"),
    ("slowdown_us_per_operator", "  added per operator, µs"),
    ("pauses_ms", "all pauses, ms"),
    ("slowdown_ms", "all that was added to steps, ms"),
)


def print_table(name: str, result: Mapping[str, Any]) -> None:
    """Print one size."""
    told = result["windows"]
    print(f"\n(d) profiler windows, {name} steps: ", end="")
    if told is None:
        print("none was saved, nothing to tell")
        return
    print(
        f"{told['step_ms']['median']:.2f} ms, {told['operators_per_step']['median']:.0f} operators; {result['rounds']} "
        f"processes with {told['windows']['median']:g} windows and {told['profiled_steps']['median']:g} profiled steps"
    )
    for key, label in _LABELS:
        value = told[key]
        noise = key.startswith("slowdown") and not told["slowdown_beyond_noise"]
        said = "  below the noise floor: says nothing" if noise else ""
        print(f"{label:>42} {value['median']:9.2f}   [{value['min']:.2f}, {value['max']:.2f}]{said}")
    print(
        f"    once in {AMORTISED_STEPS:,} steps: {told['amortised_us_per_step']:.1f} µs a step, "
        f"{told['amortised_ratio']:.3%} of it" + ("" if told["slowdown_beyond_noise"] else "; the pauses alone")
    )
    print(f"    {result['steps_per_loop']} steps with windows over the same without: {in_words(result['loop'])}")
