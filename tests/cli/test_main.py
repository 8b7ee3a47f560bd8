"""Help, versions, and what a user can get wrong."""

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from generalizeformer import __version__, catalog
from generalizeformer.cli import main as cli
from generalizeformer.cli.main import VERBS
from generalizeformer.cli.train import card_for
from generalizeformer.data.datasets import synthetic

from .conftest import Command

Refused = Callable[..., str]


def test_every_verb_has_help(command: Command) -> None:
    for words in ([], *([verb] for verb in VERBS)):
        ended = command(*words, "--help")
        assert ended.status == 0
        assert "usage: generalizeformer" in ended.out
        assert ended.err == ""


def test_help_names_every_verb(command: Command) -> None:
    text = command("--help").out
    assert all(verb in text for verb in VERBS)
    assert "--version" in text


def test_help_names_every_order_of_arrival(command: Command) -> None:
    text = command("evaluate", "--help").out
    assert all(order in text for order in catalog.names("generalizeformer.data.orders"))


def test_the_version_is_told(command: Command) -> None:
    assert command("--version") == (0, f"{__version__}\n", "")


def test_help_and_version_do_not_wait_for_torch() -> None:
    program = (
        "import sys\n"
        "from generalizeformer.cli.main import VERBS, main\n"
        "for words in (['--version'], ['--help'], *([verb, '--help'] for verb in VERBS)):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: assert end.code in (None, 0), (words, end.code)\n"
        "heavy = {'torch', 'torchvision', 'lightning_fabric', 'matplotlib', 'timm'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["train"],
        ["train", "x", "--stesp", "3"],
        ["train", "x", "--steps", "three"],
        ["train", "x", "--episodes", "none"],
        ["evaluate", "x", "--limit", "1.5"],
    ],
)
def test_words_that_cannot_be_parsed_end_with_2(command: Command, words: list[str]) -> None:
    ended = command(*words)
    assert ended.status == 2
    assert ended.out == ""
    assert "Traceback" not in ended.err
    assert ended.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "predcit run",
            "there is no verb 'predcit'; did you mean predict? choose from: demo, train",
        ),
        ("xyz --help", "there is no verb 'xyz'; choose from: demo, train, evaluate"),
        ("data chek", "there is no verb 'chek'; did you mean check? choose from: list, info"),
    ],
)
def test_a_misspelt_verb_is_answered_with_the_nearest(
    refused: Refused, words: str, expected: str
) -> None:
    assert refused(*words.split()).startswith(expected)


def test_an_error_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise AssertionError("our own mistake")

    monkeypatch.setattr(cli, "VERBS", {"broken": broken, "other": broken})
    with pytest.raises(AssertionError, match="our own mistake"):
        cli.main(["broken"])


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "file"), 2, "error: file: Permission"),
        (OSError("disk full"), 2, "error: disk full"),
        (KeyboardInterrupt(), 130, "stopped; run the same command again"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: BaseException,
    status: int,
    words: str,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr(cli, "VERBS", {"broken": broken, "other": broken})
    ended = command("broken")
    assert ended.status == status
    assert ended.err.startswith(words)
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("train", "stopped; run the same command again to go on\n"),
        ("benchmark", "stopped; run the same command again to go on\n"),
        ("evaluate", "stopped; nothing was kept: the same command begins anew\n"),
        ("predict", "stopped; nothing was kept: the same command begins anew\n"),
        ("data check", "stopped; nothing was kept: the same command begins anew\n"),
        ("data prepare", "stopped; run the same command again to go on\n"),
    ],
)
def test_who_stops_a_command_is_told_what_it_has_left(
    verb: str, words: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    for module in (cli, cli.data):
        monkeypatch.setattr(module, "VERBS", dict.fromkeys(module.VERBS, stopped))
    assert command(*verb.split()) == (130, "", words)


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = "from generalizeformer.cli.main import main; main(['train', '--help'])"
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() in (0, 141)


# train


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--backbone resnte18", "backbone: there is no 'resnte18'; did you mean 'resnet18'?"),
        ("--backbone nonsense:x", "give a name, torchvision:name or timm:name"),
        ("--sources a", "one source domain ('a') cannot play source and target at once"),
        ("--sources a --episodes joint", "as pseudo-domains: episodes 'looks'"),
        ("--protocol inner", "got 'inner', but synthetic has no protocol; leave it out"),
        ("--sources a zz", "there is no domain 'zz'; it has: a, b, c, d"),
        ("--sources a a", "domain names must differ"),
        ("--held-out zz", "there is no domain 'zz'; it has: a, b, c, d"),
        ("--steps 0", "meta: steps is 0; it must be at least 1"),
        ("--source-steps 0", "erm: steps is 0; it must be at least 1"),
        ("--learning-rate 0", "learning_rate is 0.0; it must be above 0"),
        ("--seed -1", "seed is -1; it must be from 0"),
        ("--data-settings classes=1", "one class only (0); a classifier needs two or more"),
        ("--image-size 0", "image size: got 0; it must be at least 8"),
        ("--image-size 7", "image size: got 7; it must be at least 8, usual are 224"),
        ("--devices 0", "devices: got 0; it must be at least 1"),
        ("--device mps", "device: mps was asked for, but there is no usable one"),
        ("--settings nothing.json", "nothing.json: there is no such file"),
        ("--backbone timm:vit_tiny_patch16_224", "VisionTransformer does not take images of shape"),
    ],
)
def test_training_that_cannot_be_is_refused(
    refused: Refused, tmp_path: Path, words: str, expected: str
) -> None:
    out = tmp_path / "run"
    assert expected in refused("train", out, "--data", "synthetic", *words.split())
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--backbone resnte18", "backbone: there is no 'resnte18'; did you mean 'resnet18'?"),
        ("--also memoo", "also: there is no 'memoo' to train; choose from: da_erm, itta"),
        ("--image-size 2", "image size: got 2; it must be at least 8"),
        (
            "--device cuda",
            "device: cuda was asked for, but there is no usable one; use cpu or auto",
        ),
    ],
)
def test_names_and_devices_are_looked_at_before_images(
    refused: Refused,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    expected: str,
) -> None:
    def read(config: synthetic.Config) -> None:
        raise AssertionError("images were read")

    monkeypatch.setattr(synthetic, "build", read)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert expected in refused("train", tmp_path / "x", "--data", "synthetic", *words.split())


@pytest.mark.parametrize("below", [".", "run", "a/run", "../images/run"])
def test_a_model_does_not_lie_among_its_images(
    refused: Refused, tmp_path: Path, below: str
) -> None:
    root = tmp_path / "images"
    (root / "a" / "dog").mkdir(parents=True)
    line = refused("train", root / below, "--root", root)
    words = f"is in {root}, where the images are; name a folder outside it, such as runs/mine"
    assert line == f"{root / below}: {words}"
    assert [path.name for path in root.rglob("*")] == ["a", "dog"]
    assert "no images in it" in refused("train", tmp_path, "--root", root)


def test_a_misspelt_dataset_is_answered_with_the_nearest(refused: Refused, tmp_path: Path) -> None:
    line = refused("train", tmp_path / "run", "--data", "digist")
    assert line == "datasets: there is no 'digist'; did you mean 'digits'?"


@pytest.mark.parametrize("verb", ["train", "evaluate", "predict"])
def test_a_gpu_that_is_not_there_is_told(
    refused: Refused,
    trained: Path,
    pictures: Path,
    tmp_path: Path,
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = {"train": [tmp_path / "x"], "evaluate": [trained], "predict": [trained, pictures]}
    line = refused(verb, *words[verb], "--device", "cuda")
    assert line == "device: cuda was asked for, but there is no usable one; use cpu or auto"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"meta": ', "no readable JSON settings (Expecting value"),
        ("[1]", "got list; settings are a JSON object"),
        ('{"metta": {}}', "there is no setting 'metta'; the settings are: episodes"),
        ('{"meta": {"lr": 1}}', "there is no setting 'meta.lr'"),
        ('{"meta": {"steps": "many"}}', "setting meta.steps: "),
        ('{"meta": {"steps": 0}}', "meta: steps is 0; it must be at least 1"),
        ('{"stay": 7}', "recipe: stay is 7.0; it must be between 0 and 1"),
    ],
)
def test_bad_settings_are_refused(
    refused: Refused, tmp_path: Path, content: str, expected: str
) -> None:
    path = tmp_path / "settings.json"
    path.write_text(content)
    line = refused("train", tmp_path / "x", "--data", "synthetic", "--settings", path)
    assert line.startswith(f"{path}: ")
    assert expected in line


@pytest.mark.parametrize("verb", ["train", "evaluate", "demo"])
def test_results_cannot_go_into_a_file(
    refused: Refused, trained: Path, tmp_path: Path, verb: str
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for out in (file, file / "below"):
        words = {"train": [out], "evaluate": [trained, "--out", out], "demo": ["--out", out]}
        line = refused(verb, *words[verb])
        assert line == f"{file}: is a file, but results need a folder; name another"
    assert file.read_text() == "precious"


@pytest.mark.parametrize("name", ["README.md", "config.json"])
def test_a_folder_of_something_else_is_not_overwritten(
    refused: Refused, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("precious")
    assert f"holds a {name} that no training wrote" in refused("train", tmp_path)
    assert (tmp_path / name).read_text() == "precious"


def test_a_model_without_its_training_is_begun_again(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    for file in ("README.md", "config.json"):
        (tmp_path / file).write_bytes((trained / file).read_bytes())
    words = ("--data", "synthetic", "--source-steps", "2", "--steps", "2", "--device", "cpu")
    assert command("train", tmp_path, *words, "--episodes", "looks").status == 0
    assert (tmp_path / "model.safetensors").exists()


# a saved model


@pytest.mark.parametrize("verb", ["evaluate", "predict", "info"])
def test_a_model_that_is_not_there_is_told(
    refused: Refused, tmp_path: Path, pictures: Path, verb: str
) -> None:
    rest = [pictures] if verb == "predict" else []
    assert "no such model folder" in refused(verb, tmp_path / "nothing", *rest)
    assert "is not a saved model" in refused(verb, pictures, *rest)


@pytest.mark.parametrize("verb", ["evaluate", "predict", "info"])
def test_a_mistyped_folder_is_not_asked_of_the_network(
    refused: Refused, pictures: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("huggingface_hub.snapshot_download", asked)
    rest = [pictures] if verb == "predict" else []
    assert refused(verb, "no/where", *rest).startswith("no/where: no such model folder; give")


def damaged(trained: Path, folder: Path, **changes: Any) -> Path:
    """A copy of the model without its training, its card changed."""
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("training"))
    content = json.loads((folder / "config.json").read_text())
    content["card"] |= changes
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("verb", ["evaluate", "predict", "info"])
def test_a_damaged_model_is_told(
    refused: Refused, trained: Path, tmp_path: Path, pictures: Path, verb: str
) -> None:
    rest = [pictures] if verb == "predict" else []
    cut = damaged(trained, tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    assert f"{weights}: cut short, damaged or missing" in refused(verb, cut, *rest)

    other = damaged(trained, tmp_path / "other", classes=["a", "b"])
    assert "does not fit the model" in refused(verb, other, *rest)

    (other / "config.json").write_text('{"model_type": "bert"}')
    assert "written by another library" in refused(verb, other, *rest)


# evaluate


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--methods tnet", "there is no 'tnet'; did you mean 'tent'?"),
        ("--methods", "methods: none was named; choose from: source"),
        ("--targets zz", "there is no domain 'zz'; it has: a, b, c, d"),
        ("--batch-sizes 0", "batch_size is 0; it must be at least 1"),
        ("--batch-sizes", "batch sizes: none was given"),
        ("--limit 0", "limit is 0; it must be at least 1"),
        ("--targets d@fgo:5", "'d@fgo:5': there is no change 'fgo'; did you mean 'fog'?"),
        ("--targets d@fog:9", "the amount is '9'; fog takes a severity: 1, 2, 3, 4 or 5"),
        ("--targets zz@fog:5", "there is no domain 'zz'; it has: a, b, c, d"),
        ("--targets c d c", "names a target twice; name each once"),
        ("--order dirichlt", "orders: there is no 'dirichlt'; did you mean 'dirichlet'?"),
        (
            "--order dirichlet --order-settings x",
            "order settings: got 'x'; give name=value, such as beta=1",
        ),
        ("--order dirichlet --order-settings bta=1", "there is no setting 'bta'; the settings are"),
        ("--order dirichlet --order-settings beta=x", "setting beta: "),
        ("--order dirichlet --order-settings beta=0", "dirichlet: beta is 0.0; it must be above 0"),
        ("--order dirichlet --order-settings minimum=50", "lower minimum to"),
        ("--no-single", "streams: none is left; leave out --no-single, or name several targets"),
        (
            "--scenario recurring --order slots",
            "order: got slots, but the scenario has its own; le",
        ),
        (
            "--replay x --limit 3",
            "limit: got 3, but a stored stream has its own; leave one of both",
        ),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(
    refused: Refused, trained: Path, tmp_path: Path, words: str, expected: str
) -> None:
    out = tmp_path / "out"
    assert expected in refused("evaluate", trained, *words.split(), "--out", out)
    assert not out.exists()


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"tnet": {}}', "methods: there is no 'tnet'; did you mean 'tent'?"),
        ('{"tent": 3}', "tent: got int; the settings of a method are a JSON object"),
        (
            '{"tent": {"step": 2}}',
            "tent: there is no setting 'step'; the settings are: learning_rate",
        ),
        ('{"tent": {"steps": 0}}', "tent: steps is 0; give at least 1"),
        ('{"generalizeformer": {"guard": {"limt": 1}}}', "there is no setting 'guard.limt'"),
        ('{"generalizeformer": {"guard": {"limit": -1}}}', "the limit must be >= 0"),
        ("[]", "got list; settings are a JSON object"),
        ("{", "no readable JSON settings"),
    ],
)
def test_bad_settings_of_methods_are_refused(
    refused: Refused,
    trained: Path,
    pictures: Path,
    tmp_path: Path,
    verb: str,
    content: str,
    expected: str,
) -> None:
    path = tmp_path / "settings.json"
    path.write_text(content)
    rest = [pictures] if verb == "predict" else ["--out", tmp_path / "out"]
    line = refused(verb, trained, *rest, "--settings", path)
    assert line.startswith(f"{path}: ")
    assert expected in line
    assert not (tmp_path / "out").exists()


def test_a_model_without_targets_is_told(refused: Refused, trained: Path, tmp_path: Path) -> None:
    unknown = damaged(trained, tmp_path / "unknown", dataset=None)
    assert "does not say which dataset" in refused("evaluate", unknown)
    everything = damaged(trained, tmp_path / "everything", sources=["a", "b", "c", "d"])
    assert refused("evaluate", everything).endswith("--targets a b c d")


# predict


def test_pictures_that_cannot_be_read_are_told(
    refused: Refused, trained: Path, tmp_path: Path, pictures: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert f"{empty}: no images in this folder" in refused("predict", trained, empty)
    assert "no such file or folder" in refused("predict", trained, tmp_path / "nothing")
    assert "name at least one" in refused("predict", trained)

    text = pictures / "text.png"
    text.write_text("not a picture")
    assert f"{text}: not an image that can be read" in refused("predict", trained, pictures)

    Image.effect_noise((50, 50), 50).save(text)
    text.write_bytes(text.read_bytes()[:800])
    told = refused("predict", trained, pictures)
    assert f"{text}: not an image that can be read" in told
    assert told.endswith("or go on without it: --skip-unreadable")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--batch-size 0", "batch size: got 0; it must be at least 1"),
        ("--method all", "`generalizeformer evaluate RUN --methods all` compares them"),
        ("--method tnet", "there is no 'tnet'; did you mean 'tent'?"),
        ("--out .", "name a file for the answers"),
    ],
)
def test_a_prediction_that_cannot_be_is_refused(
    refused: Refused, trained: Path, pictures: Path, words: str, expected: str
) -> None:
    assert expected in refused("predict", trained, pictures, *words.split())


def test_images_of_kinds_that_are_not_read_are_told(
    command: Command, trained: Path, pictures: Path
) -> None:
    (pictures / "scan.TIFF").write_bytes(b"II*")
    ended = command("predict", trained, pictures, "--device", "cpu")
    assert ended.status == 0
    assert "scan" not in ended.out
    told = "of kinds that are not read here"
    one = f"left out: 1 image {told} (.tiff); convert to png: {pictures / 'scan.TIFF'}\n"
    assert ended.err == one
    for number in range(4):
        (pictures / f"{number}.bmp").write_bytes(b"BM")
    ended = command("predict", trained, pictures, "--device", "cpu")
    named = ", ".join(str(pictures / f"{number}.bmp") for number in range(3))
    told = f"left out: 5 images {told} (.bmp, .tiff); convert to png: {named} and 2 more\n"
    assert ended.err == told


def test_a_prediction_of_nothing_is_an_error(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_text("not a picture")
    out = tmp_path / "answers.json"
    ended = command("predict", trained, tmp_path, "--skip-unreadable", "--out", out)
    assert (ended.status, ended.out) == (2, "")
    lines = ended.err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["left out", "left out", "error"]
    assert lines[-1] == "error: nothing could be read, as told above; name at least one image"
    assert not out.exists()


def test_folders_that_may_not_be_read_are_told(
    refused: Refused,
    command: Command,
    trained: Path,
    pictures: Path,
    close: Callable[[Path], None],
) -> None:
    close(pictures / "deep")
    words = (
        f"{pictures / 'deep'}: cannot be searched (Permission denied); check that you may read it"
    )
    line = refused("predict", trained, pictures)
    assert line == f"{words}, or go on without it: --skip-unreadable"
    ended = command("predict", trained, pictures, "--skip-unreadable")
    assert ended.status == 0
    assert len(json.loads(ended.out)) == 4
    assert f"left out: {words}\n" in ended.err


def test_small_images_do_not_choose_a_backbone_without_the_weights_that_were_asked_for() -> None:
    domains = synthetic.build(synthetic.Config())
    chosen = [card_for(domains, None, 32, None, asked).architecture for asked in (False, True)]
    assert chosen == ["digits-small", "resnet18"]


# info


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("digits --stages nonsense", "'nonsense'"),
        ("resnte18", "backbone: there is no 'resnte18'; did you mean 'resnet18'?"),
    ],
)
def test_a_model_that_cannot_be_listed_is_told(refused: Refused, words: str, expected: str) -> None:
    assert expected in refused("info", *words.split())
