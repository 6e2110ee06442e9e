"""How a Hugging Face config turns queries and keys: `rope_theta`, `rope_scaling`.

The file of transformers 5 has both in `rope_parameters`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from profiles.documents import shown
from profiles.models.numerics import RopeScaling

if TYPE_CHECKING:
    from profiles.models.huggingface_keys import Config

# `ROPE_INIT_FUNCTIONS`: other angles in a table that is made once, at the same cost.
ROTATIONS: Final = (
    *("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3", "mrope"),
)
SCALINGS: Final = {  # those that are computed, with the keys that each needs
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def rotation_of(config: Config, theta: float) -> dict[str, Any]:
    """Of the spec's numerics `rope_theta`, `rope_scaling` and what is `not_computed`;
    *theta* is the class's own.

    Raises Unsupported for a scaling that is not known.
    """
    rope = config.inside("rope_scaling", {}) or config.inside("rope_parameters", {})
    name = rope.get("rope_type", str, rope.get("type", str, "default"))
    if name not in ROTATIONS:
        raise rope.unsupported(
            f"rope_type {shown(name)}", f"known: {', '.join(ROTATIONS)}"
        )
    theta = config.get("rope_theta", float, theta)
    part = config.get("partial_rotary_factor", float, 1.0)
    part = rope.get("partial_rotary_factor", float, part)
    lacks = [key for key in SCALINGS.get(name, ()) if not rope.has(key)]
    beyond = {
        f"partial_rotary_factor {part:g}": part != 1,
        "rope_parameters by layer type": rope.has_objects,
        f"rope_scaling {name}": name not in ("default", *SCALINGS),
        f"rope_scaling {name} without {', '.join(lacks)}": bool(lacks),
    }
    scaled = name in SCALINGS and not lacks
    return {
        "rope_theta": rope.get("rope_theta", float, theta),
        "rope_scaling": _scaling(config, rope, name) if scaled else None,
        "not_computed": tuple(what for what, true in beyond.items() if true),
    }


def _scaling(config: Config, rope: Config, name: str) -> RopeScaling:
    given = {key: rope.get(key, float) for key in SCALINGS[name]}
    if name == "llama3":
        longest = config.count("max_position_embeddings", None)
        longest = longest or config.count("max_seq_len", 2048)
        first = rope.count("original_max_position_embeddings", longest)
        given["original_positions"] = first
    return RopeScaling(kind=name, **given)
