"""`module_spec`: from a factory's name to the model that is planned."""

from __future__ import annotations

from functools import lru_cache

from profiles.files import require_package
from profiles.models import ModelGraph, ModuleSpec


@lru_cache(maxsize=16)
def module_spec(
    reference: str, *, seq_len: int | None = None
) -> tuple[ModuleSpec, ModelGraph]:
    """The module that `package.module:factory` makes, traced, and its graph.

    Raises InvalidSpec, UnknownName and Unsupported, each with what to do.
    """
    require_package("torch", "tracing a module", extra="runtime")
    from profiles.trace.factory import module_of
    from profiles.trace.lower import spec_of
    from profiles.trace.narrow import splittable
    from profiles.trace.tracer import trace_module

    module, example = module_of(reference, seq_len=seq_len)
    found = trace_module(module, example, name=reference)
    return spec_of(found, splittable(found, module, example))
