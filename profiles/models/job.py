"""`Job`: what is trained. `Model`: a spec with the step it is usually trained with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

from profiles.errors import InvalidFile, InvalidSpec, UnknownName
from profiles.files import decode, require_name, shown
from profiles.limits import require
from profiles.models.families import model_graph, remembered
from profiles.models.graph import ModelGraph
from profiles.models.lora import Adapters, with_adapters
from profiles.models.spec import FAMILIES, DecoderSpec, ModelSpec, ModuleSpec, MoeSpec
from profiles.units import format_count

# Moments that an optimizer keeps for each parameter, as so many of fp32. In bf16: of
# DeepSeek-V3 (arXiv 2412.19437, section 3.3.3), as Megatron-Core's --exp-avg-dtype.
OPTIMIZERS = {
    "adamw": 2,
    "adamw-bf16-moments": 1,
    "adam": 2,
    "lamb": 2,
    "sgd-momentum": 1,
    "sgd": 0,
}
SEQ_LEN = 2048  # [assumed] where neither the catalogue nor a file says
GLOBAL_BATCH = 1024  # [assumed] likewise, in sequences
MODULE_BATCH = 256  # [assumed] samples of a step of a user's module
_BESIDE = ("name", "seq_len", "global_batch", "source", "notes")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model, the tokens of a step and the optimizer.

    `seq_len` in tokens, `global_batch` in sequences a step. With `adapters` they alone
    are trained; the model is frozen.
    """

    model: str
    spec: ModelSpec
    seq_len: int
    global_batch: int
    optimizer: str = "adamw"
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise UnknownName("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("seq_len", "global_batch"):
            require("size", getattr(self, name), name)
        own, longest = self.spec.own_length, self.spec.longest
        if isinstance(self.spec, ModuleSpec) and self.seq_len != own:
            raise InvalidSpec(
                f"{self.model} was traced with samples of {own} tokens, not "
                f"{self.seq_len}; give --seq-len {self.seq_len} together with --model"
            )
        if own is not None and self.seq_len != own:
            raise InvalidSpec(
                f"seq_len={self.seq_len}: a sequence of {self.model} is an image of "
                f"{own} tokens, which its spec fixes; leave it out, or change "
                "image_size"
            )
        if longest is not None and self.seq_len > longest:
            raise InvalidSpec(
                f"seq_len={self.seq_len} is longer than the {longest} "
                f"learned positions of {self.model}; choose a shorter sequence"
            )

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.seq_len * self.global_batch

    @property
    def samples(self) -> str:
        """What a step trains on: sequences of tokens, images, or samples of a module
        that takes no token numbers."""
        if isinstance(self.spec, ModuleSpec):
            return "sequences" if self.seq_len > 1 else "samples"
        return "sequences" if self.spec.own_length is None else "images"

    @property
    def unit(self) -> str:
        """What speed and whole runs count: tokens, else images or samples."""
        return "tokens" if self.samples == "sequences" else self.samples

    @property
    def step_words(self) -> str:
        """What a step trains on, and how much of it."""
        batch = f"{self.global_batch:,} {self.samples}"
        if self.samples != "sequences":
            return f"{batch} a step"
        tokens = f"{format_count(self.tokens)} tokens a step"
        return f"{batch} of {self.seq_len:,} tokens, {tokens}"

    @property
    def moe(self) -> MoeSpec | None:
        """The experts of its layers, if any have some."""
        return self.spec.moe if isinstance(self.spec, DecoderSpec) else None

    @property
    def has_experts(self) -> bool:
        return self.moe is not None

    @property
    def moments(self) -> int:
        """Bytes of a parameter's moments, as so many of fp32."""
        return OPTIMIZERS[self.optimizer]

    @cached_property
    def graph(self) -> ModelGraph:
        """The operator graph; raises Unsupported for what is not priced yet."""
        decodes = isinstance(self.spec, DecoderSpec)
        seq_len = 0 if decodes else self.seq_len  # of decoders, that of any
        return _graph(self.spec, self.model, self.adapters, seq_len)


@lru_cache(maxsize=1024)
def _graph(
    spec: ModelSpec, name: str, adapters: Adapters | None, seq_len: int
) -> ModelGraph:
    """Jobs that differ in their batch share a graph."""
    graph = model_graph(spec, name, seq_len)
    return with_adapters(graph, adapters) if adapters else graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A network, and the step it is usually trained with.

    `seq_len` in tokens, `global_batch` in sequences (for images: patches, images).
    `assumed` is what its file does not say, and a reader had to suppose.
    """

    name: str
    spec: ModelSpec
    seq_len: int = SEQ_LEN
    global_batch: int = GLOBAL_BATCH
    source: str = ""
    notes: str = ""
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_name(self.name)
        for name in ("seq_len", "global_batch"):
            require("size", getattr(self, name), name)

    def job(
        self,
        *,
        seq_len: int | None = None,
        global_batch: int | None = None,
        optimizer: str = "adamw",
    ) -> Job:
        """Training it with *global_batch* sequences of *seq_len* tokens a step; by
        default those that it is usually trained with.

        Raises UnknownName for an optimizer, InvalidSpec for sizes that cannot be.
        """
        return Job(
            model=self.name,
            spec=self.spec,
            seq_len=self.seq_len if seq_len is None else seq_len,
            global_batch=self.global_batch if global_batch is None else global_batch,
            optimizer=optimizer,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    """What an entry says beside its spec."""

    name: str
    seq_len: int
    global_batch: int = GLOBAL_BATCH
    source: str = ""
    notes: str = ""


def parse_model(document: object, *, what: str, name: str = "custom") -> Model:
    """A model from a document: `family` (decoder if absent) and the spec's fields.

    `name`, `seq_len`, `global_batch`, `source` and `notes` may stand beside them. A
    decoder may leave out `kv_heads` (= heads), `head_dim` (= hidden / heads), a plain
    MLP's `ffn_hidden` (= 4 hidden) and `max_positions` (= seq_len), as in Megatron-LM.

    >>> tiny = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 512, "seq_len": 128}
    >>> parse_model(tiny, what="example").spec.head_dim
    16

    Raises InvalidFile and InvalidSpec, naming *what* and the field.
    """
    if not isinstance(document, dict):
        raise InvalidFile(f"{what} must be an object with the fields of a model")
    if "module" in document:
        return _traced(document, what)
    entry = dict(document)
    family = entry.get("family", "decoder")
    if not isinstance(family, str) or family not in FAMILIES:
        raise InvalidSpec(
            f"{what}: family {shown(family)} is not one of {', '.join(FAMILIES)}"
        )
    entry.setdefault("name", name)
    if family == "decoder":
        _complete(entry, what)
    beside = {key: entry.pop(key) for key in _BESIDE if key in entry}
    spec: ModelSpec = decode(entry, FAMILIES[family], what=what)
    usual = spec.own_length or min(spec.longest or SEQ_LEN, SEQ_LEN)
    about = decode({"seq_len": usual, **beside}, _About, what=what)
    return Model(spec=spec, **asdict(about))


def _traced(document: dict[str, Any], what: str) -> Model:
    """A module that was named on the command line, and so traced, before."""
    if list(document) != ["module"] or not isinstance(document["module"], str):
        raise InvalidSpec(
            f"{what}: a module is named by 'module': 'package.module:factory', alone"
        )
    return module_model(remembered(document["module"]))


def module_model(spec: ModuleSpec) -> Model:
    """A traced module, and a batch to train it with."""
    return Model(
        name=spec.module,
        spec=spec,
        seq_len=spec.seq_len,
        global_batch=MODULE_BATCH,
        source="traced",
    )


def _complete(entry: dict[str, Any], what: str) -> None:
    """Fill in what follows from the rest; wrong types are left for `decode` to name."""
    heads, hidden = entry.get("heads"), entry.get("hidden")
    if isinstance(heads, int) and isinstance(hidden, int):
        entry.setdefault("kv_heads", heads)
        if "head_dim" not in entry and (heads < 1 or hidden % heads):
            raise InvalidSpec(
                f"{what}: heads={heads} does not divide hidden={hidden}; give head_dim"
            )
        entry.setdefault("head_dim", hidden // max(heads, 1))
        if not entry.get("gated_mlp"):
            entry.setdefault("ffn_hidden", 4 * hidden)
    if entry.get("position", "learned") == "learned":
        if entry.get("max_positions"):
            entry.setdefault("seq_len", entry["max_positions"])
        entry.setdefault("max_positions", entry.get("seq_len", SEQ_LEN))
