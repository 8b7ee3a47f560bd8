from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import write_png

from generalizeformer.errors import DataError, ImageError
from generalizeformer.imaging.files import ENDINGS, find_images, read_image, read_images


@pytest.fixture
def picture() -> Image.Image:
    """A smooth picture, 12 wide and 8 high, red to the right and green to the bottom."""
    red, green = np.meshgrid(np.linspace(0, 255, 12), np.linspace(0, 255, 8))
    pixels = np.stack([red, green, np.full_like(red, 40)], 2)
    return Image.fromarray(pixels.astype(np.uint8))


def test_folders_are_searched_in_a_stable_order(tmp_path: Path, picture: Image.Image) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "folder.png").mkdir()
    for name in ("b.PNG", "a.jpg", "deep/er/c.webp", "d.gif", "e.jpeg"):
        picture.save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    names = [str(path.relative_to(tmp_path)) for path in find_images([tmp_path])]
    assert names == ["a.jpg", "b.PNG", "d.gif", "deep/er/c.webp", "e.jpeg"]


def test_named_files_keep_their_order_and_need_no_ending(tmp_path: Path) -> None:
    files = [tmp_path / "z.dat", tmp_path / "a.png"]
    for file in files:
        file.write_bytes(b"")
    assert find_images(files) == files


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing: no such file or folder; check the path"):
        find_images([tmp_path / "nothing"])
    with pytest.raises(DataError, match=r"no images in this folder; images end in \.jpg"):
        find_images([tmp_path])
    with pytest.raises(DataError, match="name at least one"):
        find_images([])


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_file_becomes_the_channels_asked_for(
    tmp_path: Path, picture: Image.Image, ending: str, mode: str, channels: int
) -> None:
    path = tmp_path / f"picture{ending}"
    picture.convert(mode).save(path)
    pixels = read_image(path, channels)
    assert pixels.shape == (channels, 8, 12)
    assert pixels.dtype == torch.uint8
    wanted = "L" if channels == 1 else "RGB"
    with Image.open(path) as opened:
        expected = torch.from_numpy(np.array(opened.convert(wanted)).reshape(8, 12, channels))
    difference = (pixels.permute(1, 2, 0).int() - expected.int()).abs()
    assert difference.max() <= 1  # rounding of the luma


def test_grey_files_keep_their_values(tmp_path: Path) -> None:
    grey = torch.arange(96, dtype=torch.uint8).view(1, 8, 12) * 2
    write_png(grey, str(tmp_path / "grey.png"))
    assert torch.equal(read_image(tmp_path / "grey.png", 1), grey)


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    deep = np.arange(96, dtype=np.uint16).reshape(8, 12) * 600
    Image.fromarray(deep).save(tmp_path / "deep.png")
    pixels = read_image(tmp_path / "deep.png", 1)
    assert torch.equal(pixels[0], torch.from_numpy((deep >> 8).astype(np.uint8)))


def test_transparency_is_dropped(tmp_path: Path, picture: Image.Image) -> None:
    picture.save(tmp_path / "plain.png")
    picture.putalpha(255)
    picture.save(tmp_path / "alpha.png")
    assert torch.equal(read_image(tmp_path / "alpha.png", 3), read_image(tmp_path / "plain.png", 3))


def test_photographs_stand_upright(tmp_path: Path, picture: Image.Image) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned a quarter to the right
    picture.save(tmp_path / "turned.jpg", exif=turned, quality=100)
    assert read_image(tmp_path / "turned.jpg", 3).shape == (3, 12, 8)


@pytest.mark.parametrize("ending", [".png", ".jpg", ".gif", ".webp"])
def test_a_file_that_was_cut_short_is_refused_by_name(tmp_path: Path, ending: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    path = tmp_path / f"cut{ending}"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ImageError, match=rf"cut{ending}: not an image that can be read \(") as told:
        read_image(path, 3)
    assert ".cpp" not in str(told.value)


@pytest.mark.parametrize("content", [b"", b"just text", b"\x89PNG\r\n\x1a\n"])
def test_a_file_that_is_no_image_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text.png"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=r"text\.png: not an image .*; remove or replace it"):
        read_image(path, 3)


def test_a_film_is_refused(tmp_path: Path, picture: Image.Image) -> None:
    path = tmp_path / "film.gif"
    picture.save(path, save_all=True, append_images=[picture.rotate(180)])
    with pytest.raises(ImageError, match=r"film\.gif: holds 2 pictures"):
        read_image(path, 3)


def test_channels_that_no_file_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="takes 4 channels; files give 1 or 3"):
        read_image(tmp_path / "any.png", 4)


def test_files_of_all_sizes_become_one_batch(tmp_path: Path, picture: Image.Image) -> None:
    paths = [tmp_path / f"{side}.png" for side in (4, 8, 30)]
    for path, side in zip(paths, (4, 8, 30), strict=True):
        picture.resize((side, side)).save(path)
    pixels = read_images(paths, 3, 8)
    assert pixels.shape == (3, 3, 8, 8)
    assert torch.equal(pixels[1], read_image(paths[1], 3))
