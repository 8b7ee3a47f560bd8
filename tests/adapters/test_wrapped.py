"""Models whose layers are not plain: compiled ones, and parametrised ones in train mode, which write when looked at."""

import pytest
import torch
from test_laws import CATALOGUE, NAMES, state
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from generalizeformer import catalog
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection
from generalizeformer.errors import SlotError

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


class Closing(nn.Module):
    """Runs its norm layer through a lambda, which no copy of it can make its own."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.norm = network, nn.BatchNorm2d(3).double()
        self.closed = lambda x: self.norm(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(self.closed(x))  # type: ignore[no-any-return]


@every_method
def test_a_copy_that_would_run_the_lent_model_is_refused_before_it_writes(
    name: str, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    if name in source.companions:
        pytest.skip("has a network of its own")
    lent = GeneralizeFormer(Closing(backbone), Config(selection=Selection(exclude=("norm",))))
    lent.backbone.train()
    before = state(lent)["values"]
    with pytest.raises(SlotError, match=r"norm: a private copy of Closing .* call modules as self"):
        answers(name, lent, images)
    assert all(torch.equal(value, before[key]) for key, value in state(lent)["values"].items())
