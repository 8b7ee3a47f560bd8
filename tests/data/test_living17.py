from pathlib import Path
from typing import get_args

import pytest
import torch
from torchvision.io import encode_jpeg

from generalizeformer.data.datasets import living17
from generalizeformer.data.datasets.living17 import Config, Protocol, breeds

PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENERALIZEFORMER_CACHE", str(tmp_path / "cache"))


def imagenet(root: Path, protocol: Protocol = "good") -> Path:
    """One image for every breed and part, whose shade is three times the label of its kind."""
    labels = {wnid: label for (_, label), ids in breeds(protocol).items() for wnid in ids}
    for wnid, label in labels.items():
        shade = 3 * living17.PUBLISHED.classes.index(label)
        pixels = torch.full((3, 8, 12), shade, dtype=torch.uint8)
        for part in ("train", "val"):
            (root / part / wnid).mkdir(parents=True)
            content = bytes(encode_jpeg(pixels, quality=100).tolist())
            (root / part / wnid / f"{part}_{wnid}.JPEG").write_bytes(content)
    return root


@every_protocol
def test_a_protocol_has_17_kinds_of_two_source_and_two_target_breeds_all_different(
    protocol: Protocol,
) -> None:
    table = breeds(protocol)
    assert len(living17.PUBLISHED.classes) == len(set(living17.PUBLISHED.classes)) == 17
    for domain, count in {"source-0": 1, "source-1": 1, "target": 2}.items():
        mine = [ids for (name, _), ids in table.items() if name == domain]
        assert [len(ids) for ids in mine] == [count] * 17
    ids = [wnid for each in table.values() for wnid in each]
    assert len(ids) == len(set(ids)) == 68
    assert all(len(wnid) == 9 and wnid[0] == "n" and wnid[1:].isdigit() for wnid in ids)


def test_the_protocols_are_the_published_ones() -> None:
    assert breeds("good")["source-0", "salamander"] == ("n01630670",)
    assert breeds("good")["source-1", "dog"] == ("n02113624",)
    assert breeds("good")["target", "monkey"] == ("n02486410", "n02487347")
    assert breeds("rand")["source-0", "salamander"] == ("n01631663",)
    assert breeds("rand")["target", "dog"] == ("n02111500", "n02086910")
    assert breeds("bad") not in (breeds("good"), breeds("rand"))


@every_protocol
def test_kinds_are_numbered_by_the_order_of_their_wordnet_ids(protocol: Protocol) -> None:
    """Breeds lie below their kind, so the smallest ids of the kinds are in order, too."""
    first = [min(w for (_, k), ids in breeds(protocol).items() if k == kind for w in ids)
             for kind in living17.PUBLISHED.classes]  # fmt: skip
    assert first == sorted(first)


def test_images_take_the_domain_and_the_kind_of_their_breed(tmp_path: Path) -> None:
    dataset = living17.build(Config(root=str(imagenet(tmp_path / "imagenet")), size=4))
    assert dataset.names == ("source-0", "source-1", "target")
    assert [len(domain) for domain in dataset.domains] == [17, 17, 34]
    for domain in dataset.domains:
        part = "val" if domain.name == "target" else "train"
        assert all(f"/{part}_n" in file for file in domain.files or ())
        assert (domain.images[:, 0, 0, 0].long() - 3 * domain.labels).abs().max() < 2
        for file, label in zip(domain.files or (), domain.labels.tolist(), strict=True):
            kind, _, name = file.partition("/")
            assert living17.PUBLISHED.classes[label] == kind
            assert name.removeprefix(f"{part}_") in breeds("good")[domain.name, kind]


def test_sources_and_targets_are_the_two_sides_of_the_dataset(tmp_path: Path) -> None:
    config = Config(root=str(imagenet(tmp_path / "imagenet")), size=4)
    sources, targets = living17.sources(config), living17.targets(config)
    assert (sources.names, targets.names) == (("source-0", "source-1"), ("target",))
    assert sources.every == targets.every == living17.PUBLISHED.domains
    assert sources.kept == targets.names
    assert not {file for d in sources.domains for file in d.files or ()} & {
        *targets["target"].files
    }  # type: ignore[misc]


def test_only_the_wanted_folders_are_looked_at(tmp_path: Path) -> None:
    root = imagenet(tmp_path / "imagenet")
    (root / "train" / "n00000000").mkdir()
    (root / "train" / "n00000000" / "other.JPEG").write_bytes(b"not read")
    (root / "val" / breeds("good")["source-0", "dog"][0] / "seen.JPEG").write_bytes(b"not read")
    tree = living17.tree(Config(root=str(root)))
    assert len(tree.entries) == 68
    assert [entry.path for entry in tree.entries] == sorted(entry.path for entry in tree.entries)


def test_protocols_do_not_share_a_cache(tmp_path: Path) -> None:
    root = imagenet(tmp_path / "imagenet")
    for path, ids in breeds("rand").items():
        for wnid in ids:
            for part in ("train", "val"):
                (root / part / wnid).mkdir(exist_ok=True)
                other = next((root / part / breeds("good")[path][0]).glob("*.JPEG"))
                (root / part / wnid / f"{part}_{wnid}.JPEG").write_bytes(other.read_bytes())
    made = [living17.build(Config(root=str(root), size=4, protocol=s)) for s in ("good", "rand")]
    assert [dataset.name for dataset in made] == ["living17", "living17"]
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 2


def test_missing_folders_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    root = imagenet(tmp_path / "imagenet")
    for wnid in breeds("good")["target", "crab"]:
        (root / "val" / wnid / f"val_{wnid}.JPEG").unlink()
        (root / "val" / wnid).rmdir()
    first = breeds("good")["target", "crab"][0]
    message = f"2 of 68 ImageNet folders are missing, the first is val/{first}; agree to the terms"
    with pytest.raises(ValueError, match=message):
        living17.tree(Config(root=str(root)))


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="no protocol 'ugly'; choose one of: good, rand, bad"):
        Config(protocol="ugly")  # type: ignore[arg-type]


def test_that_imagenet_backbones_leak_is_told() -> None:
    assert any("ImageNet" in note and "leak" in note for note in living17.PUBLISHED.notes)


def test_hidden_files_and_folders_are_no_images(tmp_path: Path) -> None:
    root = imagenet(tmp_path / "imagenet")
    folder = next((root / "train").iterdir())
    (folder / "._1.JPEG").write_bytes(b"hidden")
    (folder / "folder.JPEG").mkdir()
    (folder / "folder.JPEG" / "1.JPEG").write_bytes(b"too deep")
    before = [entry.path for entry in living17.tree(Config(root=str(root))).entries]
    assert len(before) == 68
    assert not [path for path in before if "/._" in path or "folder" in path]
