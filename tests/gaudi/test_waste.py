"""The bench of padding: its lines are those of its generator, its card loses nobody, and the default holds the bar."""

from __future__ import annotations

from common.config import Settings
from common.shapes import Shape
from tests.bench.waste import BAR, LEAST, MOST, MOST_TOTAL, Card, Request, generate, read, simulate
from workers.gaudi.buckets import plan
from workers.scheduler import Knobs

PLAN = plan(Settings.from_env({"FARM_BACKEND": "gaudi", "MAX_BATCH_SIZE": "32"}), MOST_TOTAL)


def test_the_committed_lines_are_those_of_the_generator() -> None:
    lines = read()
    assert lines == list(generate())
    lengths = sorted(line.prompt for line in lines)
    assert LEAST <= lengths[0] < 40 and 2000 < lengths[-1] <= MOST, "from 20 to 3,000 tokens"
    assert 250 < lengths[len(lengths) // 2] < 350 < sum(lengths) / len(lengths), "skewed, as log-normal lengths are"


def test_a_group_of_equal_prompts_is_packed_and_nobody_is_lost() -> None:
    card = Card(Shape(PLAN.batch_size, PLAN.max_length, PLAN.prefills), Knobs())
    outcome = card.run([(0.0, Request(128, 10))] * 8)
    assert (card.n_real, card.n_computed, outcome.waste) == (8 * 128, 8 * 128, 0.0), "one prefill of 8 × 128, fully used"
    assert (card.n_steps, card.n_row_steps) == (9, 8 * 9), "the first token came with the prefill"


def test_the_default_factor_holds_the_bar_and_wastes_less_than_tgis() -> None:
    tgi = plan(Settings.from_env({"FARM_BACKEND": "gaudi", "MAX_BATCH_SIZE": "32", "SEQ_LEN_EXPONENT_BASE": "2"}), MOST_TOTAL)
    ours, theirs = simulate(PLAN, 12.0), simulate(tgi, 12.0)
    assert ours.waste <= BAR and ours.waste < theirs.waste - 0.05
    assert ours.occupancy > 0.75
