"""A user's own module, traced on fake tensors into the operators of a model."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.trace.factory import Example, module_of
    from profiles.trace.huggingface import shifts_labels
    from profiles.trace.lower import Layer, layers_named
    from profiles.trace.module import module_spec
    from profiles.trace.narrow import sides_of
    from profiles.trace.steps import Amount, Parameter, Saved, Step, Trace
    from profiles.trace.tracer import trace, trace_module, traced
    from profiles.trace.vocabulary import vocabulary_of

__all__, __getattr__ = public(__name__, __file__)
