"""How well estimates of a table of runs agree with what was measured, as tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_COUNTS: Final = (("rows", "rows"), ("priced", "priced"), ("compared", "used"))
_SHARES: Final = (
    ("step_time_mape", "error"),
    ("step_time_median_ape", "median"),
    ("step_time_bias", "bias"),
    ("kendall_tau", "tau"),
    ("regret", "regret"),
    ("peak_memory_mape", "memory"),
)
_LONGEST: Final = 36
_LONGEST_REASON: Final = 80
_REASON: Final = re.compile(r"(?:'[^']*'|[^:;])+")  # colons in quotes are a cell's


def summary_view(summary: Mapping[str, Any]) -> Group:
    """What `simulate --runs` shows: errors by source, verdicts, why rows lack a price.

    *summary* is that of `validate.whole_summary`.
    """
    from rich.console import Group
    from rich.text import Text

    return Group(
        errors_table("source", {**summary["by_source"], "all": summary}),
        Text(),
        *(Text(line) for line in whole_words(summary)),
        *(Text(line) for line in reasons(summary["not_priced"])),
    )


def whole_words(summary: Mapping[str, Any]) -> list[str]:
    """What the table by source does not say."""
    priced = f"{summary['complete_priced']:,} of {summary['complete']:,}"
    error = _cell("", summary["step_time_mape_by_source"])
    inside = _cell("", summary["inside_interval"])
    tau = _cell("kendall_tau", summary["kendall_tau_by_group"])
    regret = _cell("", summary["regret_by_group"])
    lines = [
        f"priced, of rows that say shape, layout, batch and cluster: {priced}",
        f"mean error over sources: {error}; inside p10-p90: {inside}",
        f"over {summary['groups']} groups: tau {tau}, regret {regret}",
        oom_words(summary["oom"]),
    ]
    for name in ("family", "source"):
        left = summary[f"without_{name}"]
        if left["rows"]:
            lines.append(
                f"by fits without a run's {name}: mean {_cell('', left['mean'])}, "
                f"median {_cell('', left['median'])}, over sources "
                f"{_cell('', left['by_source'])} ({left['rows']:,} rows)"
            )
    return lines


def errors_table(title: str, parts: Mapping[str, Mapping[str, Any]]) -> Table:
    """One line a part: rows, how many are priced and compared, and their errors."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(title)
    for _, words in (*_COUNTS, *_SHARES):
        table.add_column(words, justify="right", no_wrap=True)
    for name, part in parts.items():
        table.add_row(
            name[:_LONGEST] or "(not said)",
            *(f"{part[count]:,}" for count, _ in _COUNTS),
            *(_cell(share, part[share]) for share, _ in _SHARES),
        )
    return table


def oom_words(verdicts: Mapping[str, int]) -> str:
    """The verdicts on memory in one line.

    >>> oom_words({"true_positive": 3, "false_positive": 1, "true_negative": 9,
    ...     "false_negative": 0})
    'out of memory: 3 of 3 predicted; 9 of 10 that ran predicted to fit'
    """
    ran = verdicts["true_negative"] + verdicts["false_positive"]
    failed = verdicts["true_positive"] + verdicts["false_negative"]
    return (
        f"out of memory: {verdicts['true_positive']} of {failed} predicted; "
        f"{verdicts['true_negative']} of {ran} that ran predicted to fit"
    )


def reasons(counts: Mapping[str, int], most: int = 12) -> list[str]:
    """Why rows have no price, most frequent first: the cell, or what is not priced."""
    found = Counter(counts)
    lines = [f"{count:5,} × {reason}" for reason, count in found.most_common(most)]
    rest = sum(found.values()) - sum(count for _, count in found.most_common(most))
    return lines + ([f"{rest:5,} × other reasons"] if rest else [])


def reason(error: str) -> str:
    """An error without what is allowed and what to do.

    >>> reason("seq_len is missing: fill it in"), reason("cluster='a: b': not known")
    ('seq_len is missing', "cluster='a: b'")
    """
    found = _REASON.match(error)
    return (found.group() if found else error)[:_LONGEST_REASON]


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name == "kendall_tau":
        return f"{value:.2f}"
    return f"{value:+.1%}" if name == "step_time_bias" else f"{value:.1%}"
