"""Items offered while the seed is validated, before the host has a state: what they may read, and when there are some.

A validation ends with its longest answer, and most slots idle by then. Items made from the seed need no score of it:
they pass their gates meanwhile, and wait in the merge queue until the seed is in the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gepa.strategies import acceptance, component_selector, proposal_selection
from gepa.strategies.batch_sampler import EpochShuffledBatchSampler
from gepa.strategies.proposal_sampling import SingleMutationSampling
from gepa.utils import stop_condition

from flashevolve_plugins.adapters.gepa.budget import resumes

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Of the host's own parts, those that read nothing of its state but what :class:`BeforeState` has.
_PARTS = (
    SingleMutationSampling,
    EpochShuffledBatchSampler,
    component_selector.RoundRobinReflectionComponentSelector,
    component_selector.AllReflectionComponentSelector,
    acceptance.StrictImprovementAcceptance,
    acceptance.ImprovementOrEqualAcceptance,
    proposal_selection.AllImprovements,
    proposal_selection.BestImprovement,
)
_STOPPERS = (
    stop_condition.MaxMetricCallsStopper,
    stop_condition.MaxCandidateProposalsStopper,
    stop_condition.MaxTrackedCandidatesStopper,
    stop_condition.MaxReflectionCostStopper,
    stop_condition.TimeoutStopCondition,
    stop_condition.FileStopper,
    stop_condition.SignalStopper,
)


class BeforeState:
    """What the host's state will say of a seed that has no scores yet. Also selects it: there is no other candidate.

    Args:
        seed: component name to text.
    """

    def __init__(self, seed: dict[str, str]) -> None:
        self.i = -1
        self.total_num_evals = 0
        self.full_program_trace: list[dict[str, Any]] = []
        self.program_candidates = [dict(seed)]
        self.list_of_named_predictors = list(seed)
        self.named_predictor_id_to_update_next_for_program_candidate = [0]

    def select_candidate_idx(self, state: Any) -> int:
        """The seed."""
        del state
        return 0

    def hand_over(self, state: Any) -> None:
        """The host's state exists: it goes on with the component whose turn it is."""
        turns = self.named_predictor_id_to_update_next_for_program_candidate
        state.named_predictor_id_to_update_next_for_program_candidate[:1] = turns


def may_offer_early(engine: Any) -> bool:
    """Whether all that the host asks for an item does without scores of the seed. A resumed run has other candidates.

    Args:
        engine: the host's engine.
    """
    proposer = engine.reflective_proposer
    parts = (
        proposer.sampling_strategy,
        proposer.batch_sampler,
        proposer.module_selector,
        engine.acceptance_criterion,
        engine.selection_strategy,
    )
    known = all(type(each) in _PARTS for each in parts) and all(
        type(each) in _STOPPERS for each in _stoppers(engine.stop_callback)
    )
    return known and not resumes(engine)


def _stoppers(stopper: Any) -> Iterable[Any]:
    """A stopper, or those that it consists of."""
    if stopper is None:
        return
    if type(stopper) is stop_condition.CompositeStopper:
        for each in stopper.stoppers:
            yield from _stoppers(each)
    else:
        yield stopper
