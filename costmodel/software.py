"""`Software`: whose code runs the layout, as far as it changes the price.

Overlap is the framework's, not the network's: Megatron-Core hides four fifths of the
gradient reduction behind the last backward, classic Megatron-LM and DeepSpeed hide
none of it; FSDP hides what compute leaves time for. Every framework issues kernels
from one host thread, which puts a floor under a layer's time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from profiles.errors import UnknownName
from profiles.units import MB, US


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A framework. *operator_host_s* is host seconds to issue one operator of the
    graph forward (backward, autograd's C++ thread issues its two products).

    `overlap` names what is hidden: `grad`, `param`, `p2p`. `gradient_format` is what
    16-bit training accumulates gradients in. `flash` and `unfused` name the attention
    kernels that it runs with and without flash attention.
    """

    name: str
    forward_host_s: float
    backward_host_s: float
    overlap: frozenset[str]
    gradient_format: str = "fp32"
    reduce_format: str = "gradient"  # what travels: the gradient's format, or fp32
    flash: str = "flash-2"
    unfused: str = "fused-softmax"
    fused_norm: bool = True
    bucket_bytes: float = 25 * MB  # PyTorch DDP's default
    step_kernels_per_parameter_tensor: float = 0.0
    source: str = ""


_EAGER: Final = "[fitted] floor of a layer and micro-batch, docs/cost-model.md"
FRAMEWORKS: Final[dict[str, Software]] = {
    item.name: item
    for item in (
        Software(
            name="meshwright",
            forward_host_s=45 * US,
            backward_host_s=60 * US,
            overlap=frozenset({"grad", "param"}),
            source=_EAGER,
        ),
        Software(
            name="megatron-core",
            forward_host_s=45 * US,
            backward_host_s=60 * US,
            overlap=frozenset({"grad", "param"}),
            source=_EAGER,
        ),
        Software(
            name="megatron-lm",
            forward_host_s=100 * US,
            backward_host_s=150 * US,
            overlap=frozenset(),
            reduce_format="fp32",
            source=_EAGER,
        ),
        Software(
            name="megatron-deepspeed",
            forward_host_s=110 * US,
            backward_host_s=180 * US,
            overlap=frozenset(),
            gradient_format="bf16+fp32",
            reduce_format="fp32",
            source=_EAGER,
        ),
        Software(
            name="deepspeed",
            forward_host_s=110 * US,
            backward_host_s=180 * US,
            overlap=frozenset({"grad", "param"}),
            gradient_format="bf16+fp32",
            source=_EAGER,
        ),
        Software(
            name="fsdp2",
            forward_host_s=45 * US,
            backward_host_s=60 * US,
            overlap=frozenset({"grad", "param"}),
            source=_EAGER,
        ),
        Software(
            name="nanotron",
            forward_host_s=45 * US,
            backward_host_s=60 * US,
            overlap=frozenset({"grad"}),
            source=_EAGER,
        ),
        Software(
            name="oneflow",
            forward_host_s=30 * US,
            backward_host_s=40 * US,
            overlap=frozenset({"grad"}),
            source=_EAGER,
        ),
    )
}
DEFAULT: Final = "meshwright"

# What published tables call their framework → whose price it is.
_SPELLINGS: Final = (
    ("megatron-deepspeed zero-3", "deepspeed"),
    ("megatron-lm v1.1.5", "megatron-deepspeed"),
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("deepspeed", "deepspeed"),
    ("megatron-core", "megatron-core"),
    ("megatron-bridge", "megatron-core"),
    ("nemo", "megatron-core"),
    ("megatron-moe", "megatron-core"),
    ("megatron", "megatron-lm"),
    ("aa-scaling", "megatron-lm"),
    ("fsdp", "fsdp2"),
    ("torchtitan", "fsdp2"),
    ("composer", "fsdp2"),
    ("nanotron", "nanotron"),
    ("oneflow", "oneflow"),
    ("internevo", "megatron-core"),
)


def software(name: str) -> Software:
    """The framework called *name*; raises UnknownName."""
    if name.lower() in FRAMEWORKS:
        return FRAMEWORKS[name.lower()]
    raise UnknownName("framework", name, FRAMEWORKS)


def software_of_run(printed: str) -> Software:
    """The nearest known framework to what a published run printed.

    Unknown ones are priced as the default; the caller says so.
    """
    text = printed.lower()
    for spelling, name in _SPELLINGS:
        if spelling in text:
            return FRAMEWORKS[name]
    return FRAMEWORKS[DEFAULT]


def with_overlap(base: Software, overlap: frozenset[str]) -> Software:
    """The same framework hiding just *overlap*."""
    return replace(base, overlap=overlap)
