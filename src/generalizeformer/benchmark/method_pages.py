"""The table of all methods, from what their files say of themselves (ABOUT) and from what they are."""

from generalizeformer import catalog
from generalizeformer.adapters._about import About
from generalizeformer.adapters._companion import COMPANIONS
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.benchmark.runner import ADAPTERS, build_adapter
from generalizeformer.benchmark.tables import Table
from generalizeformer.core.backbones import build_backbone
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import UserError

COLUMNS = {
    "paper": "paper",
    "what moves": "moves",
    "BatchNorm statistics": "batch_norm",
    "keeps from batch to batch": "keeps",
    "answers": "answers",
    "needs": "needs",
    "checked against": "reference",
}
"""Head → field of About."""
AT_ONCE = "many batches at once"
SHORT = ("what moves", "BatchNorm statistics", "answers", AT_ONCE)  # for a terminal
UNKNOWN = "–"

PAGE = """# Test-time methods

Every file of `src/generalizeformer/adapters/` without a leading underscore is a method, and its name is the file's.
`generalizeformer methods` lists them, `generalizeformer evaluate RUN --methods all` compares them. This page is
made by `generalizeformer methods --markdown docs/methods.md` from the constant `ABOUT` of each file; a test compares it
with the code. Papers, settings, deviations from the reference and their reasons are in the docstring of each file.

- **BatchNorm statistics**: the source's running ones, or those of the current batch.
- **answers**: a batch is answered before or after it was learned from. With several steps per batch, "before" is
  before the last of them.
- **many batches at once**: whether the method keeps nothing, so that a batch is answered alike in whatever company.
  Found from the built method, not written by hand.
- **checked against**: the published implementation, and which of its recorded numbers (`tests/adapters/traces/`) ours
  agree with. "no trace": the file names an implementation as its reference, but none of its numbers were recorded.

{table}

## What is compared

`evaluate` writes, for every method and stream: accuracy, by target and by class; expected calibration error (15 bins,
softmax of the answers: methods whose answers are no log-probabilities, such as templates, have it all the same);
seconds inside the method; images through a backbone per image of the stream, forwards and backwards
(`benchmark/passes.py` says what counts); peak GPU memory; and with `--sources` the accuracy on the source validation
images before and after the stream. A method that cannot serve the model or the batches gets a row that says why.

## Adding a method

One file `src/generalizeformer/adapters/mine.py` with a frozen dataclass `Config` and `build(source, config)`: the
command line, the evaluation and the law tests find it. [CONTRIBUTING.md](../CONTRIBUTING.md) has an example that
runs. For this page it also needs a constant `ABOUT = About(...)` (`adapters/_about.py`); then make the page anew.
"""


def methods_table() -> Table:
    """Methods down, what they say of themselves across, and whether they answer many batches at once."""
    rows = []
    source = _small_model()
    for name in catalog.names(ADAPTERS):
        about: About | None = getattr(catalog.load(ADAPTERS, name), "ABOUT", None)
        words = [UNKNOWN if about is None else getattr(about, f) for f in COLUMNS.values()]
        rows.append((name, *words, _at_once(name, source)))
    return Table("Test-time methods", ("method", *COLUMNS, AT_ONCE), tuple(rows), ())


def short_table() -> Table:
    """The same with fewer columns."""
    table = methods_table()
    chosen = [0, *(table.columns.index(head) for head in SHORT)]
    rows = tuple(tuple(row[number] for number in chosen) for row in table.rows)
    return Table(table.title, ("method", *SHORT), rows, ())


def methods_page() -> str:
    """docs/methods.md."""
    table = methods_table()
    named = [(f"`{row[0]}`", *row[1:]) for row in table.rows]
    lines = [table.columns, ["---"] * len(table.columns), *named]
    return PAGE.format(table="\n".join(f"| {' | '.join(line)} |" for line in lines))


def _at_once(name: str, source: GeneralizeFormer) -> str:
    try:
        adapter, _ = build_adapter(name, source)
    except UserError:  # it needs another model than a small one
        return UNKNOWN
    return "yes" if isinstance(adapter, GroupedAdapter) else "no"


def _small_model() -> GeneralizeFormer:
    """One that every method can be built on, those that need a training of their own among them."""
    model = GeneralizeFormer(build_backbone("digits-small", 2, channels=3)).eval()
    for name in catalog.names(COMPANIONS):
        network = catalog.load(COMPANIONS, name).build(model.backbone, model.classes)
        model.companions[name] = network.state_dict()
    return model
