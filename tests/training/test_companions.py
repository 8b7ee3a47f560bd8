"""What compared methods learn beside the backbone does not depend on what was trained before it in the same process."""

from pathlib import Path

import pytest

from generalizeformer.training._companions import trained_for
from generalizeformer.training._run import train_recipe

from .toys import CARD, fabric, network, recipe, same, sources


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
