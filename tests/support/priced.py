"""What ranks did in a step beside what is priced: actions and their collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costmodel.layout.strategy import Uniform, spell_out
from runtime.train.trainer import rank_stream
from tests.oracles.action_traffic import stream_traffic
from tests.oracles.traffic import Exchanged
from tests.support.training_cases import BATCH, EXPERTS, choice_of, job

ROWS = "ep:all_to_all", "etp:all_to_all"
Counted = dict[str, list[int]]  # by "axis:collective", count and bytes


def unlike_priced(family: str, name: str, recorded: Sequence[Any]) -> list[str]:
    """Where the ranks' actions and their collectives are not what is priced.

    Rows that come back from experts are as many on each rank as its router says; over
    the ranks of a stage together they are those that went.
    """
    choice, asked = choice_of(family, name), job(family)
    layout = spell_out(choice, asked.graph, BATCH)
    rows: Counter[tuple[int, int, str]] = Counter()
    found = []
    for rank, records in enumerate(recorded):
        stage = rank // (choice.gpus // choice.pp)
        stream = rank_stream(layout, stage)
        if [one["action"] for one in records] != list(map(str, stream)):
            found.append(f"rank {rank}: another stream")
            continue
        priced = stream_traffic(asked, layout, stream)
        for number, (one, exchanged) in enumerate(zip(records, priced, strict=True)):
            wanted = _as_recorded(family, choice, exchanged)
            for key, more in _returned(wanted, one["collectives"]):
                rows[stage, number, key] += more
            found += [
                f"rank {rank}, {one['action']}: {difference}"
                for difference in _differences(
                    wanted, one["collectives"], fixed=family == "switch"
                )
            ]
    lost = [key for key, balance in rows.items() if balance]
    return found + [
        f"stage {stage}, action {number}, {axis}: rows lost"
        for stage, number, axis in lost
    ]


def _returned(
    wanted: Counted, seen: Mapping[str, list[int]]
) -> Iterator[tuple[str, int]]:
    """How many bytes of experts' rows this rank sent beyond its share, by axis."""
    for key in ROWS:
        if key in wanted and key in seen:
            yield key, seen[key][1] - wanted[key][1]


def _differences(
    wanted: Counted, seen: Mapping[str, list[int]], *, fixed: bool
) -> Iterator[str]:
    """Where traffic is unlike; of rows of experts without a *fixed* capacity only the
    number of exchanges counts."""
    for key in sorted(wanted.keys() | seen.keys()):
        pair = wanted.get(key), seen.get(key)
        if key in ROWS and all(pair) and not fixed:
            pair = wanted[key][:1], seen[key][:1]
        if pair[0] != pair[1]:
            yield f"{key} {pair[1]} and not {pair[0]}"


def _as_recorded(family: str, choice: Uniform, exchanged: Exchanged) -> Counted:
    """Axes that span the job have the world's group in common, and the last's name."""
    whole = choice.dp * choice.cp * choice.tp
    degrees = {"pp": choice.pp, "dp": choice.dp * choice.cp, "tp": choice.tp}
    if family in EXPERTS:
        spread = {"ep": choice.ep, "etp": choice.etp}
        degrees |= {"edp": whole // (choice.ep * choice.etp), **spread}
    spanning = [axis for axis, n in degrees.items() if n == choice.gpus]
    known = dict.fromkeys([*spanning, "world"], (spanning or ["other"])[-1])
    found: Counted = {}
    for (axis, kind), traffic in exchanged.items():
        key = f"{known.get(axis, axis)}:{kind}"
        count, size = found.get(key, [0, 0])
        found[key] = [count + traffic.count, size + traffic.size_bytes]
    return found
