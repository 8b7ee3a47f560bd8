import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from generalizeformer import atomic
from generalizeformer.data.storage import cache
from generalizeformer.data.storage.cache import Recipe, is_ready, location, prepare
from generalizeformer.data.storage.trees import Tree, scan
from generalizeformer.errors import DataError, ImageError
from generalizeformer.imaging.files import decode, resized

RECIPE = Recipe(name="toy", size=6)
COUNT = 24  # images

# Importing takes seconds, so one process imports, and its children, which it forks, are the ones killed.
BEGINNING = """
import os, random, shutil, signal, sys, time
import torchvision
from pathlib import Path
from generalizeformer import atomic
from generalizeformer.data.storage import cache
from generalizeformer.data.storage.trees import scan
root, folder = sys.argv[1], Path(sys.argv[2])
cache.BLOCK, recipe, tree = 2, cache.Recipe(name="toy", size=6), scan(root)
place = cache.location(tree, recipe, folder)

def child(wait):
    number = os.fork()
    if number:
        return number
    seen = []
    cache.prepare(tree, recipe, folder, lambda done, total: (seen.append(done), time.sleep(wait)))
    os._exit(len(seen))

def ended(number):
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
"""

KILLING = """
begin = time.perf_counter()
assert ended(child(0.002)) == 12
whole, undisturbed = time.perf_counter() - begin, (place / "images.uint8").read_bytes()
shutil.rmtree(folder)
draw, amid = random.Random(0), 0
for _ in range(40):
    number = child(0.002)
    time.sleep(draw.uniform(0, whole))
    os.kill(number, signal.SIGKILL)
    ended(number)
    amid += (place / "journal.txt").exists()
    if cache.is_ready(tree, recipe, folder):
        assert (place / "images.uint8").read_bytes() == undisturbed
        shutil.rmtree(folder)
ended(child(0))
assert (place / "images.uint8").read_bytes() == undisturbed
print(amid)
"""

TOGETHER = """
both = [child(0.02), child(0.02)]
print(sorted(ended(number) for number in both))
"""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "BLOCK", 2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two domains of two classes, every image another noise of another shape."""
    draw = np.random.default_rng(0)
    for number in range(COUNT):
        path = tmp_path / "toy" / "ab"[number % 2] / "xy"[number // 2 % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (4 + number % 5, 5 + number % 3, 3)
        Image.fromarray(draw.integers(0, 255, shape, dtype=np.uint8)).save(path)
    return tmp_path / "toy"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def said(script: str, root: Path, folder: Path) -> str:
    """What a process that runs the script prints."""
    command = [sys.executable, "-c", BEGINNING + script, str(root), str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def pixels_file(tree: Tree, folder: Path) -> Path:
    return location(tree, RECIPE, folder) / "images.uint8"


def touched(tree: Tree, folder: Path) -> list[int]:
    """How far each report was while preparing: nothing, if nothing was done."""
    seen: list[int] = []
    prepare(tree, RECIPE, folder, lambda done, total: seen.append(done))
    return seen


@pytest.mark.parametrize("how", ["squash", "crop"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_cache_holds_what_decoding_gives_in_the_order_of_the_tree(
    root: Path, folder: Path, how: str, channels: int
) -> None:
    tree, recipe = scan(root), Recipe(name="toy", size=6, how=how, channels=channels)  # type: ignore[arg-type]
    pixels = prepare(tree, recipe, folder)
    assert pixels.shape == (COUNT, channels, 6, 6)
    for image, entry in zip(pixels, tree.entries, strict=True):
        whole = decode(tree.read(entry), entry.path, channels)
        assert torch.equal(image, resized(whole, 6, recipe.how))


def test_the_second_call_decodes_nothing(root: Path, folder: Path) -> None:
    tree = scan(root)
    assert not is_ready(tree, RECIPE, folder)
    assert touched(tree, folder) == list(range(2, COUNT + 1, 2))
    assert is_ready(tree, RECIPE, folder)
    assert touched(tree, folder) == []


def test_writing_into_the_images_does_not_reach_the_file(root: Path, folder: Path) -> None:
    tree = scan(root)
    before = prepare(tree, RECIPE, folder).clone()
    prepare(tree, RECIPE, folder).fill_(7)
    assert torch.equal(prepare(tree, RECIPE, folder), before)


def _change(root: Path) -> None:
    Image.new("RGB", (5, 5), (9, 9, 9)).save(root / "a" / "x" / "00.png")


def _add(root: Path) -> None:
    Image.new("RGB", (5, 5), (9, 9, 9)).save(root / "a" / "x" / "99.png")


def _remove(root: Path) -> None:
    (root / "b" / "y" / "03.png").unlink()


@pytest.mark.parametrize("change", [_change, _add, _remove])
def test_a_cache_is_done_again_when_a_file_changes_appears_or_goes(
    root: Path, folder: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    old = prepare(scan(root), RECIPE, folder)
    kept = old.clone()
    change(root)
    tree = scan(root)
    assert not is_ready(tree, RECIPE, folder)
    new = prepare(tree, RECIPE, folder)
    assert torch.equal(new, prepare(tree, RECIPE, tmp_path / "fresh"))
    assert new.shape != kept.shape or not torch.equal(new, kept)
    assert torch.equal(old, kept)  # who still looks at the old images keeps them


def test_roots_and_recipes_have_caches_of_their_own(root: Path, folder: Path) -> None:
    tree = scan(root)
    elsewhere = Tree(str(root.parent), tree.entries)
    others = [Recipe(name="toy", size=7), Recipe(name="toy", size=6, how="crop")]
    others.append(Recipe(name="toy", size=6, channels=1))
    places = {location(tree, recipe, folder) for recipe in [RECIPE, *others]}
    assert len(places | {location(elsewhere, RECIPE, folder)}) == 5
    assert all(place.name.startswith("toy-") for place in places)


def _cut_pixels(place: Path) -> None:
    os.truncate(place / "images.uint8", 100)


def _cut_index(place: Path) -> None:
    os.truncate(place / "index.json", 20)


def _strange_index(place: Path) -> None:
    (place / "index.json").write_text("[1, 2]")


def _no_pixels(place: Path) -> None:
    (place / "images.uint8").unlink()


@pytest.mark.parametrize("damage", [_cut_pixels, _cut_index, _strange_index, _no_pixels])
def test_a_damaged_cache_is_done_again(
    root: Path, folder: Path, damage: Callable[[Path], None]
) -> None:
    tree = scan(root)
    before = prepare(tree, RECIPE, folder).clone()
    damage(location(tree, RECIPE, folder))
    assert not is_ready(tree, RECIPE, folder)
    assert torch.equal(prepare(tree, RECIPE, folder), before)


def interrupted(tree: Tree, folder: Path, after: int) -> None:
    """A cache whose making ended by an error after so many images."""

    def stop(done: int, total: int) -> None:
        if done >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tree, RECIPE, folder, stop)


def test_an_interrupted_cache_does_only_the_rest(root: Path, folder: Path, tmp_path: Path) -> None:
    tree = scan(root)
    interrupted(tree, folder, 10)
    assert not is_ready(tree, RECIPE, folder)
    assert touched(tree, folder) == list(range(12, COUNT + 1, 2))
    prepare(tree, RECIPE, tmp_path / "fresh")
    fresh = pixels_file(tree, tmp_path / "fresh").read_bytes()
    assert pixels_file(tree, folder).read_bytes() == fresh


def test_half_the_work_on_other_files_is_thrown_away(root: Path, folder: Path) -> None:
    interrupted(scan(root), folder, 10)
    _change(root)
    assert touched(scan(root), folder)[0] == 2


@pytest.mark.parametrize("end", ["1", "22", "\0\0\0", "junk\n", "9999\n"])
def test_a_journal_with_a_strange_end_does_no_harm(
    root: Path, folder: Path, tmp_path: Path, end: str
) -> None:
    tree = scan(root)
    interrupted(tree, folder, 10)
    with (location(tree, RECIPE, folder) / "journal.txt").open("a") as journal:
        journal.write(end)
    interrupted(tree, folder, 14)
    pixels = prepare(tree, RECIPE, folder)
    assert torch.equal(pixels, prepare(tree, RECIPE, tmp_path / "fresh"))


def test_killed_at_any_moment_and_started_again_it_ends_identical(root: Path, folder: Path) -> None:
    amid = int(said(KILLING, root, folder))
    assert amid >= 5  # of 40 were killed with work begun and not finished


def test_two_processes_at_once_do_the_work_once(root: Path, folder: Path, tmp_path: Path) -> None:
    assert said(TOGETHER, root, folder) == str([0, COUNT // 2])
    tree = scan(root)
    fresh = prepare(tree, RECIPE, tmp_path / "fresh")
    assert is_ready(tree, RECIPE, folder)
    assert torch.equal(prepare(tree, RECIPE, folder), fresh)


def test_who_waits_for_a_cache_waits_where_everybody_does(root: Path, folder: Path) -> None:
    tree = scan(root)
    with atomic.alone(location(tree, RECIPE, folder)):
        other = threading.Thread(target=prepare, args=(tree, RECIPE, folder))
        other.start()
        other.join(0.5)
        assert other.is_alive()
        assert not is_ready(tree, RECIPE, folder)
    other.join(60)
    assert is_ready(tree, RECIPE, folder)


def test_an_old_index_never_stands_for_new_pixels(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = scan(root)
    turned = Tree(tree.root, tree.entries[::-1])  # other pixels in a file as large as before
    before = prepare(tree, RECIPE, folder).clone()
    real = cache.write_text

    def killed(path: Path, text: str) -> None:
        if path.name == "index.json":
            raise KeyboardInterrupt
        real(path, text)

    with monkeypatch.context() as patched:
        patched.setattr(cache, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(turned, RECIPE, folder)
    assert torch.equal(prepare(tree, RECIPE, folder), before)
    assert torch.equal(prepare(turned, RECIPE, folder), before.flip(0))


def test_an_unreadable_image_is_named_and_the_rest_can_go_on(root: Path, folder: Path) -> None:
    bad = root / "b" / "y" / "23.png"
    bad.write_bytes(b"no picture")
    wanted = (
        r"toy: b/y/23\.png: not an image .*; `generalizeformer data check` finds all such files$"
    )
    with pytest.raises(ImageError, match=wanted):
        prepare(scan(root), RECIPE, folder)
    assert not is_ready(scan(root), RECIPE, folder)
    bad.unlink()
    assert len(prepare(scan(root), RECIPE, folder)) == COUNT - 1


def test_a_folder_that_cannot_be_written_is_told(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        DataError, match=r"cannot write the decoded images \(Not a directory\)"
    ) as told:
        prepare(scan(root), RECIPE, tmp_path / "file")
    assert "make room or set GENERALIZEFORMER_CACHE to another folder" in str(told.value)


def test_a_full_disk_is_told_before_anything_is_decoded(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_reserve", full)
    with pytest.raises(DataError, match=r"No space left on device\); they take 0\.0 MB"):
        prepare(scan(root), RECIPE, folder)
    assert names(location(scan(root), RECIPE, folder)) == [".lock"]


def free_room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)


@pytest.mark.parametrize(("size", "amount"), [(224, r"3\.6 MB"), (5000, r"1\.8 GB")])
def test_a_disk_that_is_too_small_is_told_before_any_room_is_taken(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, size: int, amount: str
) -> None:
    def reserve(file: int, size: int) -> None:
        raise AssertionError("room was asked for")

    monkeypatch.setattr(cache, "_reserve", reserve)
    recipe = Recipe(name="toy", size=size)
    free_room(monkeypatch, COUNT * 3 * size**2 - 1)
    with pytest.raises(DataError, match=rf"No space left on device\); they take {amount}, so make"):
        prepare(scan(root), recipe, folder)
    assert names(location(scan(root), recipe, folder)) == [".lock"]


def test_an_interrupted_cache_needs_no_more_room(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = scan(root)
    interrupted(tree, folder, 10)
    free_room(monkeypatch, 0)
    assert touched(tree, folder)[0] == 12


def test_names_that_are_no_text_do_no_harm(root: Path, folder: Path) -> None:
    odd = root.with_name(os.fsdecode(b"caf\xe9"))
    root.rename(odd)
    (odd / "a" / "x" / "00.png").rename(odd / "a" / "x" / os.fsdecode(b"\xff.png"))
    tree = scan(odd)
    assert len(prepare(tree, RECIPE, folder)) == COUNT
    assert is_ready(scan(odd), RECIPE, folder)
    index = json.loads((location(tree, RECIPE, folder) / "index.json").read_text("utf-8"))
    assert index["root"] == str(odd)


def test_caches_go_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GENERALIZEFORMER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.default_folder() == Path.home() / ".cache" / "generalizeformer"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.default_folder() == Path("/x/generalizeformer")
    monkeypatch.setenv("GENERALIZEFORMER_CACHE", "/y")
    assert cache.default_folder() == Path("/y")


def test_the_index_says_what_the_pixels_are(root: Path, folder: Path) -> None:
    tree = scan(root)
    prepare(tree, RECIPE, folder)
    place = location(tree, RECIPE, folder)
    index = json.loads((place / "index.json").read_text())
    assert (index["root"], index["images"]) == (str(root), COUNT)
    assert names(place) == [".lock", "images.uint8", "index.json"]
