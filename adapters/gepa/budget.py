"""The host's budget: what it is, and whether it can pay for anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gepa.strategies.batch_sampler import EpochShuffledBatchSampler
from gepa.strategies.eval_policy import FullEvaluationPolicy

from flashevolve_plugins._errors import UsageError

STATE_FILE = "gepa_state.bin"

# Where leaving stages early has been measured to pay: see "Stages left early" in docs/benchmarks.md.
MANY_VALIDATIONS = 25  # in a budget
FEW_ROUNDS = 4  # of the slots in a validation
ENOUGH_EXAMPLES = 50  # for a part of a validation to say much


def max_metric_calls(engine: Any) -> int | None:
    """The most metric calls that the host's stoppers allow, or ``None`` if none of them counts calls."""
    stopper = engine.stop_callback
    found = [stopper] if getattr(stopper, "mode", "any") == "any" else []
    limits = []
    while found:
        each = found.pop()
        limit = getattr(each, "max_metric_calls", None)
        if isinstance(limit, int):
            limits.append(limit)
        if getattr(each, "mode", "any") == "any":
            found.extend(getattr(each, "stoppers", None) or ())
    return min(limits, default=None)


@dataclass(frozen=True)
class Costs:
    """Metric calls of the pieces of a run.

    Args:
        seed: the seed's validation.
        validation: one further validation, at least.
        proposal: one sampling call's rollouts and gates, as far as the batch sampler tells its size.
    """

    seed: int
    validation: int
    proposal: int

    @property
    def least(self) -> int:
        """What a run needs for one proposal that is validated."""
        return self.seed + self.proposal + self.validation

    def favour_speculation(self, limit: int | None, slots: int) -> bool:
        """Whether stages are better left early.

        With a budget of few validations each of few rounds merges would come sooner and hold less. With many of many
        rounds nothing is won. With few of many rounds merges wait until they hold much in any case.

        Args:
            limit: metric calls in all, or ``None`` for no limit.
            slots: examples evaluated at once.
        """
        many = limit is None or limit >= MANY_VALIDATIONS * self.validation
        return self.validation >= ENOUGH_EXAMPLES and many is (self.validation <= FEW_ROUNDS * slots)


def require_budget(engine: Any, calls_per_example: int, rollouts: int = 1) -> Costs:
    """What the run's pieces cost.

    Args:
        engine: the host's engine.
        calls_per_example: metric calls that one example of a rollout or a gate takes at most.
        rollouts: how often every example is evaluated.

    Raises:
        UsageError: the budget of a new run cannot pay for the seed's validation, one proposal and its validation.
    """
    proposer, valset, policy = engine.reflective_proposer, engine.valset, engine.val_evaluation_policy
    seed_ids = getattr(policy, "get_seed_eval_batch", None)
    seed = (len(valset.all_ids()) if seed_ids is None else len(seed_ids(valset))) * rollouts
    validation = (
        seed if type(policy) is FullEvaluationPolicy else rollouts
    )  # a policy of its own says how much when asked
    strategy = proposer.sampling_strategy
    tasks = getattr(strategy, "n", 1) * getattr(strategy, "p", 1)
    minibatch = getattr(proposer.batch_sampler, "minibatch_size", 1)
    if not isinstance(proposer.batch_sampler, EpochShuffledBatchSampler):  # which repeats examples to fill it
        minibatch = min(minibatch, max(len(proposer.trainset), 1))
    costs = Costs(seed, validation, 2 * tasks * minibatch * calls_per_example * rollouts)
    limit = max_metric_calls(engine)
    if limit is not None and limit < costs.least and not resumes(engine):
        raise UsageError(
            f"max_metric_calls={limit} cannot pay for the seed's validation ({seed}), one proposal "
            f"({costs.proposal}) and its validation ({validation}): raise it to at least {costs.least}, or use a "
            f"smaller valset{'' if rollouts == 1 else ' or fewer rollouts'}."
        )
    return costs


def resumes(engine: Any) -> bool:
    """Whether the host goes on from a state file: a spent budget then ends the run with what the file holds."""
    return engine.run_dir is not None and (Path(engine.run_dir) / STATE_FILE).exists()
