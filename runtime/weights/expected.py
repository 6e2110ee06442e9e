"""What a folder of a model's weights holds: of a decoder by its family, of a user's
module by the module's own names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from profiles.errors import Contradiction, Unsupported
from profiles.files import shown
from profiles.models import DecoderSpec, ModuleSpec
from profiles.trace import module_of
from runtime.weights.names import COMPUTED, PREFIX, Bond, bonds

Document = dict[str, Any]
# Of a configuration, what changes no number that a training step computes.
_FREE: Final = ("use_cache", "dtype", "torch_dtype", "transformers_version", "drop")
_FREE_TOO: Final = ("output_", "return_dict", "initializer", "token_id", "name_or_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The *bonds* of all its tensors with ours.

    *said* is by whom. A folder may leave *prefix* out of every name, and have a tied
    tensor by another name: *aliases* lead to ours. *counts* are integers.
    """

    bonds: tuple[Bond, ...]
    said: str
    prefix: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    counts: frozenset[str] = frozenset()

    def known(self, files: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """(file, name in it) by the name that a bond has, of *files* by theirs."""
        named = {
            name: one for name, one in files.items() if not name.endswith(COMPUTED)
        }
        bare = not any(name.startswith(self.prefix) for name in named)
        found: dict[str, tuple[str, str]] = {}
        for name, file in named.items():
            whole = name
            if bare and name not in self.aliases and not name.startswith("lm_head."):
                whole = f"{self.prefix}{name}"
            own = self.aliases.get(whole, whole)
            if own == whole or own not in found:
                found[own] = file, name
        return found


def of_decoder(spec: DecoderSpec, kind: str) -> Expected:
    """Of a decoder as the family *kind* writes it."""
    made = tuple(bonds(spec, kind))
    table = next(iter(made[0].theirs))
    return Expected(
        bonds=made,
        said=f"of a {kind} as its config.json says",
        prefix=PREFIX.get(kind, ""),
        aliases={"lm_head.weight": table} if spec.tied_embeddings else {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModule:
    """A user's module on the meta device, as far as a folder shows of it: *config* is
    the document of its Hugging Face configuration, *source* where that was read."""

    expected: Expected
    config: Document | None
    source: Path | None

    @classmethod
    def of(cls, spec: ModuleSpec) -> OwnModule:
        """What the factory makes; raises Unsupported for state that is no tensor."""
        module, _ = module_of(spec.module, seq_len=spec.seq_len)
        config: Any = getattr(module, "config", None)
        source = Path(str(getattr(config, "name_or_path", "") or "")).absolute()
        document = None
        if hasattr(config, "to_json_string"):
            document = json.loads(config.to_json_string())
            document["architectures"] = [type(module).__name__]
            document.pop("use_cache", None)  # training's own
        return cls(
            expected=_of_module(module, spec.module),
            config=document,
            source=source if document and source.is_dir() else None,
        )

    def require_alike(self, folder: Path, theirs: Mapping[str, Any]) -> None:
        """Raise Contradiction where a folder's configuration is another one."""
        for name, own in (self.config or {}).items():
            free = any(part in name for part in (*_FREE, *_FREE_TOO))
            if free or not isinstance(own, bool | int | float | str):
                continue
            if name in theirs and theirs[name] != own:
                raise Contradiction(
                    f"--weights {shown(folder)} are of another model: {name} is "
                    f"{shown(theirs[name])} there and {shown(own)} in the module; let "
                    "its factory read that configuration"
                )


def _of_module(module: nn.Module, reference: str) -> Expected:
    first: dict[int, str] = {}
    aliases, made, counts = dict[str, str](), list[Bond](), set[str]()
    for name, one in module.state_dict(keep_vars=True).items():
        if not isinstance(one, Tensor):
            raise Unsupported(
                f"{name} of {reference} is module state that is no tensor; weights are "
                "parameters and buffers"
            )
        own = first.setdefault(id(one), name)
        if own != name:
            aliases[name] = own
            continue
        made.append(Bond((name,), {name: tuple(one.shape)}))
        if not one.is_floating_point():
            counts.add(name)
    base = getattr(module, "base_model_prefix", "")
    return Expected(
        bonds=tuple(made),
        said=f"of {reference}",
        prefix=f"{base}." if base and hasattr(module, base) else "",
        aliases=aliases,
        counts=frozenset(counts),
    )
