"""The pictures: one file that needs nothing else, the same bytes each time, and what the log says in them."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from pearl.core.cluster import SERVING_ROLES, Role, Zone
from pearl.core.decision import Outcome
from pearl.errors import InputError, UsageError
from pearl.report import timeline_layout as layout
from pearl.report.timeline import html_text, picture_title, timeline_of, write_png
from pearl.report.timeline_data import Timeline
from pearl.report.timeline_svg import svg_text
from pearl.sim.log import Record
from tests.report.timeline_samples import Log, decision, gone, logs, small_log, worker

GOLDEN = Path(__file__).parent / "golden" / "timeline.svg"
TITLE = picture_title(policy="pearl", scenario="small", seed=7)
SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br"}


def crowd() -> Timeline:
    """More workers at a time than there can be lanes."""
    names = [f"w-{i}/0" for i in range(layout.MOST_LANES + 4)]
    log = [worker(0, name, Zone.PREEMPTIBLE, Role.DECODE) for name in names]
    return timeline_of([*log, *(gone(40, name) for name in names[::2])], 100)


class Balanced(HTMLParser):
    """Fails where elements are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_the_drawing_is_the_golden_file() -> None:
    assert svg_text(timeline_of(small_log(), 100), title=TITLE) + "\n" == GOLDEN.read_text(encoding="utf-8")


@given(logs())
@settings(max_examples=40)
def test_every_interval_is_a_shape_that_says_who_what_and_when(sample: tuple[Log, float]) -> None:
    drawn = timeline_of(*sample)
    svg = ET.fromstring(svg_text(drawn, title=TITLE))
    tips = Counter(
        rect.findtext(f"{SVG}title") for rect in svg.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None
    )
    expected = Counter(
        f"{life.worker}: {i.phase}, {layout.clock(i.begin_s)} to {layout.clock(i.end_s)} ({i.end_s - i.begin_s:.1f} s)"
        for life in drawn.workers
        for i in life.intervals
    )
    assert tips == expected


def test_the_page_needs_nothing_else() -> None:
    page = html_text(timeline_of(small_log(), 100), title=TITLE, results=[{"policy": "pearl"}])
    assert page == html_text(timeline_of(small_log(), 100), title=TITLE, results=[{"policy": "pearl"}])
    for tag, attributes in parsed(page).seen:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert str(attributes.get("href", "#")).startswith("#")
    assert set(re.findall(r"https?://[^\"' ]*", page)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))
    assert TITLE in page
    assert "simulated" in TITLE


def test_every_decision_leads_to_the_row_with_its_reasons() -> None:
    drawn = timeline_of(small_log(), 100)
    seen = parsed(html_text(drawn, title=TITLE)).seen
    links = [str(attributes["href"]) for tag, attributes in seen if tag == "a"]
    rows = [f"#{attributes['id']}" for tag, attributes in seen if tag == "tr" and "id" in attributes]
    assert sorted(links) == rows
    assert len(rows) == len(drawn.decisions)


def test_text_of_the_log_is_text_in_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    reasons = [{"code": evil, "text": f'because of {evil} & "quotes"'}]
    log = [
        worker(0, f"{evil}/0", Zone.RESERVED, Role.DECODE),
        decision(1, Outcome.SWITCH, evil, reasons=reasons),
    ]
    page = html_text(timeline_of(log, 10), title=evil, results=[{evil: evil}])
    assert evil not in page
    assert [tag for tag, _ in parsed(page).seen].count("script") == 2


def test_figures_of_runs_are_shown_side_by_side() -> None:
    results = [
        {"policy": "pearl", "seed": 1, "makespan_s": {"mean": 132.456, "max": 1200.0}, "lost": 0},
        {"policy": "roll-fixed", "seed": 1, "makespan_s": {"mean": 180.0}, "lost": None},
    ]
    page = html_text(timeline_of(small_log(), 100), title=TITLE, results=results)
    cell = '<td class="number">'
    assert f'<tr><th scope="row">makespan_s.mean</th>{cell}132.46</td>{cell}180</td></tr>' in page
    assert f'<tr><th scope="row">makespan_s.max</th>{cell}1,200</td>{cell}</td></tr>' in page
    assert f'<tr><th scope="row">lost</th>{cell}0</td>{cell}</td></tr>' in page
    assert "Results" not in html_text(timeline_of(small_log(), 100), title=TITLE)


def test_a_crowd_is_shown_by_numbers() -> None:
    page = html_text(crowd(), title=TITLE)
    stacks = json.loads(page.partition('id="stacks">')[2].partition("</script>")[0])
    assert stacks == {
        "preemptible": {"edges_s": [0.0, 40.0, 100.0], "layers": [{"phase": "decode", "gpus": [100.0, 50.0]}]}
    }
    svg = ET.fromstring(svg_text(crowd(), title=TITLE))
    assert [rect.get("data-zone") for rect in svg.iter(f"{SVG}rect") if rect.get("data-zone")] == ["preemptible"]


def test_a_log_of_nothing_can_be_drawn() -> None:
    page = html_text(timeline_of([], 10), title=TITLE)
    assert "0 decisions" in page
    parsed(page)


# -- PNG -----------------------------------------------------------------------------------------------------------


def pixels(path: Path) -> Counter[str]:
    """How many pixels have which colour."""
    image = pytest.importorskip("PIL.Image").open(path).convert("RGB")
    colours: list[tuple[int, tuple[int, int, int]]] = image.getcolors(1 << 24)
    return Counter({f"#{r:02X}{g:02X}{b:02X}": count for count, (r, g, b) in colours})


@pytest.mark.parametrize("lanes", [True, False])
def test_the_png_shows_roles_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: bool) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("pearl.report.timeline_layout.MOST_LANES", 9 if lanes else 0)
    log: list[Record] = []
    for i in range(4):
        log.append(worker(0, f"a-{i}/0", Zone.RESERVED, Role.DECODE))
    log += [worker(60, f"a-{i}/0", Zone.RESERVED, Role.PREFILL) for i in range(4)]
    write_png(timeline_of(log, 80), tmp_path / "run.png", title=TITLE)
    seen = pixels(tmp_path / "run.png")
    ratio = seen[layout.ROLE_COLOURS[Role.DECODE]] / seen[layout.ROLE_COLOURS[Role.PREFILL]]
    assert ratio == pytest.approx(3, rel=0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["run.png"]


def test_an_empty_log_gives_an_empty_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_png(timeline_of([], 100), tmp_path / "run.png", title=TITLE)
    assert not pixels(tmp_path / "run.png").keys() & {layout.ROLE_COLOURS[role] for role in SERVING_ROLES}


def test_everything_of_a_log_can_be_drawn_twice_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    log = (*small_log(), decision(80, Outcome.INFEASIBLE), decision(90, Outcome.LIMIT))
    for name in ("a.png", "b.png"):
        write_png(timeline_of(log, 100), tmp_path / name, title=TITLE)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_missing_matplotlib_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=re.escape("pip install 'pearl[report]'")):
        write_png(timeline_of(small_log(), 100), tmp_path / "run.png", title=TITLE)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pearl.report.timeline_png.png_bytes", lambda *_args, **_kwargs: b"png")
    with pytest.raises(InputError, match="cannot write"):
        write_png(timeline_of(small_log(), 100), tmp_path / "no" / "run.png", title=TITLE)


def test_drawing_html_imports_no_plotting_library() -> None:
    import subprocess

    code = "import pearl.report.timeline, sys; print([m for m in ('matplotlib', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
