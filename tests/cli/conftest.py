from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from generalizeformer.cli.main import main


class Ended(NamedTuple):
    """How a command ended and what it said."""

    status: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `generalizeformer WORDS…` in this process."""

    def run(*words: object) -> Ended:
        capsys.readouterr()
        status = 0
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        return Ended(status, *capsys.readouterr())

    return run


@pytest.fixture
def refused(command: Command) -> Callable[..., str]:
    """The one line with which a command is refused."""

    def run(*words: object) -> str:
        ended = command(*words)
        assert ended.status == 2, ended
        assert ended.out == ""
        lines = ended.err.splitlines()
        assert len(lines) == 1, ended.err
        assert lines[0].startswith("error: ")
        return lines[0].removeprefix("error: ")

    return run


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained on three of the four toy domains; nothing may change it."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    words = "--data synthetic --sources a b c --held-out a --source-steps 4 --steps 4 --device cpu"
    main(["train", str(folder), *words.split()])
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of five images: colour, grey, another size, another format, and one deeper down."""
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 255, (5, 16, 16, 3), dtype=np.uint8)
    Image.fromarray(noise[0]).save(folder / "a.png")
    Image.fromarray(noise[1]).convert("L").save(folder / "b.png")
    Image.fromarray(noise[2]).resize((30, 20)).save(folder / "c.jpg")
    Image.fromarray(noise[3]).save(folder / "d.webp")
    Image.fromarray(noise[4]).save(folder / "deep" / "e.png")
    return folder
