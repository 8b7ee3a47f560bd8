"""Downloads by name. Every way to the network is replaced."""

import io
import socket
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torchvision
from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer import catalog
from generalizeformer.data.datasets import office_home, pacs, vlcs
from generalizeformer.data.storage import fetching
from generalizeformer.data.storage.download import download, holding
from generalizeformer.data.storage.fetching import NetworkError, from_address
from generalizeformer.data.storage.trees import Entry, Tree

ADDRESS = "https://example.org/set.zip"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is not replaced finds no network."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(urllib.request, "getproxies", dict)


def inside(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


# Addresses


@dataclass
class Server:
    """Gives a file from where it is asked to, in answers of at most so many bytes."""

    content: bytes
    most: int = 1 << 30
    ranges: bool = True
    asked: list[str | None] = field(default_factory=list)

    def opened(self, request: urllib.request.Request) -> Any:
        wanted = request.get_header("Range")
        self.asked.append(wanted)
        start = int(wanted[6:-1]) if wanted and self.ranges else 0
        headers = Message()
        if wanted and self.ranges and start >= len(self.content):
            headers["Content-Range"] = f"bytes */{len(self.content)}"
            raise urllib.error.HTTPError(request.full_url, 416, "Range", headers, None)
        headers["Content-Length"] = str(len(self.content) - start)
        return Answer(self.content[start : start + self.most], headers, 206 if start else 200)


class Answer(io.BytesIO):
    def __init__(self, content: bytes, headers: Message, status: int) -> None:
        super().__init__(content)
        self.headers, self.status = headers, status


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server(bytes(range(256)) * 10)
    monkeypatch.setattr(fetching, "reach", lambda address: None)
    monkeypatch.setattr(fetching, "_opened", made.opened)
    return made


def test_a_file_comes_whole(server: Server, tmp_path: Path) -> None:
    from_address(ADDRESS, tmp_path / "set.zip")
    assert inside(tmp_path) == {"set.zip": server.content}


@settings(deadline=None, max_examples=25)
@given(most=st.integers(1, 3000), ranges=st.booleans())
def test_a_broken_connection_leaves_a_partial_file_that_the_next_run_goes_on_with(
    tmp_path_factory: pytest.TempPathFactory, most: int, ranges: bool
) -> None:
    folder = tmp_path_factory.mktemp("fetch")
    server = Server(bytes(range(256)) * 10, most=most, ranges=ranges)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "reach", lambda address: None)
        patch.setattr(fetching, "_opened", server.opened)
        if most < len(server.content):
            with pytest.raises(NetworkError, match=r"could not be fetched whole \([\d,]+ of 2,560"):
                from_address(ADDRESS, folder / "set.zip")
            assert inside(folder) == {"set.zip.partial": server.content[:most]}
        server.most = 1 << 30
        from_address(ADDRESS, folder / "set.zip")
    assert inside(folder) == {"set.zip": server.content}
    assert server.asked[-1] == (f"bytes={most}-" if most < len(server.content) else None)


def test_a_partial_file_that_is_all_there_is_becomes_the_file(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "set.zip.partial").write_bytes(server.content)
    from_address(ADDRESS, tmp_path / "set.zip")
    assert inside(tmp_path) == {"set.zip": server.content}


def test_a_partial_file_longer_than_the_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.zip.partial").write_bytes(server.content + b"more")
    with pytest.raises(NetworkError, match="416"):
        from_address(ADDRESS, tmp_path / "set.zip")
    from_address(ADDRESS, tmp_path / "set.zip")
    assert inside(tmp_path) == {"set.zip": server.content}


def test_progress_is_told_in_megabytes(server: Server, tmp_path: Path) -> None:
    server.content = bytes(3_500_000)
    seen: list[tuple[int, int]] = []
    from_address(ADDRESS, tmp_path / "set.zip", lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3, 3)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_what_the_server_says_is_passed_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: urllib.request.Request) -> None:
        raise urllib.error.HTTPError(request.full_url, 404, "Not Found", Message(), None)

    monkeypatch.setattr(fetching, "_opened", refuse)
    with pytest.raises(NetworkError, match=r"set.zip was refused \(404 Not Found\)"):
        from_address(ADDRESS, tmp_path / "set.zip")


# Datasets


@pytest.mark.parametrize(
    "name",
    ["pacs", "vlcs", "office_home", "terra_incognita", "rotated_mnist", "rotated_fashion_mnist"],
)
def test_without_a_network_one_line_says_so_and_how_to_place_the_files(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{name}: there is no network, ") as caught:
        download(name, tmp_path / "new" / name)
    published = catalog.load("generalizeformer.data.datasets", name).PUBLISHED
    message = str(caught.value)
    assert "to place the files by hand: " in message
    assert published.layout in message
    assert published.obtain.rstrip(".") in message
    assert f"run `generalizeformer data download {name}`" not in message  # that is what was run
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_imagenet_is_fetched_by_hand(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="living17: ImageNet cannot be fetched for you; agree to"):
        download("living17", tmp_path / "imagenet")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digits", "come with the package"),
        ("synthetic", "are drawn when they are needed"),
        ("folder", "these are your own images"),
    ],
)
def test_datasets_without_files_to_fetch_say_so(name: str, words: str, tmp_path: Path) -> None:
    assert words in download(name, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_every_dataset_of_the_catalogue_has_a_way(tmp_path: Path) -> None:
    """Or a new one would end in a traceback."""
    for name in catalog.names("generalizeformer.data.datasets"):
        try:
            assert name in download(name, tmp_path / name)
        except ValueError as error:
            assert str(error).startswith(f"{name}: ")  # noqa: PT017


def test_an_unknown_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no 'pasc'; did you mean 'pacs'"):
        download("pasc", tmp_path / "pacs")


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for name in ("vlcs", "terra_incognita"):
        with pytest.raises(ValueError, match="there is something here already"):
            download(name, tmp_path)
    assert inside(tmp_path) == {"mine.txt": b"mine"}


# Google Drive


def driven(monkeypatch: pytest.MonkeyPatch, *contents: bytes) -> list[str]:
    """Google Drive gives these contents, one after the other. Gives back the list of ids asked for."""
    left, asked = list(contents), []

    def fetch(identity: str, file: Path, report: object = None) -> None:
        asked.append(identity)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(left.pop(0))

    monkeypatch.setattr(fetching, "from_drive", fetch)
    return asked


def archive(module: Any, wrapping: str) -> bytes:
    domains = module.PUBLISHED.domains
    files = {f"{wrapping}{domain}/x/1.jpg": domain.encode() for domain in domains}
    return zipped(files | {"__MACOSX/x": b"", f"{wrapping}ImageInfo.csv": b""})


@pytest.mark.parametrize(
    ("module", "wrapping"),
    [
        (pacs, "kfold/"),
        (office_home, "OfficeHomeDataset_10072016/"),
        (vlcs, "VLCS/"),
        (vlcs, ""),
        (vlcs, "a/b/"),
    ],
)
def test_the_folder_around_the_domains_becomes_the_root(
    module: Any, wrapping: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = driven(monkeypatch, archive(module, wrapping))
    name = module.__name__.rpartition(".")[2]
    sentence = download(name, tmp_path / "tree")  # the hub is not there, so Google Drive is asked
    assert asked == [module.PUBLISHED.drive]
    assert "tree: 6 files from the published archive" in sentence
    for domain in module.PUBLISHED.domains:
        assert (tmp_path / "tree" / domain / "x" / "1.jpg").read_bytes() == domain.encode()
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


def test_a_broken_archive_is_fetched_again_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = archive(vlcs, "")
    asked = driven(monkeypatch, whole[:-30], b"<html>quota</html>", whole)
    for words in ("this archive is broken", "neither a zip nor a tar"):
        with pytest.raises(ValueError, match=words):
            download("vlcs", tmp_path / "tree")
        assert not (tmp_path / "tree").exists()
    download("vlcs", tmp_path / "tree")
    assert len(asked) == 3
    assert (tmp_path / "tree" / "SUN09").is_dir()


def test_an_archive_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven(monkeypatch, zipped({"cats/1.jpg": b"", "dogs/1.jpg": b""}))
    with pytest.raises(
        ValueError, match="the archive holds cats, dogs, but no folder with Caltech"
    ):
        download("vlcs", tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_other_names_of_domains_are_known(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "wrapping" / name).mkdir(parents=True)
    published: Any = SimpleNamespace(domains=("A", "b"), folders={"a": "A"})
    assert holding(tmp_path, published) == tmp_path / "wrapping"


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gdown", None)
    with pytest.raises(ValueError, match=r"run: pip install 'generalizeformer\[data\]'"):
        download("vlcs", tmp_path / "tree")


def test_gdown_is_asked_for_the_id_and_its_errors_become_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*, id: str, output: str, quiet: bool, resume: bool) -> None:
        assert (id, quiet, resume) == ("someid", True, True)
        if "fail" in output:
            raise RuntimeError("Too many users\nhave viewed it")
        Path(output).write_bytes(b"content")

    monkeypatch.setattr(fetching, "reach", lambda address: None)
    monkeypatch.setitem(
        __import__("sys").modules,
        "gdown",
        SimpleNamespace(download=fetch),  # type: ignore[arg-type]
    )
    fetching.from_drive("someid", tmp_path / "file")
    assert inside(tmp_path) == {"file": b"content"}
    with pytest.raises(NetworkError, match=r"did not give the file \(Too many users\)$"):
        fetching.from_drive("someid", tmp_path / "fail")


# The hub


@dataclass(frozen=True)
class Bytes:
    content: bytes

    def read(self) -> bytes:
        return self.content


def hub_tree(*paths: str) -> Tree:
    parts = (path.split("/") for path in paths)
    return Tree("hub:x", tuple(Entry(d, c, n, 1, "", Bytes(n.encode())) for d, c, n in parts))


def test_rows_of_the_hub_become_files_under_the_published_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = hub_tree("Art/Alarm Clock/1.jpg", "Real World/toothbrush/2.png")
    monkeypatch.setattr(fetching, "from_hub", lambda published: tree)
    seen: list[tuple[int, int]] = []
    sentence = download("office_home", tmp_path / "t", lambda done, of: seen.append((done, of)))
    assert inside(tmp_path / "t") == {
        "Art/Alarm_Clock/1.jpg": b"1.jpg",
        "Real World/ToothBrush/2.png": b"2.png",
    }
    assert sentence.endswith("t: 2 images from hub:flwrlabs/office-home")
    assert seen == [(1, 2), (2, 2)]


def test_a_hub_that_holds_something_else_is_not_used_and_google_drive_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "from_hub", lambda published: hub_tree("photo/unicorn/1.jpg"))
    with pytest.raises(ValueError, match=r"hub:flwrlabs/pacs has photo/unicorn, which is not publ"):
        download("pacs", tmp_path / "tree")
    driven(monkeypatch, archive(pacs, "kfold/"))
    download("pacs", tmp_path / "tree")
    assert (tmp_path / "tree" / "sketch").is_dir()


def test_a_hub_that_stops_halfway_leaves_no_tree_and_the_next_run_starts_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    trees = [hub_tree("photo/dog/1.jpg", "photo/dog/2.jpg"), hub_tree("photo/dog/2.jpg")]
    monkeypatch.setattr(fetching, "from_hub", lambda published: trees.pop(0))
    with pytest.raises(KeyboardInterrupt):
        download("pacs", tmp_path / "tree", stop)
    assert not (tmp_path / "tree").exists()
    download("pacs", tmp_path / "tree")
    assert set(inside(tmp_path)) == {"tree/photo/dog/2.jpg"}


def test_names_of_rows_cannot_point_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "from_hub", lambda published: hub_tree("photo/dog/..\\evil.jpg"))
    download("pacs", tmp_path / "tree")
    assert set(inside(tmp_path)) == {"tree/photo/dog/evil.jpg"}


def test_the_hub_is_read_as_a_table_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(fetching, "reach", lambda address: asked.append(("reach", address)))
    monkeypatch.setattr(fetching, "scan", lambda *args: asked.append(args))
    fetching.from_hub(pacs.PUBLISHED)
    assert asked == [("reach", constants.ENDPOINT), ("hub:flwrlabs/pacs", {})]


# torchvision


@pytest.mark.parametrize(
    ("name", "folder"), [("rotated_mnist", "MNIST"), ("rotated_fashion_mnist", "FashionMNIST")]
)
def test_torchvision_fetches_the_digits_into_its_own_layout(
    name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = True

    def fetch(root: Path, download: bool) -> None:
        (root / folder / "raw").mkdir(parents=True)
        (root / folder / "raw" / "train-images-idx3-ubyte").write_bytes(b"digits")
        if broken:
            raise RuntimeError("Error downloading\nTried this")

    fetch.mirrors = ["https://example.org"]  # type: ignore[attr-defined]
    monkeypatch.setattr(fetching, "reach", lambda address: None)
    monkeypatch.setattr(torchvision.datasets, folder, fetch)
    with pytest.raises(ValueError, match=rf"could not fetch {folder} \(Error downloading\)"):
        download(name, tmp_path / "root")
    assert inside(tmp_path) == {}
    broken = False
    assert "the four files" in download(name, tmp_path / "root")
    assert inside(tmp_path) == {f"root/{folder}/raw/train-images-idx3-ubyte": b"digits"}


# Reaching out


def test_a_proxy_is_trusted_to_know_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(socket, "create_connection", lambda *where, **how: asked.append(where))
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": "proxy"})
    fetching.reach(ADDRESS)
    assert asked == []


def test_a_machine_that_does_not_answer_is_named() -> None:
    message = r"there is no network, example.org does not answer \(Name or service not known\)"
    with pytest.raises(NetworkError, match=message):
        fetching.reach(ADDRESS)
