"""The shape of a network, a dataclass a family, with no decision in it.

`family` in a spec file says which. Sizes are counts.
"""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.models.spec.decoder import (
        DENSE,
        EXPERTS,
        FULL,
        RECURRENT,
        SLIDING,
        USUAL,
        Arrangement,
        DecoderSpec,
        MlaSpec,
        MoeSpec,
        Numerics,
        RecurrenceSpec,
        RopeScaling,
    )
    from profiles.models.spec.encoders import BertSpec, EncoderDecoderSpec
    from profiles.models.spec.families import FAMILIES, ModelSpec, spec_document
    from profiles.models.spec.module import ModuleSpec, SplitLayer, is_reference
    from profiles.models.spec.towers import ClipSpec, VisionLanguageSpec
    from profiles.models.spec.vision import (
        BASIC,
        BOTTLENECK,
        ResnetSpec,
        UnetSpec,
        VitSpec,
    )

__all__, __getattr__ = public(__name__, __file__)
