"""Models whose layers are not plain: compiled ones, and parametrised ones in train mode, which write when looked at."""

import pytest
import torch
from test_laws import CATALOGUE, NAMES, state
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from generalizeformer import catalog
from generalizeformer.core.generalizeformer import GeneralizeFormer

every_method = pytest.mark.parametrize("name", NAMES)


def answers(name: str, source: GeneralizeFormer, images: Tensor) -> Tensor:
    kind = catalog.load(CATALOGUE, name)
    adapter = kind.build(source, kind.Config())
    return torch.cat([adapter.step(images[:8]), adapter.predict(images)])


@every_method
def test_a_compiled_layer_is_served_as_the_layer_within(
    name: str, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    if name in source.companions:
        pytest.skip("has a network of its own")
    expected = answers(name, source, images)
    source.backbone.blocks[0][1] = torch.compile(backbone.blocks[0][1], backend="eager")
    compiled = GeneralizeFormer(source.backbone).eval()
    compiled.load_state_dict(
        {k: v for k, v in source.state_dict().items() if not k.startswith("backbone")}, strict=False
    )
    torch.testing.assert_close(answers(name, compiled, images), expected, rtol=0, atol=1e-8)


@every_method
def test_a_parametrised_classifier_in_train_mode_is_not_written_to(
    name: str, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    companions = source.companions
    spectral_norm(backbone.classifier)
    source = GeneralizeFormer(backbone).eval()
    backbone.train()
    if name in companions:
        pytest.skip("has a network of its own")
    before = state(source)["values"]
    first, second = (answers(name, source, images) for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(value, before[key]) for key, value in state(source)["values"].items())
