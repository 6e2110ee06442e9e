"""Layouts in words: one line, as people say it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

from costmodel.layout import AS_IT_IS, EVERYTHING, Layout, Stage, Uniform, operator_of
from costmodel.report import cut_words, layout_words
from planner.problem.problem import Candidate, Staged

MOST_STAGES = 2  # that are told one by one
MOST_NAMES = 2  # of tensors in a list


def choice_words(choice: Uniform, global_batch: int) -> str:
    """*choice* in one line; what is one or off is left out.

    >>> choice_words(Uniform(tp=8, dp=4, zero_group=4, recompute="full"), 16)
    'tp 8 · dp 4, micro-batch 1 × 4, ZeRO-1, recompute full'
    >>> choice_words(Uniform(dp=8, cp=2, zero_group=2), 16)
    'dp 8 · cp 2, micro-batch 1 × 2, ZeRO-1 over 4 ranks, ring attention'
    """
    degrees = [
        f"{name} {getattr(choice, name)}"
        for name in ("tp", "pp", "dp", "cp", "ep", "etp")
        if getattr(choice, name) > 1
    ]
    parts = [" · ".join(degrees) or "one device"]
    if choice.pp > 1:
        virtual = f" × {choice.virtual_stages}" if choice.virtual_stages > 1 else ""
        parts.append(f"{choice.schedule}{virtual}")
    if choice.layers_per_stage is not None:
        parts += filter(None, [cut_words(choice.layers_per_stage)])
    count = choice.micro_batches(global_batch)
    parts.append(f"micro-batch {choice.micro_batch} × {count}")
    if choice.zero:
        part = choice.zero_group < choice.dp
        over = f" over {choice.zero_group * choice.cp} ranks" if part else ""
        parts.append(f"ZeRO-{choice.zero}{over}")
    if choice.zero_plus.anything:
        parts.append(str(choice.zero_plus))
    if choice.sequence_parallel:
        parts.append("sequence parallel")
    if choice.cp > 1:
        parts.append(f"{choice.cp_kind} attention")
    if choice.recompute != "none":
        first = choice.recompute_layers
        limit = "" if first is None else f" in {first} layers a stage"
        parts.append(f"recompute {choice.recompute}{limit}")
    if choice.offload.anything:
        parts.append(f"offload {choice.offload} to {choice.offload.tier}")
    if choice.offload.compress != AS_IT_IS:
        parts.append(f"activations in {choice.offload.compress} bits")
    return ", ".join(parts)


def short_words(choice: Uniform, global_batch: int) -> str:
    """The same for a column of a table.

    >>> choice = Uniform(tp=2, pp=4, sequence_parallel=True, zero=0)
    >>> short_words(choice, 16)
    'tp 2 sp · pp 4 · 1f1b · mb 1×16'
    """
    split = " sp" if choice.sequence_parallel else ""
    parts = [f"tp {choice.tp}{split}"] if choice.tp > 1 else []
    parts += [
        f"{name} {getattr(choice, name)}"
        for name in ("pp", "dp", "ep", "etp")
        if getattr(choice, name) > 1
    ]
    if choice.cp > 1:
        parts.append(f"cp {choice.cp} {choice.cp_kind}")
    if choice.pp > 1:
        virtual = f"×{choice.virtual_stages}" if choice.virtual_stages > 1 else ""
        parts.append(f"{choice.schedule}{virtual}")
    if choice.layers_per_stage is not None:
        parts += filter(None, [cut_words(choice.layers_per_stage)])
    parts.append(f"mb {choice.micro_batch}×{choice.micro_batches(global_batch)}")
    if choice.zero:
        part = choice.zero_group < choice.dp
        over = f"/{choice.zero_group * choice.cp}" if part else ""
        parts.append(f"ZeRO-{choice.zero}{over}")
    if choice.recompute != "none":
        parts.append(f"recompute {choice.recompute}")
    if choice.offload.anything:
        parts.append(f"offload {choice.offload}")
    if choice.offload.compress != AS_IT_IS:
        parts.append(f"activations in {choice.offload.compress} bits")
    return " · ".join(parts)


def candidate_words(candidate: Candidate, global_batch: int) -> str:
    """A candidate's layout in one line; stages that differ one by one."""
    if isinstance(candidate, Staged):
        return layout_words(candidate.estimate.layout)
    return choice_words(candidate.choice, global_batch)


def short_candidate_words(candidate: Candidate, global_batch: int) -> str:
    """The same for a column of a table."""
    if isinstance(candidate, Staged):
        return layout_words(candidate.estimate.layout)
    return short_words(candidate.choice, global_batch)


def retention_words(layout: Layout) -> str:
    """What the stages of *layout* make again, like neighbours together."""
    return _by_stage(layout, _again)


def away_words(layout: Layout) -> str:
    """How much of what the stages of *layout* keep is on the host, likewise."""
    return _by_stage(layout, _away)


def _by_stage(layout: Layout, words_of: Callable[[Stage], str]) -> str:
    what = "virtual stage" if layout.virtual_stages > 1 else "stage"
    told = [(place, words_of(stage)) for place, stage in enumerate(layout.stages)]
    parts = []
    for words, group in groupby(told, key=lambda one: one[1]):
        first, *rest = [place for place, _ in group]
        named = f"{first}-{rest[-1]}" if rest else f"{first}"
        parts.append(f"{what} {named}: {words}")
    left = len(parts) - MOST_STAGES
    shown = parts[:MOST_STAGES] + ([f"and {left} more"] if left > 0 else [])
    return "; ".join(shown)


def _again(stage: Stage) -> str:
    """The operators that layers of *stage* run again, and in how many if not in all."""
    plans = [
        plan
        for name, plan in zip(stage.layers, stage.plans, strict=True)
        if name.isdigit()
    ]
    counts = Counter(tuple(sorted(plan.retention.recomputed)) for plan in plans)
    parts = [
        _listed(names) + (f" in {count} of {len(plans)}" if len(counts) > 1 else "")
        for names, count in counts.items()
        if names
    ]
    return " and ".join(parts) or "nothing"


def _listed(names: Sequence[str]) -> str:
    """The first of *names*; of long lists, how many there are beside."""
    shown = [_short(name) for name in names]
    more = len(shown) - MOST_NAMES
    if more > 1:
        shown[MOST_NAMES:] = [f"{more} more"]
    return ", ".join(shown)


def _away(stage: Stage) -> str:
    """The largest share of any layer's, and in how many layers it is that."""
    treated = [
        max(
            (one.ratio for one in plan.retention.tensors.values() if one.tier),
            default=0,
        )
        for name, plan in zip(stage.layers, stage.plans, strict=True)
        if name.isdigit()
    ]
    most = max(treated, default=0)
    return (
        f"{most:.1%} in {treated.count(most)} of {len(treated)}" if most else "nothing"
    )


def _short(name: str) -> str:
    return "everything" if name == EVERYTHING else operator_of(name)
