"""The rows of dspy.GEPA and dspy.GEPA.compile. Needs no dspy: what a value takes from it is made for each run."""

from functools import partial

import dspy_values as values
from options import Option

row = partial(Option, "dspy.GEPA")
given = partial(Option, "dspy.GEPA.compile")

NEVER_MORE = (
    "spent up to one proposal with its validation, and never passed; one that cannot pay for the seed and one proposal "
    "is refused before anything is spent"
)
ONE_AT_A_TIME = "called one at a time unless Flash(reflection_concurrency=...) says that several may be at once"
MERGING = {"student": "pair", "use_merge": True, "max_metric_calls": 140, "component_selector": "all"}
FOLDER = {"log_dir": lambda _: folder()}
CODE = {"student": "flex"}


def folder():
    """The folder that a run writes to."""
    import gepa_values

    return str(gepa_values.FOLDER)


def several(_task):
    from gepa.strategies.proposal_sampling import PxNSampling

    return {"sampling_strategy": PxNSampling(2, 2)}


def best_of_several(_task):
    from gepa.strategies.proposal_sampling import IndependentSampling
    from gepa.strategies.proposal_selection import BestImprovement

    return {"sampling_strategy": IndependentSampling(3), "selection_strategy": BestImprovement()}


def sampler(_task):
    from gepa.strategies.batch_sampler import EpochShuffledBatchSampler

    return {"batch_sampler": EpochShuffledBatchSampler(2)}


def stopping(_task):
    from gepa.utils import MaxCandidateProposalsStopper

    return {"stop_callbacks": MaxCandidateProposalsStopper(3)}


def partly(_task):
    from gepa_values import Halves

    return {"val_evaluation_policy": Halves()}


def multimodal(_task):
    from dspy.teleprompt.gepa.instruction_proposal import MultiModalInstructionProposer

    return MultiModalInstructionProposer()


def builtin(_task):
    from dspy.teleprompt.gepa import InstructionProposer

    return InstructionProposer(additional_instructions="Write briefly.", skills="# A skill", max_chars=400)


OPTIONS = (
    row(
        "metric",
        {
            "a number": {"metric": values.a_number},
            "an instance": {"metric": values.an_instance},
            "objective scores": {"metric": values.objectives, "gepa_kwargs": {"frontier_type": "hybrid"}},
            "of Flex code, with its trace": {"metric": values.by_trace, **CODE},
        },
        note="may be `async def`, also in lockstep: awaited on one event loop per run; the host's own loop cannot",
        unchanged=("an instance", "of Flex code, with its trace"),
    ),
    row("auto", {size: {"auto": size} for size in ("light", "medium", "heavy")}, note=NEVER_MORE),
    row("max_full_evals", {"5": {"max_full_evals": 5}}, note=NEVER_MORE),
    row("max_metric_calls", {"40": {"max_metric_calls": 40}}, note=NEVER_MORE),
    row(
        "reflection_minibatch_size",
        {"1": {"reflection_minibatch_size": 1}, "5": {"reflection_minibatch_size": 5}},
    ),
    row(
        "candidate_selection_strategy",
        {name: {"candidate_selection_strategy": name} for name in ("current_best", "epsilon_greedy", "top_k_pareto")}
        | {"pareto": {"candidate_selection_strategy": "pareto"}},
        unchanged=("pareto", "top_k_pareto"),  # of five candidates at most
    ),
    row(
        "reflection_lm",
        {
            "another model": {"reflection_lm": values.another_model},
            "None, with a proposer": {"reflection_lm": None, "instruction_proposer": values.Proposer},
        },
    ),
    row("skip_perfect_score", {"False": {"skip_perfect_score": False, "perfect_score": 0.0}}),
    row(
        "add_format_failure_as_feedback",
        {"True": {"add_format_failure_as_feedback": True, "settings": values.mumbling}},
    ),
    row(
        "instruction_proposer",
        {
            "a function": {"instruction_proposer": values.a_function},
            "an instance": {"instruction_proposer": values.Proposer},
            "dspy's, for images": {"instruction_proposer": multimodal, "student": "seeing", "images": True},
            "beside Flex code": {"instruction_proposer": values.a_function, "student": "mixed"},
        },
        note=ONE_AT_A_TIME,
    ),
    row("instruction_proposer", {"dspy's own, with options": {"instruction_proposer": builtin}}),
    row("code_proposer", {"a function": {"code_proposer": values.of_code, **CODE}}, note=ONE_AT_A_TIME),
    row(
        "component_selector",
        {
            "all": {"component_selector": "all", "student": "pair"},
            "round_robin": {"component_selector": "round_robin", "student": "pair"},
            "a function": {"component_selector": values.last_component, "student": "pair"},
        },
        unchanged=("round_robin",),
    ),
    row("use_merge", {"True": MERGING}),
    row("max_merge_invocations", {"0": {**MERGING, "max_merge_invocations": 0}}),
    row(
        "num_threads",
        {"1": {"num_threads": 1}, "None": {"num_threads": None}, "3": {"num_threads": 3}},
        note="the number of slots, unless Flash(max_concurrency=...) gives another",
        unchanged=("1", "None", "3"),
    ),
    row(
        "failure_score",
        {"where a metric raises": {"failure_score": 0.125, "metric": values.raising}},
        note="an example that raises keeps its place; the own loop of dspy 3.3 drops it and then fails",
    ),
    row("perfect_score", {"0.5": {"perfect_score": 0.3}}),
    row(
        "log_dir",
        {"a folder": FOLDER, "resumed": {**FOLDER, "max_metric_calls": 90, "before": {"max_metric_calls": 40}}},
    ),
    row("track_stats", {"False": {"track_stats": False}, "True": {"track_stats": True}}, unchanged=("True",)),
    row("use_wandb", {"True": {"use_wandb": True}}),
    row("wandb_api_key", {"a key": {"use_wandb": True, "wandb_api_key": "key"}}),
    row("wandb_init_kwargs", {"a project": {"use_wandb": True, "wandb_init_kwargs": {"project": "mine"}}}),
    row("track_best_outputs", {"True": {"track_best_outputs": True}}),
    row(
        "warn_on_score_mismatch",
        {
            "False": {"warn_on_score_mismatch": False, "metric": values.per_predictor},
            "True": {"warn_on_score_mismatch": True, "metric": values.per_predictor},
        },
        unchanged=("True",),
    ),
    row("use_mlflow", {"True": {"use_mlflow": True}}),
    row("seed", {"7": {"seed": 7}}),
    row(
        "gepa_kwargs",
        {
            "several proposals at once": {"gepa_kwargs": several},
            "the best of several": {"gepa_kwargs": best_of_several},
            "acceptance": {"gepa_kwargs": {"acceptance_criterion": "improvement_or_equal"}},
            "a stopper": {"gepa_kwargs": stopping},
            "a frontier of objectives": {"gepa_kwargs": {"frontier_type": "objective"}, "metric": values.objectives},
            "a batch sampler": {"reflection_minibatch_size": None, "gepa_kwargs": sampler},
            "a validation policy": {"gepa_kwargs": partly},
            "cloudpickle": {**FOLDER, "gepa_kwargs": {"use_cloudpickle": True}},
            "a cache": {"gepa_kwargs": {"cache_evaluation": True}, "skip_perfect_score": False},
            "a prefix of keys": {"use_wandb": True, "gepa_kwargs": {"tracking_key_prefix": "mine/"}},
            "what dspy refuses": {"gepa_kwargs": {"max_reflection_cost": 1.0}},
        },
        note="each as the option of gepa.optimize of that name",
        unchanged=("cloudpickle",),
    ),
    given(
        "student",
        {
            "two predictors": {"student": "pair"},
            "an agent with a tool": {"student": "agent"},
            "Flex code": {"student": "flex"},
            "a predictor and Flex code": {"student": "mixed"},
            "one that sees images": {"student": "seeing", "images": True},
        },
    ),
    given("trainset", {"9 examples": {"train": 9}, "none": {"train": 0}}),
    given("teacher", {"None": {"teacher": None}, "a program": {"teacher": "a program"}}, unchanged=("None",)),
    given("valset", {"None": {"val": None}, "4 examples": {"val": 4}}),
)
