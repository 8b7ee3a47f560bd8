import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from generalizeformer.benchmark.figures import accuracy_bars, batch_lines, few
from generalizeformer.benchmark.pages import benchmark_sections, demo_page, evaluation_page
from generalizeformer.benchmark.records import Refusal
from generalizeformer.benchmark.report import Section, write_page
from generalizeformer.benchmark.tables import FEWER, Table, accuracy_table
from generalizeformer.benchmark.ways import ways_sections
from generalizeformer.core.change import Change
from generalizeformer.errors import UserError

from .toys import record

RECORDS = [
    record(targets=("0",), by_target={"0": 50.0}),
    record(targets=("90",), by_target={"90": 60.0}, accuracy=60.0),
    record(targets=("0",), by_target={"0": 40.0}, batch_size=1),
    record(targets=("0", "90"), by_target={"0": 55.0, "90": 45.0}),
    record(method="tent", accuracy=70.0, by_target={"0": 70.0}, run_seed=1, settings={"steps": 1}),
]


def demo(path: Path) -> None:
    change = Change(("layer1", "fc"), *(torch.tensor([[0.1, 0.2], [0.3, 0.4]]) for _ in range(3)))
    pictures = {name: torch.arange(4 * 64).view(4, 1, 8, 8).to(torch.uint8) for name in ("0", "90")}
    demo_page(path, RECORDS, {"15": 90.0, "30": 95.0}, {"0": change, "90": change}, pictures)


def evaluation(path: Path) -> None:
    evaluation_page(path, "An evaluation", RECORDS)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "srcset"):
                self.loads.append(value or "")


@pytest.mark.parametrize("page", [demo, evaluation])
def test_a_page_needs_nothing_but_itself(page: object, tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    page(path)  # type: ignore[operator]
    text = path.read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    assert not {"script", "link", "iframe", "img", "object"} & set(tags.names)
    assert "svg" in tags.names
    assert "table" in tags.names
    # Only pixels in the page itself, and shapes drawn before.
    assert all(load.startswith(("#", "data:image/png;base64,")) for load in tags.loads)
    assert not re.search(r"""(src=|@import|url\(["']?http)""", text)


@pytest.mark.parametrize("page", [demo, evaluation])
def test_the_same_records_give_the_same_bytes(page: object, tmp_path: Path) -> None:
    for name in ("one", "other"):
        page(tmp_path / name)  # type: ignore[operator]
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_text_is_escaped(tmp_path: Path) -> None:
    bad = record(method="<b>", targets=("<i>",), by_target={"<i>": 1.0}, settings={"<u>": "<s>"})
    path = tmp_path / "page.html"
    evaluation_page(path, "Accuracy on <b>", [bad])
    text = path.read_text("utf-8")
    assert "<title>Accuracy on &lt;b&gt;</title>" in text
    assert "<td>&lt;b&gt;</td>" in text
    tags = Tags()
    tags.feed(text)
    assert not {"b", "i", "u", "s"} & set(tags.names)


def test_a_number_and_its_spread_stay_on_one_line(tmp_path: Path) -> None:
    table = Table("", ("method", "a"), (("<b> ± x", "80.1 ± 1.7"),), ())
    write_page(tmp_path / "page.html", "t", "i", [Section("s", table=table)], "f")
    text = (tmp_path / "page.html").read_text()
    assert "<td>80.1&nbsp;±&nbsp;1.7</td>" in text
    assert "&lt;b&gt;&nbsp;±&nbsp;x" in text


def test_the_best_cells_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    table = accuracy_table(RECORDS, "")
    write_page(path, "t", "i", [Section("s", table=table)], "f")
    assert path.read_text("utf-8").count('class="best"') == len(table.best)


def test_settings_and_trainings_are_told(tmp_path: Path) -> None:
    evaluation(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "source (none); tent (steps=1). Trainings: 2." in text


def test_settings_that_differ_between_batch_sizes_are_told_apart(tmp_path: Path) -> None:
    steps = {1: 2, 20: 1, 64: 2}
    tents = [record(method="tent", batch_size=s, settings={"steps": n}) for s, n in steps.items()]
    plain = [record(batch_size=size) for size in steps]
    evaluation_page(tmp_path / "page.html", "t", [*plain, *tents])
    text = (tmp_path / "page.html").read_text("utf-8")
    found = "source (none); tent in batches of 1, 64 (steps=2); tent in batches of 20 (steps=1)."
    assert found in text


def test_the_page_of_an_evaluation_tells_who_could_not_take_part(tmp_path: Path) -> None:
    no = Refusal(method="mine", targets=("a",), setting="single, batches of 1", why="too few")
    evaluation_page(tmp_path / "page.html", "t", RECORDS, refused=[no])
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "<h2>Could not take part</h2>" in text
    assert "<td>mine</td><td>single, batches of 1</td><td>too few</td>" in text
    evaluation(tmp_path / "page.html")
    assert "Could not take part" not in (tmp_path / "page.html").read_text("utf-8")


def test_an_evaluation_has_a_table_of_targets_only_where_they_came_alone(tmp_path: Path) -> None:
    several = [record(targets=(f"{t}@fog:1", f"{t}@fog:2"), order="in_turn") for t in "ab"]
    alone = [record(targets=(t,)) for t in "ab"]
    for records, tables in ((several, 0), (alone, 1), ([*several, *alone], 1)):
        evaluation_page(tmp_path / "page.html", "t", records)
        text = (tmp_path / "page.html").read_text("utf-8")
        assert text.count("<h2>Every target: ") == tables


def test_pages_say_what_numbers_in_brackets_are() -> None:
    plain = [record(stream="s"), record(targets=("b",), stream="t")]
    every = [*benchmark_sections(plain), *ways_sections(plain, "look", lambda _: Section(""))]
    told = {s.title: s.text for s in every if s.table is not None}
    for title in ("Gain over the source model", "On the sources, afterwards", "Batches of 20"):
        assert FEWER in told[title]


def test_the_demo_claims_no_settings_but_those_it_lists(tmp_path: Path) -> None:
    demo(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "Every method runs with the defaults listed below." in page
    assert "publish" not in page


def test_a_method_that_ran_in_some_settings_only_can_be_drawn(tmp_path: Path) -> None:
    evaluation_page(tmp_path / "page.html", "t", [record(), record(method="tent", batch_size=1)])
    assert ">tent<" in (tmp_path / "page.html").read_text("utf-8")


def test_means_over_fewer_targets_are_not_drawn_beside_others() -> None:
    """A method that met the easy target only in one batch size would seem to be better there."""
    met = [
        record(method=method, targets=(target,), batch_size=size, accuracy=accuracy)
        for method in ("source", "tent")
        for target, accuracy in (("easy", 90.0), ("hard", 50.0))
        for size in (1, 20, 64)
    ]
    partly = [r for r in met if r.method == "source" or r.targets == ("easy",)]
    assert ">tent<" in batch_lines(met)
    assert ">tent<" not in batch_lines(partly)
    assert ">tent<" in accuracy_bars(met)
    assert ">tent<" not in accuracy_bars(partly)


def test_methods_are_ranked_where_most_of_them_are() -> None:
    drawn = accuracy_bars(
        [
            record(method="source", batch_size=1, accuracy=70.0),
            record(method="source", accuracy=70.0),
            record(method="low", accuracy=60.0),
            record(method="high", accuracy=80.0),
        ]
    )
    places = [drawn.index(f">{name}<") for name in ("low", "source", "high")]  # from below
    assert places == sorted(places)


def test_bars_of_fewer_trainings_are_pale() -> None:
    two = [record(method=m, run_seed=n) for m in ("source", "tent") for n in range(2)]
    assert "opacity: 0.4" not in accuracy_bars(two)
    assert accuracy_bars(two[:-1]).count("opacity: 0.4") == 1


@pytest.mark.parametrize("settings", [1, 5])
def test_any_number_of_methods_and_settings_can_be_drawn(settings: int) -> None:
    names = [f"method {number}" for number in range(40)]
    drawn = accuracy_bars(
        [record(method=name, batch_size=1 + size) for name in names for size in range(settings)]
    )
    assert all(f">{name}<" in drawn for name in names)
    assert drawn.count(", batches of ") == settings


def test_no_display_is_needed_and_no_backend_is_changed(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, matplotlib\n"
        "before = dict(matplotlib.rcParams)\n"
        "from benchmark.test_pages import evaluation\n"
        "evaluation(pathlib.Path(sys.argv[1]))\n"
        "assert dict(matplotlib.rcParams) == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (tests, environment.get("PYTHONPATH"))))
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "page.html")],
        env=environment | {"PYTHONPATH": path, "MPLBACKEND": "tkagg", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "page.html").exists()


def test_missing_matplotlib_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"plots need matplotlib; pip install .*\[report\]"):
        evaluation(tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_few_images_are_spread_over_the_domain() -> None:
    images = torch.arange(100).view(100, 1, 1, 1).to(torch.uint8)
    assert few(images, 5).flatten().tolist() == [0, 24, 49, 74, 99]
    assert few(images[:2], 4).flatten().tolist() == [0, 0, 0, 1]
