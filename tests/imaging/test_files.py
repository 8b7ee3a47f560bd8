import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.io import write_png

from generalizeformer.errors import ImageError
from generalizeformer.imaging.files import (
    ENDINGS,
    complete,
    decode,
    read_image,
    read_images,
    resized,
)


@pytest.fixture
def picture() -> Image.Image:
    """A smooth picture, 12 wide and 8 high, red to the right and green to the bottom."""
    red, green = np.meshgrid(np.linspace(0, 255, 12), np.linspace(0, 255, 8))
    pixels = np.stack([red, green, np.full_like(red, 40)], 2)
    return Image.fromarray(pixels.astype(np.uint8))


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


@pytest.mark.parametrize("ending", ENDINGS)
def test_bytes_decode_as_their_file_does(tmp_path: Path, picture: Image.Image, ending: str) -> None:
    path = tmp_path / f"picture{ending}"
    picture.save(path)
    assert torch.equal(decode(path.read_bytes(), "any name", 3), read_image(path, 3))


def test_bytes_that_are_no_image_are_refused_under_their_name() -> None:
    with pytest.raises(
        ImageError, match=r"^photo/dog/1\.jpg: not an image .*\(the file is empty\)"
    ):
        decode(b"", "photo/dog/1.jpg", 3)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ImageError, match=r"gone\.png: not a file .*\(No such file .*check the path"
    ):
        read_image(tmp_path / "gone.png", 3)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_whole_file_is_complete_and_one_that_lacks_its_end_is_not(
    tmp_path: Path, ending: str
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / f"whole{ending}")
    content = (tmp_path / f"whole{ending}").read_bytes()
    assert complete(content)
    assert complete(content + bytes(512))  # padding
    for share in (0.0, 0.1, 0.5, 0.9):
        assert not complete(content[: int(share * len(content))])
    assert not complete(content[:-2])


def test_what_has_no_known_format_is_not_complete() -> None:
    assert not complete(b"just text")


@settings(deadline=None, max_examples=25)
@given(height=st.integers(1, 40), width=st.integers(1, 40), size=st.integers(1, 30))
def test_any_image_becomes_a_square(height: int, width: int, size: int) -> None:
    image = torch.arange(3 * height * width).remainder(256).view(3, height, width).to(torch.uint8)
    for how in ("squash", "crop"):
        assert resized(image, size, how).shape == (3, size, size)  # type: ignore[arg-type]


def test_squashing_keeps_the_edges_and_cropping_keeps_the_middle() -> None:
    """An image with a dark left and a bright right quarter, twice as wide as high."""
    image = torch.full((3, 224, 448), 128, dtype=torch.uint8)
    image[:, :, :112], image[:, :, 336:] = 0, 255
    squashed, cropped = resized(image, 224, "squash"), resized(image, 224, "crop")
    assert squashed[0, 100, 0] == 0
    assert squashed[0, 100, -1] == 255
    assert (cropped == 128).all()


def test_cropping_leaves_the_usual_margin() -> None:
    """A frame as wide as the margin is all that goes."""
    image = torch.full((3, 256, 256), 200, dtype=torch.uint8)
    image[:, 16:240, 16:240] = 50
    assert (resized(image, 224, "crop") == 50).all()


def test_upright_and_lying_images_are_cropped_alike() -> None:
    image = torch.randint(256, (3, 50, 31), generator=torch.Generator().manual_seed(0))
    image = image.to(torch.uint8)
    turned = resized(image.transpose(1, 2), 20, "crop").transpose(1, 2)
    assert (resized(image, 20, "crop").int() - turned.int()).abs().max() <= 1  # rounding


def test_images_of_the_right_size_are_not_touched() -> None:
    image = torch.arange(192, dtype=torch.uint8).view(3, 8, 8)
    assert torch.equal(resized(image, 8, "squash"), image)


def encoded(ending: str, **options: object) -> bytes:
    noise = np.random.default_rng(1).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(noise).save(content, ending, **options)  # type: ignore[arg-type]
    return content.getvalue()


def with_thumbnail(content: bytes) -> bytes:
    """A photograph that holds a small one before its own pixels, as cameras write it."""
    small = b"Exif\0\0" + encoded("jpeg", quality=10)
    return content[:2] + b"\xff\xe1" + (len(small) + 2).to_bytes(2, "big") + small + content[2:]


KINDS = {
    "baseline": encoded("jpeg"),
    "progressive": encoded("jpeg", progressive=True),
    "restarts": encoded("jpeg", restart_marker_blocks=1),
    "thumbnail": with_thumbnail(encoded("jpeg")),
    "plain gif": encoded("gif"),
    "film": encoded("gif", save_all=True, append_images=[Image.new("RGB", (32, 24), "red")]),
}
TRAILERS = {
    "nothing": b"",
    "a note": b"Image_UTC_Data1234 SEFH SEFT",
    "a film": b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 8,
    "another photograph": encoded("jpeg"),
    "half a photograph": encoded("jpeg")[:-200],
    "half a gif": encoded("gif")[:-200],
}


@pytest.mark.parametrize("trailer", TRAILERS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_behind_the_end_does_not_matter(kind: str, trailer: str) -> None:
    assert complete(KINDS[kind] + TRAILERS[trailer])


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_cut_anywhere_is_not_complete(kind: str) -> None:
    content = KINDS[kind]
    assert not [length for length in range(len(content)) if complete(content[:length])]
