"""Methods that follow a loss downhill, in chosen blocks of the network only."""

from typing import Any

import pytest
import torch
from descending import eager, every, moved, name_of, network
from torch import Tensor, nn

from generalizeformer.adapters import pl, shot, shot_im, tent
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import SlotError

WHOLE = [tent, pl, shot, shot_im]  # those that let a part of the network be chosen

NORM_VALUES = {f"blocks.{b}.1.{part}" for b in (0, 1) for part in ("weight", "bias")}


@every(WHOLE)
@pytest.mark.parametrize("block", ["blocks.0", "blocks.1", "blocks.1.1"])
def test_only_the_chosen_block_moves(
    block: str, method: Any, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = method.build(source, eager(method, blocks=(block,)))
    adapter.step(images)
    inside = {n for n, _ in backbone.named_parameters() if n.startswith(f"{block}.")}
    assert moved(adapter, backbone) == (inside & NORM_VALUES if method is tent else inside)
    assert inside


@every(WHOLE)
def test_choosing_all_blocks_is_choosing_none(
    method: Any, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    names = tuple(name for name, _ in backbone.named_children())
    one, other = (method.build(source, eager(method, blocks=blocks)) for blocks in ((), names))
    for batch in images.split(8):
        assert torch.equal(one.step(batch), other.step(batch))


def test_tent_normalises_every_layer_with_the_batch_whatever_block_moves(
    source: GeneralizeFormer, images: Tensor
) -> None:
    whole, part = (
        tent.build(source, tent.Config(learning_rate=0.0, blocks=blocks))
        for blocks in ((), ("blocks.1",))
    )
    assert torch.equal(part.step(images), whole.step(images))


def test_a_module_used_twice_can_be_named_by_either_name(images: Tensor) -> None:
    shared = nn.Linear(8, 8)
    for name in ("4", "6"):
        adapter: Any = pl.build(
            network(shared, nn.ReLU(), shared), pl.Config(threshold=0.0, blocks=(name,))
        )
        adapter.step(images)
        moving = {n for n, value in adapter.backbone.named_parameters() if value.requires_grad}
        assert moving == {"4.weight", "4.bias"}


@every(WHOLE)
@pytest.mark.parametrize("block", ["block", "blocks.2", "", "classifier.weight"])
def test_a_block_that_is_not_there_is_refused_with_those_that_are(
    method: Any, block: str, source: GeneralizeFormer
) -> None:
    expected = (
        rf"^{name_of(method)}: DigitNet has no block '{block}'; its blocks are blocks, classifier; "
    )
    with pytest.raises(SlotError, match=expected):
        method.build(source, method.Config(blocks=("blocks", block)))


@pytest.mark.parametrize(
    ("method", "block", "missing"),
    [
        (tent, "classifier", "normalisation layer with a scale or shift in classifier"),
        (pl, "blocks.0.2", "parameter in blocks.0.2"),
        (shot, "classifier", "parameter outside its classifier in classifier"),
        (shot_im, "classifier", "parameter outside its classifier in classifier"),
    ],
    ids=name_of,
)
def test_a_block_in_which_nothing_can_move_is_refused(
    method: Any, block: str, missing: str, source: GeneralizeFormer
) -> None:
    expected = rf"^{name_of(method)}: the model has no {missing}, so there is nothing to adapt"
    with pytest.raises(SlotError, match=expected):
        method.build(source, method.Config(blocks=(block,)))
