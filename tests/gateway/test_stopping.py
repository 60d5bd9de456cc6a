from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.stopping import StopCut

pieces = st.lists(st.text("ab#", max_size=3), max_size=8)
stop_strings = st.lists(st.text("ab#", min_size=1, max_size=4), max_size=3)


def shown(texts: list[str], stops: list[str]) -> tuple[list[str], bool]:
    cut = StopCut(stops)
    parts = [cut.push(text) for text in texts]
    return [*parts, cut.end()], cut.stopped


@given(pieces, stop_strings)
def test_the_text_is_all_before_the_first_stop_string(texts: list[str], stops: list[str]) -> None:
    whole = ""
    for text in texts:  # a worker stops at the first token after which the text contains one
        whole += text
        if any(stop in whole for stop in stops):
            break
    ends = [whole.index(stop) for stop in stops if stop in whole]
    parts, stopped = shown(texts, stops)
    assert "".join(parts) == whole[: min(ends, default=len(whole))]
    assert stopped == bool(ends)


@given(pieces, stop_strings)
def test_nothing_shown_is_ever_taken_back_and_only_a_possible_stop_is_held(texts: list[str], stops: list[str]) -> None:
    cut, given_text, so_far = StopCut(stops), "", ""
    for text in texts:
        given_text += text
        so_far += cut.push(text)
        if cut.stopped:
            return
        held = given_text[len(so_far) :]
        assert given_text.startswith(so_far)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_held_beginning_is_shown_as_soon_as_it_cannot_be_a_stop() -> None:
    assert shown(["a ", "EN", "TER"], ["END"]) == (["a ", "", "ENTER", ""], False)
    assert shown(["a ", "EN"], ["END"]) == (["a ", "", "EN"], False)
    assert shown(["a EN", "D of"], ["END"]) == (["a ", "", ""], True)


def test_special_tokens_count_and_are_not_shown() -> None:
    cut = StopCut(["<e>x"])
    assert [cut.push("a"), cut.push("<e>", special=True), cut.push("y")] == ["a", "", "y"]
    assert [cut.push("<e>", special=True), cut.push("x"), cut.stopped] == ["", "", True]
