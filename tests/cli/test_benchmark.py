"""`benchmark`: the whole command in small, and what it refuses."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generalizeformer.cli import benchmark as verb
from generalizeformer.cli.main import main
from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import DomainDataset

from .conftest import Command

Refused = Callable[..., str]
META = {"images": 6, "sizes": [3], "validation_sizes": [3]}
SETTINGS = {
    "settings": {"erm": {"per_domain": 4}, "meta": META, "model": {"generator": {"layers": 1}}},
    "paper_settings": {
        "meta": META,
        "model": {"generator": {"layers": 1, "width": 16, "heads": 2, "feedforward": 16}},
    },
}
METHODS = [
    "source",
    "mirror",
    "alpha_bn",
    "t3a",
    "tent",
    "generalizeformer",
    "generalizeformer_paper",
]
DATA = ("--data", "synthetic", "--data-settings", "domains=3", "per_class=5", "--device", "cpu")


def tiny(folder: Path) -> list[str]:
    words = [*DATA, "--source-steps", "2", "--steps", "2", "--seeds", "0", "--batch-sizes", "3"]
    for name, content in SETTINGS.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(content))
        words += [f"--{name.replace('_', '-')}", str(path)]
    return [*words, "--targets", "a", "c"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("benchmark")
    words = ["benchmark", str(folder / "out"), *tiny(folder)]
    main(words)
    return folder / "out", words


def untimed(out: Path) -> str:
    """The summary without what no two runs have in common."""
    text = (out / "summary.json").read_text("utf-8")
    return re.sub(r'"milliseconds": [0-9.e-]+', "", text)


def times_apart(path: Path) -> Any:
    content = json.loads(path.read_text("utf-8"))
    return content | {"seconds": 0, "records": [r | {"seconds": 0} for r in content["records"]]}


def test_every_target_and_training_is_a_file(done: Any) -> None:
    out, _ = done
    names = sorted(path.name for path in (out / "cells").iterdir())
    trainings = ("generalizeformer", "generalizeformer_paper", "source")
    bare = [name.rpartition("-")[0] for name in names]  # without the digest of the settings
    assert bare == [f"{target}-seed-0-{name}" for target in "ac" for name in trainings]
    content = json.loads((out / "cells" / names[0]).read_text("utf-8"))
    assert {record["device"] for record in content["records"]} == {"cpu"}
    assert content["cell"]["recipe"]["erm"]["per_domain"] == 4
    assert content["cell"]["dataset_settings"] == {"domains": "3", "per_class": "5"}


def test_the_summary_has_the_prescribed_names_and_shape(done: Any) -> None:
    out, _ = done
    methods = json.loads((out / "summary.json").read_text("utf-8"))["methods"]
    assert list(methods) == [*METHODS, "alpha_bn_oracle"]
    for entry in methods.values():
        assert list(entry) == ["3"]
        assert entry["3"].keys() == {
            *("mean", "gain", "targets", "sources_after", "milliseconds", "seeds"),
        }
        assert list(entry["3"]["targets"]) == ["a", "c"]
        assert entry["3"]["seeds"] == 1
        assert 0 <= entry["3"]["sources_after"] <= 100


def test_started_again_it_has_nothing_to_do_and_says_the_same(done: Any, command: Command) -> None:
    out, words = done
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    ended = command(*words)
    assert ended.status == 0, ended.err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    lines = ended.out.splitlines()
    assert lines[0].strip() == "synthetic, every target left out once: accuracy, %"
    assert all(any(line.startswith(f"│ {method} ") for line in lines) for method in METHODS)
    assert lines[-3:] == [
        f"records: {out / 'cells'}",
        f"summary: {out / 'summary.json'}",
        f"page: {out / 'page.html'}",
    ]
    assert "cell 1 of 6: main, a, seed 0, source\n" in ended.err
    assert "cell 6 of 6: main, c, seed 0, generalizeformer_paper\n" in ended.err


def test_a_missing_cell_is_made_again_and_is_the_same(done: Any, command: Command) -> None:
    out, words = done
    (cell,) = (out / "cells").glob("c-seed-0-generalizeformer-????????????.json")
    page, content = untimed(out), times_apart(cell)
    cell.unlink()
    ended = command(*words)
    assert "comparing" in ended.err
    assert "erm" not in ended.err  # the models are there
    assert times_apart(cell) == content
    assert untimed(out) == page


def test_records_of_earlier_runs_stay_in_the_summary(
    done: Any, command: Command, tmp_path: Path
) -> None:
    (there, words), out = done, tmp_path / "out"
    shutil.copytree(there, out)
    for more in (
        ("--methods", "lame"),
        ("--methods", "generalizeformer", "--trainings", "generalizeformer"),
    ):
        ended = command(words[0], out, *words[2:], *more)
        assert ended.status == 0, ended.err
        told = json.loads((out / "summary.json").read_text("utf-8"))["methods"]
        assert {*told} == {*METHODS, "alpha_bn_oracle", "lame"}


def test_a_narrower_run_tells_all_that_was_recorded_in_the_same_settings(
    done: Any, command: Command, tmp_path: Path
) -> None:
    (there, words), out = done, tmp_path / "out"
    shutil.copytree(there, out)
    before = untimed(out)
    narrower = ("benchmark", out, *words[2:-2], "a")
    ended = command(*narrower)
    assert ended.status == 0, ended.err
    assert untimed(out) == before
    assert "main: told as well, as recorded before, are cells of other targets, " in ended.err
    one = ("--seeds", "1", "--trainings", "source", "--methods", "source")
    for words, cells, seeds in ((narrower, 6, 1), ((*narrower[:-1], "c"), 7, 2)):
        assert f"or seeds: {cells}\n" in command(*words, *one).err
        told = json.loads((out / "summary.json").read_text("utf-8"))["methods"]
        assert told["source"]["3"]["targets"].keys() == {"a", "c"}
        assert told["source"]["3"]["seeds"] == seeds  # the second one is whole with both


def test_records_of_other_settings_are_not_told_with_those_asked_for(
    done: Any, command: Command, tmp_path: Path
) -> None:
    (there, words), out = done, tmp_path / "out"
    shutil.copytree(there, out)
    narrower = ("benchmark", out, *words[2:-2], "a", "--only-tell")
    assert command(*narrower, "--steps", "3").status == 0  # another φ on the same source models
    told = json.loads((out / "summary.json").read_text("utf-8"))["methods"]
    assert {*told} == {*METHODS, "alpha_bn_oracle"} - {"generalizeformer", "generalizeformer_paper"}
    assert command(*narrower, "--limit", "4").out == "main: no records yet\n"


@pytest.mark.parametrize(
    ("suite", "words", "lines"),
    [
        (
            "dynamic",
            ("--looks", "rotation:90", "look:5", "--limit", "4"),
            ("synthetic, looks alone, mixed and changing: accuracy, %, batches of 3", "│ t3a "),
        ),
        (
            "ablations",
            ("--trainings", "generalizeformer", "generalizeformer_memo"),
            ("synthetic, one thing changed at a time: ", "│ generalizeformer_memo "),
        ),
        (
            "single-source",
            ("--sources", "b"),
            ("synthetic, learned from one domain: accuracy, %, batches of 3, from b", "│ t3a "),
        ),
        (
            "output-shift",
            ("--classes-apart", "1", "--trainings", "source"),
            ("synthetic, every source knows other classes: accuracy, %", "│ tent "),
        ),
    ],
)
def test_every_suite_has_results_of_its_own_in_the_same_folder(
    done: Any, command: Command, suite: str, words: Any, lines: Any
) -> None:
    out, usual = done
    before = {path: path.read_bytes() for path in out.glob("*.*")}
    ended = command(*usual[:-2], "a", "--suite", suite, *words)
    assert ended.status == 0, ended.err
    told = " ".join(ended.out.split())  # titles are as narrow as their tables
    assert all(line in told for line in lines)
    assert ended.out.splitlines()[-3:] == [
        f"records: {out / suite / 'cells'}",
        f"summary: {out / suite / 'summary.json'}",
        f"page: {out / suite / 'page.html'}",
    ]
    assert json.loads((out / suite / "summary.json").read_text("utf-8"))["methods"]
    assert {path: path.read_bytes() for path in out.glob("*.*")} == before
    names = sorted(path.name for path in (out / suite).iterdir())
    assert names == ["accuracy.svg", "cells", "page.html", "summary.json"]


def test_targets_that_a_dataset_keeps_apart_are_met_together(
    command: Command, tmp_path: Path
) -> None:
    words = ("--data", "digits", "--protocol", "inner", "--targets", "30", "60", "--limit", "6")
    few = ("--trainings", "source", "--methods", "source", "--source-steps", "1", "--seeds", "0")
    out = tmp_path / "out"
    ended = command("benchmark", out, *words, *few, "--suite", "several-targets", "--device", "cpu")
    assert ended.status == 0, ended.err
    assert "digits, targets alone, mixed and in turn: accuracy, %" in " ".join(ended.out.split())
    made = out / "several-targets"
    names = sorted(path.name for path in made.iterdir())
    assert names == ["accuracy.svg", "cells", "page.html", "summary.json"]
    (cell,) = (made / "cells").iterdir()
    assert cell.name.startswith("30+60-from-0+15+75+90-seed-0-source-")
    records = json.loads(cell.read_text("utf-8"))["records"]
    assert [r["targets"] for r in records] == [["30"], ["60"], ["30", "60"], ["30", "60"]]


def test_what_a_dataset_keeps_for_targets_is_met_and_the_rest_learned_from(
    command: Command, tmp_path: Path
) -> None:
    few = ("--trainings", "source", "--methods", "source", "--source-steps", "1", "--seeds", "0")
    suites = ("--suite", "main", "single-source", "several-targets", "--targets", "0", "90")
    data = ("--data", "digits", "--batch-sizes", "20", "--limit", "6", "--device", "cpu")
    out = tmp_path / "out"
    ended = command("benchmark", out, *data, *few, *suites)
    assert ended.status == 0, ended.err
    sources = "15+30+45+60+75"
    for suite, names in {
        ".": {f"{target}-from-{sources}" for target in ("0", "90")},
        "single-source": {f"{t}-from-{s}" for t in ("0", "90") for s in sources.split("+")},
        "several-targets": {f"0+90-from-{sources}"},
    }.items():
        made = {p.name.partition("-seed-")[0] for p in (out / suite / "cells").iterdir()}
        assert made == names
    # A model for all sources, which all targets and suites share, and one for each of them.
    models = {path.name.partition("-seed-")[0] for path in (out / "models").iterdir()}
    assert models == {f"from-{name}" for name in (sources, *sources.split("+"))}
    assert len([*(out / "models").iterdir()]) == 6


def test_later_settings_override_earlier_ones(done: Any, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "first.json").write_text('{"episodes": "joint"}')
    (tmp_path / "second.json").write_text('{"episodes": "held-out", "stay": 2}')
    given = ("--settings", tmp_path / "first.json", tmp_path / "second.json")
    message = refused("benchmark", tmp_path / "out", *DATA, *given)
    assert message.startswith(f"{tmp_path / 'second.json'}: recipe: stay is 2")


def test_a_paper_s_φ_that_trains_a_backbone_is_refused_before_anything_runs(
    refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / "paper.json").write_text('{"episodes": "joint"}')
    given = (*DATA, "--paper-settings", tmp_path / "paper.json")
    message = refused("benchmark", tmp_path / "out", *given)
    assert message.startswith("paper_settings: episodes are 'joint', which train the backbone")
    assert not (tmp_path / "out").exists()


def test_without_matplotlib_the_answer_is_there_all_the_same(
    done: Any, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, words = done
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = command(*words)
    assert ended.status == 0
    assert ended.out.splitlines()[-1].startswith("no page: plots need matplotlib; pip install")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--targets", "z"), "synthetic: there is no domain 'z'; it has: a, b, c"),
        (("--suite",), "suite: none was named; choose from: main, dynamic, single-source"),
        (("--seeds",), "seeds: none was given; give at least one, such as 0"),
        (("--batch-sizes",), "batch sizes: none was given; give at least one, such as 20"),
        (("--trainings", "erm"), "trainings: there is no 'erm'; choose from: source, generalizef"),
        (("--data-settings", "domains=1"), "synthetic: it has one domain ('a'), and leaving it"),
        (("--data-settings", "domains=2"), "one source domain ('b') cannot play source and target"),
        (
            ("--data-settings", "domains=2"),
            "episodes 'looks' (in a file of --settings, {\"episodes\": ",
        ),
        (("--data", "pax"), "datasets: there is no 'pax'; choose one of: digits"),
        (("--batch-sizes", "20", "0"), "stream: batch_size is 0; it must be at least 1"),
        (("--limit", "0"), "stream: limit is 0; it must be at least 1"),
        (("--selection-limit", "0"), "stream: limit is 0; it must be at least 1"),
        (("--sources", "a"), "sources: got ('a',), but the suite main takes none; leave it out"),
        (
            ("--data", "digits", "--data-settings", "--targets", "90", "15"),
            "targets: got 15, but digits has such to learn from, and its other sources may show the same images; "
            "choose from those that it keeps for targets: 0, 90",
        ),
        (
            ("--data", "digits", "--data-settings", "--suite", "single-source", "--sources", "0"),
            "sources: got 0, but digits keeps such for targets, which may show the same images; choose from: 15, 30",
        ),
        (("--suite", "several-targets"), "targets: got none; name two or more, as they are met al"),
        (("--suite", "dynamic", "--looks", "fog:3"), "looks: got 'fog:3' alone; give two or more"),
        (
            ("--suite", "output-shift", "--data-settings", "domains=7"),
            "synthetic: 5 classes cannot be shared out over 6 domains",
        ),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    refused: Refused, tmp_path: Path, words: Any, message: str
) -> None:
    assert message in refused("benchmark", tmp_path / "out", *DATA, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("targets", ["a", "b"])  # recorded, and told together with what is
def test_records_of_other_images_are_refused_before_anything_runs(
    done: Any, refused: Refused, monkeypatch: pytest.MonkeyPatch, targets: str
) -> None:
    out, words = done
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    build = synthetic.build

    def otherwise(config: Any) -> DomainDataset:
        made = build(config)
        for domain in made.domains:
            domain.images[0] = 255 - domain.images[0]
        return made

    monkeypatch.setattr(synthetic, "build", otherwise)
    message = refused(*words[:-2], targets)
    assert "its records were made on other images than those given now, of which " in message
    assert message.endswith("or results a new folder (OUT of `benchmark`, --out of `reproduce`)")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_source_models_alone_need_no_second_domain_to_learn_from(
    command: Command, tmp_path: Path
) -> None:
    few = ("--source-steps", "1", "--seeds", "0", "--batch-sizes", "5", "5", "--methods", "source")
    two = ["domains=2" if word == "domains=3" else word for word in DATA]
    words = ("benchmark", tmp_path / "out", *two, *few)
    ended = command(*words, "--trainings", "source")
    assert ended.status == 0, ended.err
    told = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))["methods"]
    assert told["source"]["5"]["targets"].keys() == {"a", "b"}
    assert command(*words).status == 0  # methods that are compared on it ask for nothing else


def test_results_cannot_go_into_a_file(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    assert "is a file, but results need a folder" in refused("benchmark", tmp_path / "file")


def test_the_commit_is_that_of_the_checkout_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GENERALIZEFORMER_COMMIT", raising=False)
    commit = verb._commit()
    assert commit is None or re.fullmatch("[0-9a-f]{40}(-changed)?", commit)
    monkeypatch.setattr(verb, "__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
    assert verb._commit() is None
    monkeypatch.setenv("GENERALIZEFORMER_COMMIT", "abc")
    assert verb._commit() == "abc"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_code_that_is_not_committed_is_no_commit_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        asked = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()

    for name in ("GENERALIZEFORMER_COMMIT", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    code, results = tmp_path / "src" / "generalizeformer" / "cli" / "b.py", tmp_path / "results"
    monkeypatch.setattr(verb, "__file__", str(code))
    code.parent.mkdir(parents=True)
    git("init", "--quiet")
    code.write_text("1")
    assert verb._commit() is None  # nothing is committed
    for path in (results, tmp_path / ".gitignore"):
        path.write_text("*.pyc")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD")
    assert verb._commit() == commit
    results.write_text("made just now")
    code.with_name("b.pyc").touch()
    assert verb._commit() == commit
    code.write_text("2")
    assert verb._commit() == f"{commit}-changed"
    git("add", ".")
    assert verb._commit() == f"{commit}-changed"
    git("reset", "--quiet", "--hard")
    code.with_name("new.py").touch()
    assert verb._commit() == f"{commit}-changed"


def test_cells_side_by_side_give_what_they_give_one_after_another(
    done: Any, tmp_path: Path, command: Command
) -> None:
    out, words = done
    ended = command(words[0], tmp_path / "out", *words[2:], "--jobs", "2")
    assert ended.status == 0
    assert untimed(out) == untimed(tmp_path / "out")
    lines = [line for line in ended.err.splitlines() if line.startswith("finished ")]
    assert [line.split(":")[0] for line in lines] == [f"finished {n} of 6" for n in range(1, 7)]
    mine, theirs = ({p.name for p in (f / "backbones").iterdir()} for f in (tmp_path / "out", out))
    assert len(mine) == 5  # of b and c, of a and b, of each alone
    assert mine <= theirs  # which other suites have added to


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_when_the_time_is_up_it_stops_and_later_goes_on(
    done: Any, tmp_path: Path, command: Command, jobs: str
) -> None:
    out, words = done
    asked = (words[0], tmp_path / "out", *words[2:])
    ended = command(*asked, "--jobs", jobs, "--minutes", "1e-9")
    assert ended.status == 0
    assert "time is up: run the same command again and it goes on" in ended.err
    assert not list((tmp_path / "out").rglob("cells/*.json"))  # one step of one training at most
    assert ended.out == "main: no records yet\n"
    command(*asked)
    assert untimed(out) == untimed(tmp_path / "out")


def test_no_time_at_all_is_refused(refused: Any, tmp_path: Path) -> None:
    message = refused("benchmark", tmp_path / "out", *DATA, "--minutes", "0")
    assert message == "minutes: got 0.0; it must be more than 0"


def test_no_cell_at_a_time_is_refused(refused: Any, tmp_path: Path) -> None:
    message = refused("benchmark", tmp_path / "out", *DATA, "--jobs", "0")
    assert message == "jobs: got 0; it must be at least 1"


def test_several_suites_share_one_command(done: Any, command: Command, tmp_path: Path) -> None:
    before, words = done
    out = shutil.copytree(before, tmp_path / "out")
    suites = ("--suite", "main", "single-source", "--sources", "b")
    lines = command("benchmark", out, *words[2:-2], "a", *suites).out.splitlines()
    assert f"summary: {out / 'summary.json'}" in lines
    assert f"summary: {out / 'single-source' / 'summary.json'}" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--backbone", "nope"), "there is no 'nope'"),
        (("--image-size", "2"), "image size: got 2; it must be at least 8"),
        (("--device", "cuda"), "device: cuda was asked for, but there is no usable one; use cpu"),
        (("--again", "tent", "--only-tell"), "again: got tent, but only_tell makes no records"),
    ],
)
def test_what_cannot_be_is_refused_before_images_are_read(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any, message: str
) -> None:
    monkeypatch.setattr(synthetic, "build", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert message in refused("benchmark", tmp_path / "out", "--data", "synthetic", *words)


def test_what_computes_nothing_needs_no_device(
    done: Any, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there, words), out = done, tmp_path / "out"
    shutil.copytree(there, out)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    elsewhere = ["cuda" if word == "cpu" else word for word in words[2:]]
    assert command("benchmark", out, *elsewhere, "--only-tell").status == 0


def test_a_method_without_a_whole_training_is_told_of(
    done: Any, command: Command, tmp_path: Path
) -> None:
    (there, words), out = done, tmp_path / "out"
    shutil.copytree(there, out)
    ended = command(
        "benchmark", out, *words[2:-2], "b", "--methods", "source", "--trainings", "source"
    )
    assert ended.status == 0, ended.err
    assert "t3a" in ended.err.partition("main: ")[2]
    assert (
        "no mean over all is told of it, as no training of it has met all that others met"
        in ended.err
    )
