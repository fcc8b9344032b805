"""The policy keeps the contract, decides as it says, and runs by its name."""

from types import SimpleNamespace

import gepa
import pytest
from flashevolve_overtaken import Overtaken
from gepa.core.adapter import EvaluationBatch

from flashevolve_plugins import Flash, UsageError
from flashevolve_plugins.hooks import Evidence, ItemView, Pool, PoolEntry, Verdict, hookimpl
from flashevolve_plugins.testing import check_policy

SEED = {"plan": "think", "answer": "be brief"}


def test_it_keeps_the_contract():
    check_policy(Overtaken)
    check_policy(lambda: Overtaken(margin=0.2))


@pytest.mark.parametrize(
    ("since", "score", "verdict"),
    [
        ({"plan": "think twice"}, 0.9, Verdict.ACCEPT),  # another component
        ({"answer": "be kind"}, 0.9, Verdict.DISCARD),  # its own
        ({"answer": "be kind"}, 0.5, Verdict.ACCEPT),  # its own, but no better than its parent
    ],
)
def test_it_discards_what_was_overtaken_and_nothing_else(since, score, verdict):
    pool = Pool()
    pool.append([PoolEntry(1, SEED, 0.5), PoolEntry(2, {**SEED, **since}, score, (1,))])
    proposal = Evidence({**SEED, "answer": "be exact"}, parent=1)
    item = ItemView(7, version=1, staleness=1, stage="validate", evidence=proposal)
    assert Overtaken().judge(item, pool).verdict is verdict
    assert Overtaken(margin=0.5).judge(item, pool).verdict is Verdict.ACCEPT


@pytest.mark.parametrize("margin", [-0.1, "much", True, None, float("nan")])
def test_a_margin_that_cannot_work_is_refused(margin):
    with pytest.raises(UsageError, match=r"Overtaken\(margin=.*\) must be a number of at least 0"):
        Overtaken(margin)


class Letters:
    """A task without a model: an example is a letter, and a candidate knows those in its texts."""

    propose_new_texts = None
    flashevolve_evaluate = "example"

    def evaluate(self, batch, candidate, capture_traces=False):
        """Score 1 for a letter that one of the texts has."""
        scores = [float(letter in "".join(candidate.values())) for letter in batch]
        return EvaluationBatch(outputs=batch, scores=scores, trajectories=[*batch] if capture_traces else None)

    def make_reflective_dataset(self, candidate, evaluation, components):
        """Show the letters."""
        return {name: [{"Inputs": each} for each in evaluation.trajectories] for name in components}


def add_a_letter(prompt):
    """Stand in for a reflection model: learn the first letter shown that the text lacks."""
    text, shown = prompt.split("```")[1].strip(), prompt.split("```", 2)[2]
    missing = [letter for letter in "abcdefghijkl" if letter not in text and f"\n{letter}\n" in shown]
    return f"```\n{text}{''.join(missing[:1])}\n```"


class Reasons:
    """Notes why proposals ended."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def flashevolve_item_ended(self, record):
        """Keep the checks of one."""
        self.seen += [check.reason for check in record.checks]


def test_it_runs_by_its_name():
    reasons = Reasons()
    result = gepa.optimize(
        seed_candidate={"plan": "#", "answer": "#"},
        trainset=[*"abcdefghijkl"],
        valset=[*"abcdefghijkl"],
        adapter=Letters(),
        reflection_lm=add_a_letter,
        max_metric_calls=600,
        logger=SimpleNamespace(log=lambda _message: None),
        executor=Flash(staleness="overtaken", max_concurrency=8, reflection_concurrency=8, plugins=[reasons]),
    )
    assert max(result.val_aggregate_scores) > result.val_aggregate_scores[0]
    assert result.total_metric_calls <= 600
    assert any("meanwhile" in reason for reason in reasons.seen)
