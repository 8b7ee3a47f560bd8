import pytest
import torch
from torch import Tensor

from generalizeformer.data.domains import Domain, DomainDataset


def domain(name: str, labels: list[int], side: int = 4) -> Domain:
    pixels = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
    images = pixels.expand(-1, 3, side, side).contiguous()
    return Domain(name, images, torch.tensor(labels, dtype=torch.int64))


def dataset() -> DomainDataset:
    domains = (domain("x", [0, 1, 2]), domain("y", [2, 1]), domain("z", [1, 1, 1, 0]))
    return DomainDataset("toy", ("p", "q", "r"), domains)


def test_taking_keeps_the_name_and_pairs_images_with_their_labels() -> None:
    part = domain("x", [5, 6, 7]).take(torch.tensor([2, 0]))
    assert part.name == "x"
    assert len(part) == 2
    assert part.images[:, 0, 0, 0].tolist() == [2, 0]
    assert part.labels.tolist() == [7, 5]


def test_domains_are_found_by_name() -> None:
    assert len(dataset()["z"]) == 4
    assert dataset().names == ("x", "y", "z")
    assert dataset().index("y") == 1


def test_only_keeps_the_order_asked_and_without_that_of_the_dataset() -> None:
    assert dataset().only(("z", "x")).names == ("z", "x")
    assert dataset().without(("y",)).names == ("x", "z")


def test_an_unknown_domain_is_answered_with_those_there_are() -> None:
    message = "toy: there is no domain 'w'; it has: x, y, z"
    for ask in (
        lambda: dataset()["w"],
        lambda: dataset().only("w"),
        lambda: dataset().without("w"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()


def test_picking_follows_the_rows_across_domains() -> None:
    rows = torch.tensor([[2, 3], [0, 1], [2, 0], [1, 0]])
    images, labels = dataset().pick(rows)
    assert images[:, 0, 0, 0].tolist() == [3, 1, 0, 0]
    assert labels.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ((), "toy: got no domains; give at least one"),
        ((domain("x", [0]), domain("x", [0])), "must differ, but x came more than once"),
        ((domain("x", [0]), domain("y", [])), "domain 'y': it has no images"),
        ((domain("x", [0]), domain("y", [0], side=5)), r"are \(3, 5, 5\), but those of 'x' are"),
        ((domain("x", [0, 3]),), "labels run from 0 to 3, but 3 classes allow 0 to 2"),
        ((domain("x", [-1, 1]),), "labels run from -1 to 1"),
    ],
)
def test_a_dataset_refuses_what_does_not_fit(domains: tuple[Domain, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DomainDataset("toy", ("p", "q", "r"), domains)


BYTES = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (BYTES.float(), torch.zeros(2, dtype=torch.int64), "must be .* of torch.uint8"),
        (BYTES[0], torch.zeros(3, dtype=torch.int64), r"images are \(3, 4, 4\)"),
        (BYTES, torch.zeros(3, dtype=torch.int64), "one torch.int64 label for each of the 2"),
        (BYTES, torch.zeros(2), r"labels are \(2,\) of torch.float32"),
    ],
)
def test_a_domain_refuses_what_is_not_labelled_bytes(
    images: Tensor, labels: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Domain("x", images, labels)


def test_fewer_classes_are_renumbered_as_the_model_has_them() -> None:
    few = DomainDataset("toy", ("cat", "owl"), (domain("x", [0, 1, 1]),))
    many = few.renumbered(("ape", "cat", "dog", "owl"))
    assert many.classes == ("ape", "cat", "dog", "owl")
    assert many["x"].labels.tolist() == [1, 3, 3]
    assert torch.equal(many["x"].images, few["x"].images)
    assert few.renumbered(few.classes) is few


def test_a_class_that_the_model_does_not_know_is_refused() -> None:
    dataset = DomainDataset("toy", ("cat", "owl"), (domain("x", [0, 1]),))
    message = "toy: it has the class 'owl', but the model tells 'cat', 'dog' apart"
    with pytest.raises(ValueError, match=message):
        dataset.renumbered(("cat", "dog"))


def test_a_part_of_a_domain_copies_no_pixel_and_reads_the_right_ones() -> None:
    whole = domain("x", [0, 1, 2, 3, 4])
    part = whole.take(torch.tensor([4, 0, 2])).take(torch.tensor([2, 0]))
    assert part.stored.data_ptr() == whole.stored.data_ptr()
    assert part.labels.tolist() == [2, 4]
    assert torch.equal(part.images, whole.images[[2, 4]])
    assert torch.equal(part.read(torch.tensor([1])), whole.images[[4]])
    assert torch.equal(part.to("cpu").stored, whole.images[[2, 4]])
