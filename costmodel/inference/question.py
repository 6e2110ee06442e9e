"""What `simulate --inference` asks, complete: defaults resolved once, each named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from costmodel.inference.kv_cache import GROUP_SIZE, Stored
from costmodel.layout import Uniform
from costmodel.machine import Machine, machine
from costmodel.operators import Degrees
from costmodel.options import CACHE_FORMATS, QUANTIZATIONS, W8A8, InferenceOptions, Pins
from costmodel.simulation import (
    default_precision,
    degrees_asked,
    flash_default,
    unbalanced,
)
from costmodel.support import machine_violations, width_violations
from profiles.commandline import JobOptions
from profiles.errors import Contradiction, UnknownName, Unsupported
from profiles.hardware import Cluster, Format, Precision, precision
from profiles.models import DecoderSpec, Job, Model

NEW_TOKENS: Final = 128  # as vLLM's benchmarks (`vllm bench latency`, --output-len)
_SIXTEEN_BIT: Final = ("fp16", "bf16")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A model served by dp replicas of tp · pp ranks, and the sequences they have.

    `job.seq_len` is the context that the cache has room for. A replica has
    `micro_batches` groups of `micro_batch` sequences on their way through its stages.
    """

    job: Job
    choice: Uniform
    micro_batches: int
    prompt_len: int
    new_tokens: int
    stored: Stored
    cache: Format
    graphs: bool
    machine: Machine
    assumed: dict[str, Any] = field(default_factory=dict)

    @property
    def precision(self) -> Precision:
        return self.stored.precision

    def document(self) -> dict[str, Any]:
        """The layout, and how weights and the cache are stored."""
        choice, quantization = self.choice, self.stored.quantization
        return {
            **{name: getattr(choice, name) for name in ("tp", "pp", "dp", "ep")},
            "micro_batch": choice.micro_batch,
            "micro_batches": self.micro_batches,
            "global_batch": self.job.global_batch,
            "precision": choice.precision,
            "kv_cache_dtype": self.cache.value,
            "quantization": quantization,
            "group_size": self.stored.group_size if quantization else None,
            "flash_attention": choice.flash_attention,
            "cuda_graphs": self.graphs,
        }

    def degrees(self, micro_batch: Any, seq_len: int) -> Degrees:
        """How a pass over so many sequences (an array) is cut."""
        choice = self.choice
        return Degrees(
            tp=np.asarray(choice.tp),
            cp=np.asarray(1),
            micro_batch=np.asarray(micro_batch),
            seq_len=seq_len,
            sequence_parallel=False,
            flash_attention=choice.flash_attention,
            ep=np.asarray(choice.ep),
            etp=np.asarray(choice.etp),
            imbalance=self.machine.imbalance,
        )


def resolve(
    model: Model,
    cluster: Cluster,
    wish: JobOptions,
    pins: Pins,
    options: InferenceOptions,
) -> Question:
    """Complete a question about inference.

    Raises Contradiction with every violation, InvalidSpec for more tokens than learned
    positions, Unsupported for other models than decoders and unlike islands.
    """
    _require_one_island(cluster)
    spec, assumed = served_spec(model), dict[str, Any]()
    if wish.cluster is None:
        assumed["cluster"] = cluster.name
    choice = degrees_asked(wish, pins, assumed)
    assumed.pop("cp", None)
    context, prompt, new = _lengths(wish, options, model.seq_len, assumed)
    choice, groups = _batches(choice, wish, pins, assumed)
    job = Job(
        model=model.name,
        spec=spec,
        seq_len=context,
        global_batch=choice.dp * groups * choice.micro_batch,
    )
    choice = _experts(choice, job, pins, assumed)
    choice = replace(
        choice,
        precision=wish.precision
        or _noted(assumed, "precision", default_precision(cluster)),
        flash_attention=_noted(assumed, "flash_attention", flash_default(cluster))
        if pins.flash_attention is None
        else pins.flash_attention,
    )
    stored = _stored(choice.precision, options, assumed)
    cache = _cache_format(stored, options, assumed)
    graphs = options.cuda_graphs
    if graphs is None:
        graphs = _noted(assumed, "cuda_graphs", True)
    found = Question(
        job=job,
        choice=choice,
        micro_batches=groups,
        prompt_len=prompt,
        new_tokens=new,
        stored=stored,
        cache=cache,
        graphs=graphs,
        machine=unbalanced(machine(cluster), job, pins.imbalance, assumed),
        assumed=assumed,
    )
    wrong = list(_violations(found, cluster))
    if wrong:
        raise Contradiction("; ".join(wrong))
    return found


def _require_one_island(cluster: Cluster) -> None:
    """Raises Unsupported."""
    if len(cluster.islands) > 1:
        raise Unsupported(
            f"cluster {cluster.name!r} joins {len(cluster.islands)} islands; inference "
            "is priced on one: name one of them"
        )


def _cache_format(
    stored: Stored, options: InferenceOptions, assumed: dict[str, Any]
) -> Format:
    """Of cached keys and values; raises UnknownName."""
    cache = options.kv_cache_dtype or _noted(
        assumed, "kv_cache_dtype", stored.precision.activation.value
    )
    if cache not in CACHE_FORMATS:
        raise UnknownName("format of the cache", cache, CACHE_FORMATS)
    return Format(cache)


def _noted(assumed: dict[str, Any], name: str, value: Any) -> Any:
    """*value*, noted as assumed."""
    assumed[name] = value
    return value


def _lengths(
    wish: JobOptions, options: InferenceOptions, usual: int, assumed: dict[str, Any]
) -> tuple[int, int, int]:
    """(context, prompt, new tokens): what is left out follows from the others."""
    context, prompt, new = wish.seq_len, options.prompt_len, options.new_tokens
    if context is None and prompt is None:
        context = _noted(assumed, "seq_len", usual)
    if new is None:
        if prompt is None or context is None:
            most = NEW_TOKENS if context is None else min(NEW_TOKENS, context // 2)
            new = max(most, 1)
        else:
            new = context - prompt
        _noted(assumed, "new_tokens", new)
    if prompt is None:
        assert context is not None
        prompt = _noted(assumed, "prompt_len", context - new)
    if context is None:
        context = _noted(assumed, "seq_len", prompt + new)
    if prompt < 1 or new < 1 or prompt + new > context:
        raise Contradiction(
            f"a context of {context:,} tokens (--seq-len) has no room for a prompt of "
            f"{max(prompt, 1):,} and {max(new, 1):,} new ones; give a longer one, or "
            "fewer tokens (--prompt-len, --new-tokens)"
        )
    return context, prompt, new


def _batches(
    choice: Uniform, wish: JobOptions, pins: Pins, assumed: dict[str, Any]
) -> tuple[Uniform, int]:
    """*choice* with its micro-batch, and how many of them a replica has at once.

    Left out, each pipeline rank has one; of a --global-batch as many as divide it.
    """
    size, groups, every = pins.micro_batch, pins.micro_batches, wish.global_batch
    if every is None:
        size = size or _noted(assumed, "micro_batch", 1)
        groups = groups or _noted(assumed, "micro_batches", choice.pp)
        _noted(assumed, "global_batch", choice.dp * groups * size)
        return replace(choice, micro_batch=size), groups
    own, rest = divmod(every, choice.dp)
    if groups is None:
        groups = own // size if size else _most_divisor(own, choice.pp)
        _noted(assumed, "micro_batches", groups)
    if size is None:
        size = _noted(assumed, "micro_batch", own // groups if groups else 0)
    if rest or not own or groups * size != own:
        raise Contradiction(
            f"--global-batch {every} is not dp {choice.dp} × {max(groups, 1)} "
            f"micro-batches of {max(size, 1)} sequences; leave one of them out, or "
            "choose numbers whose product it is"
        )
    return replace(choice, micro_batch=size), groups


def _most_divisor(number: int, most: int) -> int:
    return next(
        (one for one in range(min(most, number), 0, -1) if number % one == 0), 1
    )


def served_spec(model: Model) -> DecoderSpec:
    """A model's spec without what is of training alone: dropout, tokens dropped at full
    experts, and further tokens predicted."""
    spec = model.spec
    if not isinstance(spec, DecoderSpec):
        raise Unsupported(
            f"{model.name} is of family {spec.family!r}; inference is priced for "
            "decoders"
        )
    if spec.recurrence is not None:
        raise Unsupported(
            f"{model.name} has layers of a recurrence ({spec.recurrence.kind}), whose "
            "states inference does not price yet; its training is priced"
        )
    moe = None if spec.moe is None else replace(spec.moe, capacity_factor=None)
    return replace(spec, dropout=0.0, multi_token_heads=0, moe=moe)


def _experts(choice: Uniform, job: Job, pins: Pins, assumed: dict[str, Any]) -> Uniform:
    if not job.has_experts:
        return replace(choice, ep=pins.ep or 1)
    ep = pins.ep or _noted(assumed, "ep", 1)
    return replace(choice, ep=ep, etp=choice.tp if ep == 1 else 1)


def _stored(name: str, options: InferenceOptions, assumed: dict[str, Any]) -> Stored:
    """How weights are stored; raises Contradiction for what nobody stores so."""
    if name.startswith("amp-"):
        raise Contradiction(
            f"--precision {name} keeps fp32 weights for training; give "
            f"{name.removeprefix('amp-')} or fp32"
        )
    quantization, group = options.quantization, options.group_size
    if quantization is None:
        if group is not None:
            raise Contradiction(
                f"--group-size {group} is of quantized weights; add --quantization"
            )
        return Stored(precision=precision(name))
    known = (*QUANTIZATIONS, W8A8)
    if quantization not in known:
        raise UnknownName("quantization", quantization, known)
    if name not in _SIXTEEN_BIT:
        raise Contradiction(
            f"--quantization {quantization} stores weights that are multiplied in 16 "
            f"bits, and --precision is {name}; give one of {', '.join(_SIXTEEN_BIT)}"
        )
    group = group or _noted(assumed, "group_size", GROUP_SIZE)
    return Stored(
        precision=precision(name), quantization=quantization, group_size=group
    )


def _violations(asked: Question, cluster: Cluster) -> Iterator[str]:
    choice, job = asked.choice, asked.job
    if asked.stored.quantization == W8A8:
        slow = [one for one in cluster.islands if "fp8" not in one.device.peak]
        for island in slow:
            yield (
                f"--quantization {W8A8}: no rate of products of 8 bits is known for "
                f"{island.device.name}; choose {' or '.join(QUANTIZATIONS)}, or a "
                "newer device"
            )
    yield from machine_violations(choice, cluster)
    if choice.pp > job.graph.body:
        yield f"pp={choice.pp} is more than the {job.graph.body} layers"
    spec = job.spec
    assert isinstance(spec, DecoderSpec), "`resolve` takes no others"
    yield from width_violations(choice.tp, job.graph)
    yield from _of_experts(choice, spec, job)


def _of_experts(choice: Uniform, spec: DecoderSpec, job: Job) -> Iterator[str]:
    tp, ep, moe = choice.tp, choice.ep, spec.moe
    if moe is None:
        if ep > 1:
            yield f"ep={ep}: {job.model} has no experts to spread; leave ep at 1"
        return
    if moe.shared_experts * moe.shared_ffn_hidden % tp:
        yield (
            f"tp={tp} does not divide the shared experts' width "
            f"{moe.shared_experts * moe.shared_ffn_hidden}"
        )
    if ep == 1:
        if moe.expert_ffn_hidden % tp:
            yield f"tp={tp} does not divide the experts' width {moe.expert_ffn_hidden}"
        return
    if moe.experts % ep:
        yield f"ep={ep} does not divide the {moe.experts} experts"
    if ep % tp or choice.dp % (ep // tp):
        yield (
            f"ep={ep} is not tp {tp} × a divisor of dp {choice.dp}: experts lie on the "
            "ranks of one replica, or of several whole ones"
        )
    elif ep > tp and choice.pp > 1:
        yield f"ep={ep} over replicas of pp={choice.pp} stages is not priced; set pp 1"
