"""Which models and domains φ learns with: what it is to learn from must be new to somebody."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from generalizeformer.errors import CheckpointError
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.training import _run, meta
from generalizeformer.training._recipe import Recipe

from .test_recipe import trained
from .toys import recipe


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[meta.Pair]:
    """The pairs that φ is trained with, once it is."""
    seen: list[meta.Pair] = []

    class Spy(meta.Meta):
        def __init__(self, pairs: list[meta.Pair], *rest: Any) -> None:
            seen.extend(pairs)
            super().__init__(pairs, *rest)

    monkeypatch.setattr(_run, "Meta", Spy)
    return seen


def test_every_pair_of_held_out_episodes_shares_the_final_models_generator(
    tmp_path: Path, given: list[meta.Pair]
) -> None:
    model = trained(tmp_path, recipe(stay=0.25))
    assert all(pair.model.generator is model.generator for pair in given)
    strange, own = given[:3], given[3:]
    assert [pair.train.name for pair in given] == ["a", "b", "c", "a", "b", "c"]
    assert all(pair.model is model for pair in own)
    assert len({id(pair.model.backbone) for pair in strange} | {id(model.backbone)}) == 4
    assert sum(pair.weight for pair in own) == pytest.approx(0.25)
    assert sum(pair.weight for pair in strange) == pytest.approx(0.75)


def seeing(own: Looks, **changes: Any) -> Recipe:
    """φ learns from looks, the backbone from these."""
    plain = recipe(episodes="looks", stay=0.25)
    assert plain.erm is not None
    erm, learning = replace(plain.erm, looks=own), replace(plain.meta, **changes)
    return replace(plain, erm=erm, meta=learning)


def test_where_the_backbone_learns_from_looks_phi_learns_with_one_that_does_not(
    tmp_path: Path, given: list[meta.Pair]
) -> None:
    model = trained(tmp_path, seeing(Looks()))
    strange, own = given[:3], given[3:]
    assert [pair.train.name for pair in given] == ["a", "b", "c", "a", "b", "c"]
    assert all(pair.model is model for pair in own)
    (other,) = {id(pair.model.backbone): pair.model for pair in strange}.values()
    assert other.backbone is not model.backbone
    assert other.generator is model.generator
    assert sum(pair.weight for pair in own) == pytest.approx(0.25)
    assert sum(pair.weight for pair in strange) == pytest.approx(0.75)
    stored = torch.load(tmp_path / "training" / "erm-without-looks.state")
    assert stored["settings"]["erm"]["looks"] is None
    assert all(torch.equal(v, stored["weights"][n]) for n, v in other.backbone.state_dict().items())


@pytest.mark.parametrize(
    "asked",
    [
        seeing(Looks(strength=0.0)),
        seeing(Looks(), looks=Looks(strength=0.0)),
        seeing(Looks(), look_share=0.0),
    ],
    ids=["the backbone sees none", "phi sees none", "in no step"],
)
def test_where_looks_are_not_learned_twice_there_is_one_backbone(
    tmp_path: Path, given: list[meta.Pair], asked: Recipe
) -> None:
    model = trained(tmp_path, asked)
    assert all(pair.model is model for pair in given)


def test_a_phi_that_learned_otherwise_from_looks_is_not_taken_for_this_one(tmp_path: Path) -> None:
    trained(tmp_path, seeing(Looks()))
    path = tmp_path / "training" / "meta.state"
    state = torch.load(path)
    del state["settings"]["strangers"]
    torch.save(state, path)
    with pytest.raises(CheckpointError, match="strangers None, not 'of looks'"):
        trained(tmp_path, seeing(Looks()))
