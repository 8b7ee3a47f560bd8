"""Tables and pictures → one self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment

from generalizeformer import atomic
from generalizeformer.benchmark.tables import Table

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733; }
  h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
  table { border-collapse: collapse; margin: .5rem 0; } caption { text-align: left; color: #5a6675; }
  th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #dde3ea; }
  th:first-child, td:first-child { text-align: left; } td:first-child { white-space: nowrap; } td.best { font-weight: 700; }
  figure, div.table { margin: .5rem 0; overflow-x: auto; } svg { max-width: 100%; height: auto; }
  p.note { color: #5a6675; font-size: .9rem; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ introduction }}</p>
{% for section in sections %}
<h2>{{ section.title }}</h2>
{% if section.text %}<p>{{ section.text }}</p>{% endif %}
{% if section.table %}
<div class="table"><table>
<tr>{% for head in section.table.columns %}<th>{{ head }}</th>{% endfor %}</tr>
{% for row in section.table.rows %}{% set line = loop.index0 %}
<tr>{% for cell in row %}<td{% if (line, loop.index0) in section.table.best %} class="best"{% endif %}>{{ cell | replace(" ± ", "&nbsp;±&nbsp;" | safe) }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% endif %}
{% if section.picture %}<figure>{{ section.picture | safe }}</figure>{% endif %}
{% endfor %}
<p class="note">{{ footer }}</p>
</body>
</html>
"""


@dataclass(frozen=True)
class Section:
    """A headed part of the page: some text, a table, a picture (SVG made by `figures`), or all three."""

    title: str
    text: str = ""
    table: Table | None = None
    picture: str | None = None


def write_page(
    path: Path, title: str, introduction: str, sections: Sequence[Section], footer: str
) -> None:
    """Writes the page. All text is escaped; only our own SVG goes in as it is."""
    page = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE)
    text = page.render(title=title, introduction=introduction, sections=sections, footer=footer)
    atomic.write_text(path, text)
