"""What compared methods learn beside the backbone does not depend on what was trained before it in the same process."""

from pathlib import Path

import pytest

from generalizeformer.training._companions import config_of, trained_for, training_of
from generalizeformer.training._network import NetworkTraining
from generalizeformer.training._run import train_recipe

from .toys import CARD, PREPROCESSING, fabric, network, recipe, same, sources, wrapped


@pytest.mark.parametrize("phi", [True, False])
def test_a_run_killed_before_a_companion_s_first_state_ends_like_a_whole_one(
    tmp_path: Path, phi: bool
) -> None:
    also = {name: {"steps": 2, "every": 2} for name in trained_for()}

    def run(folder: str, **changed: object) -> dict[str, dict[str, object]]:
        chosen = recipe(episodes="looks", seed=3, **changed)
        model = train_recipe(network, sources(), chosen, CARD, tmp_path / folder, fabric(), phi=phi)
        return model.companions

    whole = run("whole", also=also)
    run("killed")
    again = run("killed", also=also)
    for name in also:
        assert same(whole[name], again[name]), name


@pytest.mark.parametrize("name", trained_for())
def test_a_network_beside_a_frozen_backbone_learns_as_a_whole(name: str) -> None:
    model, data = wrapped(network().requires_grad_(False)), sources()
    config = config_of(name, {})
    method = training_of(name, model, data, data, PREPROCESSING, config, fabric())
    assert isinstance(method, NetworkTraining)
    assert all(value.requires_grad for value in method.network.parameters())
    assert not any(value.requires_grad for value in model.backbone.parameters())
