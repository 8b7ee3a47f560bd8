"""Our adapters against numbers recorded from the published implementations (traces/README.md)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from generalizeformer.adapters import alpha_bn, t3a, tent
from generalizeformer.core.generalizeformer import GeneralizeFormer

TRACES = Path(__file__).parent / "traces"
NORMS = ("bn1", "bn2", "bn3")


class ToyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, 2, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.conv3 = nn.Conv2d(16, 32, 3, 2, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x)).relu()
        x = self.bn3(self.conv3(x)).relu()
        return self.fc(x.mean((2, 3)))


def recorded(name: str) -> dict[str, Tensor]:
    values = load_file(TRACES / f"{name}.safetensors")
    return {k: v.double() if v.is_floating_point() else v for k, v in values.items()}


def stream_of(variant: str) -> Tensor:
    return recorded("stream")["bs1" if variant.endswith("bs1") else "bs8"]


def assert_agree(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)


@pytest.fixture
def toy() -> GeneralizeFormer:
    network = ToyNet()
    network.load_state_dict(load_file(TRACES / "backbone.safetensors"))
    return GeneralizeFormer(network.double())


@pytest.mark.parametrize(
    ("variant", "config"),
    [
        ("online", tent.Config()),
        ("episodic", tent.Config(episodic=True)),
        ("online_steps3", tent.Config(steps=3)),
        ("episodic_steps3", tent.Config(learning_rate=1e-2, steps=3, episodic=True)),
        ("online_bs1", tent.Config()),
    ],
)
def test_tent(toy: GeneralizeFormer, variant: str, config: tent.Config) -> None:
    trace, adapter = recorded("tent"), tent.Tent(toy, config)
    for number, batch in enumerate(stream_of(variant)):
        assert_agree(adapter.step(batch), trace[f"{variant}/logits"][number])
        for norm in NORMS:
            for part in ("weight", "bias"):
                value = adapter.backbone.get_parameter(f"{norm}.{part}")
                assert_agree(value, trace[f"{variant}/params_per_batch/{norm}.{part}"][number])


@pytest.mark.parametrize("variant", ["default", "default_bs1"])
def test_tent_without_learning_is_test_time_normalisation(
    toy: GeneralizeFormer, variant: str
) -> None:
    adapter = tent.build(toy, tent.Config(learning_rate=0.0))
    got = torch.stack([adapter.step(batch) for batch in stream_of(variant)])
    assert_agree(got, recorded("bn_adapt")[f"{variant}/logits"])


@pytest.mark.parametrize(
    ("variant", "supports"), [("K1", 1), ("K5", 5), ("K20", 20), ("K1_bs1", 1), ("K5_bs1", 5)]
)
def test_t3a(toy: GeneralizeFormer, variant: str, supports: int) -> None:
    trace, adapter = recorded("t3a"), t3a.T3A(toy, t3a.Config(supports=supports))
    assert_agree(
        torch.stack([adapter.step(b) for b in stream_of(variant)]), trace[f"{variant}/logits"]
    )
    assert_agree(adapter.supports, trace[f"{variant}/supports"])
    assert_agree(adapter.entropies, trace[f"{variant}/ent"])
    assert torch.equal(adapter.labels, trace[f"{variant}/support_labels"])


@pytest.mark.parametrize(
    ("variant", "batch_weight"),
    [("alpha0.1", 0.1), ("alpha0.5", 0.5), ("alpha1", 1.0), ("alpha0.1_bs1", 0.1)],
)
def test_alpha_bn(toy: GeneralizeFormer, variant: str, batch_weight: float) -> None:
    adapter = alpha_bn.build(toy, alpha_bn.Config(batch_weight=batch_weight))
    got = torch.stack([adapter.step(batch) for batch in stream_of(variant)])
    assert_agree(got, recorded("alpha_bn")[f"{variant}/logits"])


def test_alpha_bn_answers_the_whole_stream_in_one_call(toy: GeneralizeFormer) -> None:
    adapter, stream = alpha_bn.build(toy, alpha_bn.Config()), stream_of("alpha0.1")
    groups = torch.arange(len(stream)).repeat_interleave(stream.shape[1])
    got = adapter.predict_groups(stream.flatten(0, 1), groups)
    assert_agree(got, recorded("alpha_bn")["alpha0.1/logits"].flatten(0, 1))
