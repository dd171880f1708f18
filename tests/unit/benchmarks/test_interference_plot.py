from xml.etree import ElementTree as ET

import pytest
from interference_plot import BAND, LEFT, PANEL, RIGHT, WIDTH, Panel, interference_svg

SVG = "{http://www.w3.org/2000/svg}"
SPAN = WIDTH - LEFT - RIGHT
PANELS = [
    Panel("apart <1>", [(0.0, 0.01), (5.0, 0.1)], [(5.0, 7.5)], 10.0),
    Panel("together", [(2.5, 1.0), (2.5, 1.0)], [], 5.0),
]


def drawn() -> ET.Element:
    return ET.fromstring(interference_svg(PANELS))  # noqa: S314  our own


def strokes(panel: ET.Element) -> str:
    [path] = [p for p in panel.iter(f"{SVG}path") if p.get("stroke-linecap") == "round"]
    return path.attrib["d"]


def test_each_shape_has_a_panel_with_its_name() -> None:
    titles = [group.findtext(f"{SVG}text") for group in drawn().iter(f"{SVG}g")]

    assert titles == ["apart <1>", "together"]


def test_a_gap_lies_at_its_length_from_its_first_token_to_its_second() -> None:
    apart, together = drawn().iter(f"{SVG}g")

    # Lengths are on a logarithmic axis of 10 ms to 1 s, times on a common one of 10 s.
    assert strokes(apart) == f"M{LEFT} {PANEL}h1M{LEFT + SPAN // 2} {PANEL // 2}h8"
    assert strokes(together) == f"M{LEFT + SPAN // 4} 0h{round(SPAN / 10)}"


def test_a_band_covers_the_time_in_which_a_prompt_was_read() -> None:
    apart, together = drawn().iter(f"{SVG}g")
    [band] = [rect for rect in apart.iter(f"{SVG}rect") if rect.get("fill") == BAND]

    assert float(band.attrib["x"]) == pytest.approx(LEFT + SPAN / 2)
    assert float(band.attrib["width"]) == pytest.approx(SPAN / 4)
    assert not list(together.iter(f"{SVG}rect"))


def test_the_axes_say_their_units() -> None:
    texts = [text.text for text in drawn().iter(f"{SVG}text")]

    assert {"10 ms", "100 ms", "1 s"} <= set(texts)
    assert texts[-6:] == ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s"]
