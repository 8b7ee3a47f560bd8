"""The README's examples, executed as they stand there, and the files it names."""

import re
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from generalizeformer import GeneralizeFormer
from generalizeformer.training import _own
from generalizeformer.training._recipe import Recipe
from generalizeformer.training.erm import Config as ErmConfig
from generalizeformer.training.meta import Config as MetaConfig

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


class HandWritten(nn.Module):
    """A reader's own network: GroupNorm, a hidden layer, a head under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2)
        self.norm = nn.GroupNorm(2, 8)
        self.hidden = nn.Linear(8, 16)
        self.verdict = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.verdict(self.hidden(x).relu())


CLASSIFIERS = {
    "timm": lambda: timm.create_model("resnet10t", num_classes=4),
    "hand-written": HandWritten,
}


@pytest.fixture(params=CLASSIFIERS)
def classifier(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return CLASSIFIERS[request.param]()


def test_the_three_lines_answer_like_the_reader_s_own_model(classifier: nn.Module) -> None:
    images = torch.randn(8, 3, 32, 32)
    names = {"classifier": classifier, "images": images}
    exec(EXAMPLES[0], names)
    torch.testing.assert_close(names["logits"], classifier.eval()(images), rtol=1e-4, atol=1e-5)


def test_every_example_runs_in_order(
    classifier: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = Recipe(erm=ErmConfig(steps=2), meta=MetaConfig(steps=2, images=8, sizes=(1, 4)))
    monkeypatch.setattr(_own, "_usual", lambda domains: short)
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    names = {"classifier": classifier, "images": torch.randn(8, 3, 32, 32)}
    for domain in ("studio", "street"):
        names[f"{domain}_pixels"] = torch.randint(256, (12, 3, 32, 32), dtype=torch.uint8)
        names[f"{domain}_labels"] = torch.arange(12) % 4
    names["new_pixels"] = names["street_pixels"]
    for example in EXAMPLES:
        exec(example, names)
    assert all(torch.equal(before[n], v) for n, v in classifier.state_dict().items())
    assert (tmp_path / "my-model" / "model.safetensors").exists()
    assert (tmp_path / "runs" / "mine" / "config.json").exists()


def test_every_file_of_the_tree_exists_and_every_module_is_in_the_tree() -> None:
    tree = re.search(r"```\n(.*?)```", (ROOT / "docs" / "map.md").read_text(), re.S)
    assert tree is not None
    folders: list[str] = []
    listed = set()
    for line in tree.group(1).splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split("  ")[depth]
        folders = [*folders[:depth], name.rstrip("/")]
        if not name.endswith("/"):
            listed.add("/".join(folders))
    missing = [name for name in listed if not (ROOT / name).exists()]
    assert not missing
    modules = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert modules <= listed


@pytest.mark.parametrize(
    "page", ["README.md", "docs/results.md", "docs/data.md", "docs/decisions.md"]
)
def test_links_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert not [link for link in links if not ((ROOT / page).parent / link).exists()]


def test_the_contributing_guide_s_method_is_found_and_answers() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    example = re.search(r"```python\n(.*?)```", guide, re.S)
    assert example is not None
    names: dict[str, object] = {"__name__": "mine"}
    exec(example.group(1), names)
    source = _source()
    adapter = names["build"](source, names["Config"]())  # type: ignore[operator]
    images = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(2 * adapter.step(images), source(images), rtol=1e-4, atol=1e-5)


def _source() -> GeneralizeFormer:
    torch.manual_seed(0)
    return GeneralizeFormer(HandWritten()).eval()
