"""Drawings of expression trees: every token is shown or counted, in a limited space."""

import re
from xml.etree import ElementTree

import pytest

from longspan.tasks.lra.expression_drawing import draw_as_svg, draw_as_text
from longspan.tasks.lra.generators.listops import Grammar, generate, ids_to_symbols, parse


def tree(expression):
    return parse(expression.split())


@pytest.fixture(scope="module")
def large():
    grammar = Grammar(max_depth=10, max_args=10, min_length=1_000, max_length=2_000)
    return [parse(ids_to_symbols(tokens)) for tokens in generate(grammar, 30, seed=0).tokens]


def test_small_tree_is_complete():
    drawn = draw_as_text(tree("[MAX 2 9 [MIN 4 7 X 0 [SM 1 [MED 5 6 X 2 X X"))
    assert drawn == "\n".join(
        (
            "MAX = 9",
            "├─ 2 9",
            "├─ MIN = 4: 4 7",
            "├─ 0",
            "└─ SM = 8",
            "   ├─ 1",
            "   ├─ MED = 5: 5 6",
            "   └─ 2",
        )
    )


def test_tree_of_one_operator_takes_one_line():
    assert draw_as_text(tree("[MIN 3 1 X")) == "MIN = 1: 3 1"
    assert draw_as_text(tree("7")) == "7 = 7"


def test_long_runs_of_digits_are_abbreviated():
    digits = " ".join("1" * 40)
    assert draw_as_text(tree(f"[SM {digits} X")).endswith("1 1 ... 16 more")
    assert draw_as_text(tree(f"[SM {digits} [MIN 1 2 X X")).count("... 16 more") == 1


def shown_tokens(drawn):
    """Return the number of tokens that the lines show or count as hidden."""
    total = 0
    for line in drawn.split("\n"):
        body = re.sub(r"^[│├└─ ]+", "", line)
        if match := re.match(r"(?:MIN|MAX|MED|SM) = \d(.*)", body):
            total += 2
            body = match[1]
        if match := re.search(r"\.\.\. (\d+) more", body):
            # The number includes the closing bracket, which is counted above.
            total += int(match[1]) - (":" not in body)
            body = body[: match.start()]
        total += len(re.findall(r"\d", body))
    return total


def test_every_token_of_a_large_tree_is_shown_or_counted(large):
    for root in large:
        assert shown_tokens(draw_as_text(root)) == root.tokens


def test_large_tree_shows_its_upper_operators_in_60_lines(large):
    for root in large:
        lines = draw_as_text(root).split("\n")
        assert 20 < len(lines) <= 60
        upper = [(one.symbol[1:], str(one.value)) for one in root.arguments if one.arguments]
        drawn = [re.match(r"[├└]─ ([A-Z]+) = (\d)", line) for line in lines]
        assert [match.groups() for match in drawn if match] == upper


def test_root_is_expanded_for_any_number_of_arguments():
    many = " ".join("[MIN 1 2 X" for _ in range(100))
    assert len(draw_as_text(tree(f"[MAX {many} X")).split("\n")) == 101


def words(picture):
    return [one.text for one in ElementTree.fromstring(picture).iter() if one.tag.endswith("text")]


def test_svg_has_the_content_of_the_text(large):
    for root in [*large, tree("7"), tree("[MIN 3 1 X"), tree("[MAX 2 [MIN 4 7 X 0 X")]:
        text = re.sub(r"[│├└─:]|\.\.\.", " ", draw_as_text(root))
        picture = re.sub(r"\.\.\.", " ", " ".join(words(draw_as_svg(root))))
        assert sorted(text.split()) == sorted(picture.split())


def test_svg_elements_are_inside_the_picture(large):
    for root in large:
        picture = ElementTree.fromstring(draw_as_svg(root))
        width, height = int(picture.get("width")), int(picture.get("height"))
        assert width < 1_600
        assert height < 1_400
        for one in picture.iter():
            if one.tag.endswith("text"):
                assert 0 <= float(one.get("x")) + 6 * len(one.text) <= width
                assert 0 <= float(one.get("y")) <= height
