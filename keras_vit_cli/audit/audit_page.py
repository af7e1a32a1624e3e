"""The page of an audit: photographs with their problem, and a decision on each by key or button."""

from collections.abc import Iterator
from html import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any

from keras_vit._base.errors import counted, printable
from keras_vit.curation import FeatureIndex
from keras_vit.evaluation.answer_row import name_of
from keras_vit_cli.audit.decisions import COLUMNS, DIGEST
from keras_vit_cli.audit.findings import Audit, Finding, Problem
from keras_vit_cli.page_parts import breakable, file_list
from keras_vit_cli.search.result_page import Card, deciding_page, photo, thumbnails, write_parts

PAGE = "index.html"
MOST_TOGETHER = 24  # photographs of one group on the page


def write_audit_page(path: Path, place: Path, index: FeatureIndex, audit: Audit, most: int) -> None:
    """Writes the page from the template `audit.html` beside this file, a few groups at a time.

    Args:
        place: The folder that it will stand in, which links lead from.
    """
    title, facts = f"Audit of {index.photos.name}", _facts(index, audit)
    page = deciding_page("audit", title, facts, _data(index, audit, most))
    sections = (_section(problem, index, place, most) for problem in audit.problems)
    unreadable = [_unreadable(audit.unreadable, most)]
    write_parts(path, page, chain(chain.from_iterable(sections), unreadable))


def _facts(index: FeatureIndex, audit: Audit) -> str:
    count = sum(len(problem.findings) for problem in audit.problems)
    text = f"{counted(len(index), 'photograph')} of {index.photos}: {counted(count, 'finding')}."
    if known := index.info.get("made_with"):
        text += (
            f" The model was made with {counted(known, 'photograph')} of these, whose wrong labels "
            "may look right to it."
        )
    return f"{text} {audit.skipped}".strip()


def _data(index: FeatureIndex, audit: Audit, most: int) -> dict[str, Any]:
    """Return the script's data: classes; name, digest and suggestion of each image found."""
    photos: dict[int, dict[str, str]] = {}
    for problem in audit.problems:
        for finding in problem.findings[:most]:
            for row in finding.rows:
                facts = {"name": name_of(index.files[row]), "digest": index.sums[row]}
                photo = photos.setdefault(row, facts)
                if finding.suggestion:
                    photo["suggestion"] = finding.suggestion
    return {
        "key": f"keras_vit audit {index.info['weights'][:12]} {index.photos.absolute()}",
        "columns": (*COLUMNS, DIGEST),
        "classes": index.class_names,
        "photos": photos,
    }


def _section(problem: Problem, index: FeatureIndex, place: Path, most: int) -> Iterator[str]:
    count = len(problem.findings)
    more = f" The first {most:,} of {count:,}; audit.csv has all." if count > most else ""
    yield (
        f"<section><h2>{escape(problem.title)}: {count:,}</h2>"
        f"<p class=note>{escape(problem.note + more)}</p><ul class=cards>\n"
    )
    findings = problem.findings[:most]
    rows = chain.from_iterable(finding.rows[:MOST_TOGETHER] for finding in findings)
    made = thumbnails([index.path(row) for row in rows], index.bands)
    for finding in findings:
        yield _item(finding, index, place, made)
    yield "</ul></section>\n"


def _item(finding: Finding, index: FeatureIndex, place: Path, made: Iterator[str | None]) -> str:
    shown = finding.rows[:MOST_TOGETHER]
    sources = list(islice(made, len(shown)))
    cards = "".join(
        _card(row, facts, finding, index, place, source)
        for row, facts, source in zip(shown, finding.facts, sources, strict=False)
    )
    if len(finding.rows) == 1:
        return f"<li>{cards}</li>\n"
    hidden = len(finding.rows) - len(shown)
    more = f"<p class=facts>and {counted(hidden, 'other')}, in audit.csv</p>" if hidden else ""
    size = "pair" if len(finding.rows) == 2 else "group"
    rows = " ".join(map(str, finding.rows))
    return f'<li class={size} data-rows="{rows}"><div class=together>{cards}</div>{more}</li>\n'


def _card(
    row: int, facts: str, finding: Finding, index: FeatureIndex, place: Path, source: str | None
) -> str:
    card = Card(index.files[row], index.path(row), facts)
    relabel = (
        '<select data-choice=relabel aria-label="another label"><option value="">relabel</option>'
        "</select>"
        if index.class_names
        else ""
    )
    one_tap = ""
    if finding.suggestion:
        label = breakable(printable(finding.suggestion))
        one_tap = f"<button data-choice=relabel>accept: {label}</button>"
    elif len(finding.rows) > 1:
        one_tap = "<button data-choice=only>keep this, drop the rest</button>"
    return (
        f"<div class=photo data-row={row} tabindex=-1 role=group "
        f'aria-label="{escape(printable(card.name))}">{photo(card, source, place, "tabindex=-1 ")}'
        "<div class=choices><button data-choice=keep>keep</button>"
        f"<button data-choice=drop>drop</button>{one_tap}{relabel}</div></div>"
    )


def _unreadable(unreadable: dict[str, str], most: int) -> str:
    if not unreadable:
        return ""
    rows = file_list(dict(sorted(unreadable.items())[:most]))
    return (
        f"<section><h2>Unreadable: {len(unreadable):,}</h2><p class=note>These files cannot be "
        "decoded, and are in no list.</p><ul class=unreadable>" + rows + "</ul></section>\n"
    )
