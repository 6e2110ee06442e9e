"""Layout files: written, read back the same, and refused where they are wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.layout import layer_text, parse_layers
from costmodel.layout.offload import ZeroPlus
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.serialization import LayoutFile, file_document, parse_file
from profiles.errors import InvalidFile, InvalidQuestion, MeshwrightError
from profiles.models.catalog import model
from profiles.models.decoder import decoder_graph
from profiles.models.spec import DecoderSpec


def a_file(**changes: Any) -> LayoutFile:
    found = model("gpt-13b")
    assert isinstance(found.spec, DecoderSpec)
    choice = Uniform(
        **{
            "tp": 4,
            "pp": 2,
            "dp": 8,
            "micro_batch": 8,
            "zero": 1,
            "zero_group": 8,
            "sequence_parallel": True,
            "recompute": "selective",
            "recompute_layers": 3,
            **changes,
        }
    )
    return LayoutFile(
        job={"model": "gpt-13b", "seq_len": 2048, "global_batch": 1536},
        cluster="dgx-a100-80gb",
        gpus=choice.gpus,
        profiles=(),
        layout=spell_out(choice, decoder_graph(found.spec), 1536),
    )


def written() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(file_document(a_file())))
    return document


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pp": 4, "virtual_stages": 5, "schedule": "interleaved"},
        {"pp": 4, "virtual_stages": 5, "schedule": "zb-interleaved"},
        {"pp": 4, "schedule": "zb-h1"},
        {"pp": 2, "layers_per_stage": (19, 21)},
        {"pp": 4, "virtual_stages": 2, "schedule": "zb-v"},
        {"pp": 4, "virtual_stages": 2, "schedule": "dualpipe-v"},
        {"pp": 4, "schedule": "chimera"},
        {"zero": 3, "zero_group": 2, "recompute": "full", "tp": 1},
        {"pp": 1, "cp": 2, "zero": 0, "zero_group": 1},
    ],
)
def test_what_is_written_reads_back(changes: dict[str, Any]) -> None:
    file = a_file(**changes)
    back = parse_file(json.loads(json.dumps(file_document(file))))
    assert back.layout == file.layout
    assert back.layout.summary == file.layout.summary


def test_it_looks_as_the_contract_says() -> None:
    document = written()
    first = document["layout"]["stages"][0]
    assert (document["format"], document["version"]) == ("meshwright/layout", 1)
    assert (first["layers"], first["ranks"]) == ("embedding,0-19", "0-31")
    assert first["mesh"] == {"dp_replicate": 1, "dp_shard": 8, "cp": 1, "tp": 4}
    assert [plan["layers"] for plan in first["layer_plans"]] == [
        "embedding",
        "0-2",
        "3-19",
    ]
    assert document["layout"]["summary"]["micro_batch"] == 8


def test_ends_may_be_implied() -> None:
    document = written()
    stages = document["layout"]["stages"]
    for stage, layers in zip(stages, ("0-19", "20-39"), strict=True):
        plan = stage["layer_plans"][-1]
        stage["layers"] = layers
        stage["layer_plans"] = [{**plan, "layers": layers}]
    layout = parse_file(document).layout
    assert layout.stages[0].layers[0] == "embedding"
    assert layout.stages[-1].layers[-2:] == ("final_norm", "head")


def _set(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        here: Any = document
        for key in path[:-1]:
            here = here[key]
        here[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_set("format", to="other"), "format"),
        (_set("version", to=2), "version"),
        (_set("extra", to=1), "extra"),
        (_set("job", "seq_len", to="long"), "job.seq_len"),
        (_set("job", "seq_len", to=0), "job.seq_len"),
        (_set("job", "optimizer", to=3), "job.optimizer"),
        (_set("layout", "colour", to="red"), "colour in layout; allowed"),
        (_set("layout", "summary", "tp", to=8), "summary.tp"),
        (_set("layout", "stages", 0, "mesh", "tp", to=0), "mesh.tp"),
        (_set("layout", "stages", 0, "mesh", "tp", to=True), "mesh.tp"),
        (_set("layout", "stages", 0, "ranks", to="0-3"), "ranks"),
        (_set("layout", "stages", 0, "ranks", to="0-999999999"), "ranks"),
        (_set("layout", "stages", to=[]), "stage"),
        (_set("layout", "stages", 0, "layer_plans", to=[]), "layer_plans"),
        (_set("layout", "precision", to="fp12"), "fp12"),
        (_set("layout", "zero_quantized_weights", to=1), "zero_quantized_weights"),
        (
            _set("layout", "zero_quantized_gradients", to="on"),
            "gradients: expected bool",
        ),
        (_set("layout", "zero_hpz_partition_size", to=0), "zero_hpz_partition_size"),
        (
            _set("layout", "zero_hpz_partition_size", to=True),
            "partition_size: expected int",
        ),
        (
            _set("layout", "zero_quantised_weights", to=True),
            "weights in layout; did you mean",
        ),
        (_set("job", "global_batch", to=-1), "global_batch"),
        (_set("gpus", to=63), "gpus"),
        (_set("layout", "stages", 0, "layers", to="0-4294967"), "layers"),
    ],
)
def test_what_is_wrong_is_named(
    change: Callable[[dict[str, Any]], None], named: str
) -> None:
    document = written()
    change(document)
    with pytest.raises(MeshwrightError, match=named) as refused:
        parse_file(document)
    assert refused.value.exit_code == 2


def test_what_is_not_chosen_is_not_written() -> None:
    """Readers that do not know ZeRO++ read all other files as before."""
    assert not any(key.startswith("zero_") for key in written()["layout"])
    chosen = ZeroPlus(hpz_partition_size=8)
    found = file_document(a_file(zero=3, zero_plus=chosen))["layout"]
    assert found["zero_hpz_partition_size"] == 8
    assert not {"zero_quantized_weights", "zero_quantized_gradients"} & set(found)


def test_any_missing_key_is_named() -> None:
    for key in ("job", "cluster", "gpus", "layout"):
        document = written()
        del document[key]
        with pytest.raises(InvalidFile, match=key):
            parse_file(document)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(data=st.data())
def test_a_strangers_file_never_surprises(data: st.DataObject) -> None:
    """Any value anywhere: read, or refused by an error of our own."""
    document = copy.deepcopy(written())
    here: Any = document
    while isinstance(here, dict | list) and here:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(here[key], dict | list) or data.draw(st.booleans()):
            here[key] = data.draw(json_values)
            break
        here = here[key]
    with suppress(InvalidQuestion):
        parse_file(document)


names = st.lists(st.integers(0, 50), unique=True, min_size=1).map(sorted)


@given(names, st.booleans(), st.booleans())
def test_layer_names_read_back(body: list[int], first: bool, last: bool) -> None:
    layers = (
        *(("embedding",) if first else ()),
        *(str(number) for number in body),
        *(("final_norm", "head") if last else ()),
    )
    assert parse_layers(layer_text(layers)) == layers
