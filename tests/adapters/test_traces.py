"""Our adapters, and source training, against numbers recorded from published implementations (traces/README.md)."""

from types import SimpleNamespace

import pytest
import torch
from lightning_fabric import Fabric
from recordings import NORMS, assert_agree, recorded, stream_of, toy_network

from generalizeformer.adapters import alpha_bn, t3a, tent
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.datasets import synthetic
from generalizeformer.training import erm


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
# Not its variant `ema`, which carries statistics from batch to batch: that is another method.
def test_alpha_bn(toy: GeneralizeFormer, variant: str, batch_weight: float) -> None:
    adapter = alpha_bn.build(toy, alpha_bn.Config(batch_weight=batch_weight))
    got = torch.stack([adapter.step(batch) for batch in stream_of(variant)])
    assert_agree(got, recorded("alpha_bn")[f"{variant}/logits"])


def test_alpha_bn_answers_the_whole_stream_in_one_call(toy: GeneralizeFormer) -> None:
    adapter, stream = alpha_bn.build(toy, alpha_bn.Config()), stream_of("alpha0.1")
    groups = torch.arange(len(stream)).repeat_interleave(stream.shape[1])
    got = adapter.predict_groups(stream.flatten(0, 1), groups)
    assert_agree(got, recorded("alpha_bn")["alpha0.1/logits"].flatten(0, 1))


def test_erm(monkeypatch: pytest.MonkeyPatch) -> None:
    """DomainBed's is Adam at one rate: AdamW without decay, without our schedule."""
    trace, drawn = recorded("erm"), recorded("source")
    data = synthetic.build(synthetic.Config(domains=3, classes=5, per_class=2, size=16))
    config = erm.Config(steps=3, learning_rate=1e-3, weight_decay=0.0, schedule="constant")
    method = erm.Erm(
        toy_network(), data, data, Preprocessing(size=16), config, Fabric(accelerator="cpu")
    )
    pairs = zip(drawn["images"], drawn["labels"], strict=True)
    recording = (SimpleNamespace(images=images, labels=labels) for images, labels in pairs)
    monkeypatch.setattr(erm, "minibatch", lambda *_: next(recording))
    monkeypatch.setattr(method, "preprocessing", torch.nn.Identity())
    for step, loss in enumerate(trace["default/returned/loss"]):
        got = method.update(step, torch.Generator())["loss"]
        assert got == pytest.approx(loss.item(), abs=1e-8)
        compared = [k for k in trace if k.startswith(f"default/update{step + 1}/")]
        assert len(compared) > 15
        for key in compared:
            assert_agree(method.network.state_dict()[key.split("/")[2]], trace[key])
    answers = method.network.eval()(stream_of("bs8")[0])
    assert_agree(answers, trace["default/eval_logits"])
