import pytest
import torch
from torch import nn

from generalizeformer.data.datasets.synthetic import Config, build
from generalizeformer.data.domains import DomainDataset


def test_the_dataset_has_what_was_asked() -> None:
    dataset = build(Config(domains=3, classes=4, per_class=6, size=10, channels=1))
    assert dataset.names == ("a", "b", "c")
    assert dataset.classes == ("0", "1", "2", "3")
    for domain in dataset.domains:
        assert domain.images.shape == (24, 1, 10, 10)
        assert torch.bincount(domain.labels).tolist() == [6, 6, 6, 6]


def same(first: DomainDataset, second: DomainDataset, name: str) -> bool:
    return torch.equal(first[name].images, second[name].images)


def test_the_seed_decides_and_more_domains_leave_the_others_alone() -> None:
    assert same(build(Config()), build(Config()), "a")
    assert not same(build(Config()), build(Config(seed=1)), "a")
    assert same(build(Config(domains=2)), build(Config(domains=5)), "b")


def test_domains_differ_in_colour_and_hardly_leave_the_range_of_bytes() -> None:
    dataset = build(Config())
    means = torch.stack([domain.images.float().mean((0, 2, 3)) for domain in dataset.domains])
    assert torch.pdist(means).min() > 10
    cut = torch.cat([(d.images == 0) | (d.images == 255) for d in dataset.domains])
    assert cut.float().mean() < 0.05


def test_a_small_network_learns_the_classes() -> None:
    torch.manual_seed(0)
    dataset = build(Config(per_class=20))
    images = dataset["a"].images.float() / 255 - 0.5
    labels = dataset["a"].labels
    held_out = torch.arange(len(labels)) % 4 == 0
    network = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5)),
    )
    for _ in range(60):
        loss = nn.functional.cross_entropy(network(images[~held_out]), labels[~held_out])
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():  # by hand: importing an optimizer takes longer than learning
            for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                parameter.sub_(0.1 * gradient)
    accuracy = (network.eval()(images[held_out]).argmax(1) == labels[held_out]).float().mean()
    assert accuracy > 0.9


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="synthetic: classes is 0; it must be at least 1"):
        Config(classes=0)
    with pytest.raises(ValueError, match="domains is 27; they are named a to z, so ask for 26"):
        Config(domains=27)
