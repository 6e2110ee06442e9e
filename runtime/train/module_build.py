"""The stages of a user's own module: its graph cut in layers, or, where tensor
parallelism or experts need its own code, the module as it is.

    factory → first values → tensor parallel → recompute → precision → replicas

Every rank makes the whole module once, from one seed, and keeps what its stages have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves

from costmodel.layout import EVERYTHING, Layout
from costmodel.layout import Stage as StagePlan
from profiles.errors import Unsupported
from profiles.models import ModuleSpec
from profiles.trace import Example, module_of, shifts_labels, vocabulary_of
from runtime.data import SYNTHETIC, source
from runtime.models import policy
from runtime.modules import Cut, Samples, Tokens, TracedStage, WholeStage, cut_of
from runtime.offload import StateOffload
from runtime.parallel import Replicas, Unit, all_reduce_from, own_group
from runtime.remat import Quantizer, compress_module
from runtime.train.build import Builder, LocalStage


@dataclass(frozen=True)
class ModuleBuilder(Builder):
    """Makes the virtual stages of a layout for a module."""

    samples: Samples = field(kw_only=True)

    @property
    def spec(self) -> ModuleSpec:
        assert isinstance(self.job.spec, ModuleSpec)
        return self.job.spec

    @cached_property
    def whole(self) -> nn.Module:
        """The module with its first values."""
        torch.manual_seed(self.setup.seed)
        module, _ = module_of(self.spec.module, seq_len=self.spec.seq_len, meta=False)
        return module.to(self.setup.device)

    @cached_property
    def cut(self) -> Cut:
        """Its graph."""
        meta, example = module_of(self.spec.module, seq_len=self.spec.seq_len)
        return cut_of(meta, example, self.spec.module)

    def _stage(self, index: int, rank: int, alike: Replicas) -> LocalStage:
        layout, plan = self.layout, self.layout.stages[index]
        away = StateOffload.of(layout.offload, self._zero)
        quantizer = Quantizer()
        module = self._module(plan, quantizer)
        micro_batch = layout.micro_batch(plan)
        rules = policy(layout.precision_name)
        come, go = widths(module)
        return LocalStage(
            index=index,
            module=module,
            first=index == 0,
            last=index == len(layout.stages) - 1,
            boundary=(micro_batch, come),
            sent=(micro_batch, go),
            dtype=rules.activation,
            device=self.setup.device,
            copy=plan.held_by.index(rank),
            parallel=self._parallel(module, away, alike, None, len(plan.held_by)),
            sequence_parallel=False,
            replicas=alike,
            copies=len(plan.held_by),
            away=away,
            quantizer=quantizer,
        )

    def _module(self, plan: StagePlan, quantizer: Quantizer) -> nn.Module:
        again = [
            name
            for name, one in zip(plan.layers, plan.plans, strict=True)
            if EVERYTHING in one.retention.recomputed
        ]
        packed = {
            name: how
            for name, one in zip(plan.layers, plan.plans, strict=True)
            if (how := one.retention.compressed(EVERYTHING)) is not None
        }
        if not self.spec.own_code and plan.mesh.tp == 1:
            stage = TracedStage(self.cut, plan.layers, self.whole, self.samples)
            stage.recompute(again)
            for name, how in packed.items():
                if name in stage.layers:
                    compress_module(stage.layers[name], how, quantizer, name)
            return stage
        paths = {layer.name: layer.path for layer in self.cut.layers if layer.path}
        held = WholeStage(self.whole, self.samples, list(paths.values()))
        if plan.mesh.tp > 1:
            held.split(self.spec, self.meshes.weights["tp"])
        held.recompute([paths[name] for name in again])
        for name, how in packed.items():
            unit = self.whole.get_submodule(paths[name])
            compress_module(unit, how, quantizer, name)
        return held

    def _apart(self, stage: nn.Module) -> list[Unit]:
        assert isinstance(stage, TracedStage | WholeStage)
        return list(stage.units())


def widths(module: nn.Module) -> tuple[int, int]:
    """Elements of a sample that come into a stage, and that it hands on."""
    if isinstance(module, TracedStage):
        return module.comes, module.goes
    return 1, 1


class SharedParameters:
    """Parameters that layers of several stages hold: their gradients are summed over
    the pipeline ranks that have one, so that copies stay equal."""

    def __init__(self, cut: Cut, layout: Layout, mesh: DeviceMesh) -> None:
        self.group: dist.ProcessGroup | None = None
        self._device = torch.device(mesh.device_type)
        self._ranks: dict[str, int] = {}
        self._groups: dict[str, dist.ProcessGroup | None] = {}
        opened: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for name, ranks in _holders(cut, layout):
            self._ranks[name] = len(ranks)
            if len(ranks) > 1 and ranks not in opened:
                held = [mesh.mesh.select(0, one).flatten().tolist() for one in ranks]
                groups = [list(some) for some in zip(*held, strict=True)]
                opened[ranks] = own_group(groups)
            self._groups[name] = opened.get(ranks)

    @property
    def names(self) -> Collection[str]:
        """Of gradients that `sum` changes."""
        return self._ranks

    def copies_of(self, name: str) -> int:
        """How many pipeline ranks hold the parameter called *name*: gradients are
        collected by name, so that two stages of one rank have one."""
        return self._ranks.get(name, 1)

    def sum(self, stages: Collection[Mapping[str, Tensor]]) -> None:
        """Give every copy the sum of all, in place."""
        for name in self._ranks:
            here = [made[name] for made in stages if name in made]
            if not here:
                continue
            first, *others = here
            for other in others:
                first.add_(other)
            group = self._groups[name]
            if group is not None:
                all_reduce_from(first, group, self._device)
            for other in others:
                other.copy_(first)


def _holders(cut: Cut, layout: Layout) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Parameters that several stages hold, and the pipeline ranks of these."""
    for parameter in cut.trace.parameters:
        places = cut.holders(parameter.name)
        names = {cut.layers[place].name for place in places}
        stages = [one for one in layout.stages if names.intersection(one.layers)]
        if len(stages) > 1:
            ranks = sorted({one.held_by[0] for one in stages})
            yield parameter.name, tuple(ranks)


def samples(
    data: str, spec: ModuleSpec, seed: int, *, checked: bool = False
) -> Samples:
    """Synthetic samples of the form that the module says, or the tokens of *data* where
    it reads tokens; raises Unsupported where it does not, and what `source` does.
    """
    torch.manual_seed(seed)
    _, example = module_of(spec.module, seq_len=spec.seq_len, meta=False)
    made = Samples(example=example, seq_len=spec.seq_len, seed=seed, name=spec.module)
    if data == SYNTHETIC:
        return made
    place, labels = _token_inputs(data, spec, example)
    module, inputs = module_of(spec.module, seq_len=spec.seq_len)
    tokens = tree_leaves((inputs.args, dict(inputs.kwargs)))[place]
    shifts = shifts_labels(module)
    if shifts is False:
        raise _no_tokens(data, spec, "its labels are not the tokens that come next")
    rows = vocabulary_of(module, inputs, tokens)
    if rows is None:
        raise _no_tokens(data, spec, "it looks its tokens up in no table")
    read = source(data, vocab=rows, seq_len=spec.seq_len, seed=seed, checked=checked)
    found = Tokens(source=read, place=place + 1, labels=labels + 1, shifts=bool(shifts))
    return replace(made, tokens=found)


def _token_inputs(data: str, spec: ModuleSpec, example: Example) -> tuple[int, int]:
    """Where among the inputs the tokens and their labels are: the only ones that are
    integers of a sequence; raises Unsupported."""
    leaves = tree_leaves((example.args, dict(example.kwargs)))
    named = {id(one): name for name, one in example.kwargs.items()}
    found = [
        place
        for place, one in enumerate(leaves)
        if example.batched(one)
        and one.shape[1:] == (spec.seq_len,)
        and not (one.is_floating_point() or one.dtype is torch.bool)
    ]
    if len(found) != 2 or len(found) != sum(map(example.batched, leaves)):
        raise _no_tokens(data, spec, "its inputs are not tokens and a label for each")
    first, second = found
    if named.get(id(leaves[first])) == "labels":
        return second, first
    return first, second


def _no_tokens(data: str, spec: ModuleSpec, why: str) -> Unsupported:
    return Unsupported(
        f"--data {data}: {spec.module} is trained on synthetic samples of the form of "
        f"its inputs, for {why}; leave --data out, or train it by runtime.parallelize"
    )
