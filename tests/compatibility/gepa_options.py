"""The rows of gepa.optimize."""

from functools import partial

from gepa.core.callbacks import CompositeCallback
from gepa.logging.logger import Logger
from gepa.proposer.reflective_mutation.reflection_lm import StatelessReflectionLM
from gepa.strategies.acceptance import StrictImprovementAcceptance
from gepa.strategies.batch_sampler import EpochShuffledBatchSampler
from gepa.strategies.candidate_selector import EpsilonGreedyCandidateSelector
from gepa.strategies.component_selector import AllReflectionComponentSelector
from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa.strategies.proposal_sampling import (
    IndependentSampling,
    PxNSampling,
    SameParentSampling,
    SingleMutationSampling,
)
from gepa.strategies.proposal_selection import AllImprovements, BestImprovement, TopKImprovements
from gepa.utils import (
    CompositeStopper,
    MaxCandidateProposalsStopper,
    MaxMetricCallsStopper,
    NoImprovementStopper,
    ScoreThresholdStopper,
    TimeoutStopCondition,
)
from gepa.utils.stop_condition import MaxTrackedCandidatesStopper
from gepa_records import Callbacks, Log
from gepa_task import ONE, TWO, Named, Reflection
from gepa_values import (
    ASKED,
    FOLDER,
    Adding,
    Batching,
    Chain,
    Counting,
    Daring,
    Failing,
    Forgetful,
    Growing,
    Halves,
    Keeping,
    Last,
    Late,
    Margin,
    Newest,
    Pairs,
    Plain,
    Priced,
    Proposing,
    Raising,
    Rarest,
    Signalled,
    Slotted,
    Together,
    Touching,
    Uneven,
    Unpicklable,
    Unreliable,
    Varying,
    Wordy,
    echo,
    lenient,
    namespace,
    nothing_at_times,
    propose,
    raising,
)
from options import Option

row = partial(Option, "gepa.optimize")

RUN_DIR = {"run_dir": str(FOLDER)}
MERGES = {"use_merge": True, "max_metric_calls": 160, "acceptance_criterion": "improvement_or_equal"}
MODEL = {**ASKED, "task_lm": "fake/task", "reflection_lm": "fake/reflection"}
SHORT = "Say it shorter.\n```\n<curr_param>\n```\n<side_info>"
LIVE = "each stopper is asked once per offer, with live counts; proposals in flight when it says stop are finished"


def every(count, *rests):
    """Whether the number of a call is one of those, modulo a count."""
    return lambda number: number % count in rests


def several(**options):
    return {"sampling_strategy": lambda: PxNSampling(2, 2), **options}


RAISING = {
    "evaluate": several(adapter=raising(evaluate=every(17, 12))),
    "make_reflective_dataset": {"adapter": raising(dataset=every(3, 1))},
    "the reflection": {"reflection_lm": Unreliable, "stop_callbacks": lambda: MaxCandidateProposalsStopper(9)},
    "the component selector": {"module_selector": Failing},
}

OPTIONS = (
    row(
        "seed_candidate",
        {
            "one component": {"seed_candidate": ONE},
            "two components": {"seed_candidate": TWO},
            "three components": {"seed_candidate": {"c": "third", **TWO}},
        },
        unchanged=("two components",),
    ),
    row(
        "trainset",
        {
            "a list shorter than a minibatch": {"trainset": [1, 2]},
            "a DataLoader with ids of its own": {"trainset": lambda: Named(range(12), "t")},
            "a DataLoader that grows": {"trainset": lambda: Growing(range(6), range(6, 12))},
        },
    ),
    row(
        "valset",
        {
            "none: the trainset": {"valset": None},
            "a DataLoader with ids of its own": {"valset": lambda: Named(range(100, 110), "v"), **MERGES},
            "a DataLoader that grows": {"valset": lambda: Growing(range(100, 108), range(108, 112))},
        },
    ),
    row(
        "adapter",
        {
            "with batch_evaluate": several(adapter=Pairs),
            "with propose_new_texts": {"adapter": Proposing},
            "without traces at times": {"adapter": Forgetful},
            "that counts its metric calls": {"adapter": Counting, "max_metric_calls": 150},
            "without objective scores": {"adapter": Plain},
            "with a state of its own": {"adapter": Keeping},
            "with slots": {"adapter": Slotted},
            "a namespace of functions": {"adapter": namespace},
        },
        note="one that declares nothing evaluates one batch at a time, while everything else overlaps",
        unchanged=("with batch_evaluate",),
    ),
    row(
        "task_lm",
        {"a function": {**MODEL, "task_lm": lambda: echo}, "a model's name": MODEL},
        note="a function is called one at a time",
    ),
    row("evaluator", {"of one's own": {**MODEL, "evaluator": lambda: lenient, "frontier_type": "hybrid"}}),
    row(
        "reflection_lm",
        {
            "a function": {"reflection_lm": Reflection},
            "a model's name": {"reflection_lm": "fake/reflection"},
            "with batch_complete": several(reflection_lm=Batching),
            "that raises at times": several(reflection_lm=Unreliable),
        },
        note="a function is called one at a time unless reflection_concurrency says otherwise; batch_complete is not "
        "used: each prompt is a call of its own",
        unchanged=("a function", "with batch_complete"),
    ),
    row(
        "reflection_lm_kwargs",
        {"temperature": {"reflection_lm": "fake/reflection", "reflection_lm_kwargs": {"temperature": 0.5}}},
    ),
    row(
        "candidate_selection_strategy",
        {
            "pareto": {"candidate_selection_strategy": "pareto"},
            "current_best": {"candidate_selection_strategy": "current_best"},
            "epsilon_greedy": {"candidate_selection_strategy": "epsilon_greedy"},
            "top_k_pareto": {"candidate_selection_strategy": "top_k_pareto", "max_metric_calls": 220},
            "an instance": {"candidate_selection_strategy": lambda: EpsilonGreedyCandidateSelector(0.5, None)},
            "of one's own": {"candidate_selection_strategy": Newest},
        },
        unchanged=("pareto",),
    ),
    row(
        "frontier_type",
        {name: {"frontier_type": name, "use_merge": True} for name in ("instance", "objective", "hybrid", "cartesian")},
        unchanged=("instance",),
    ),
    row(
        "skip_perfect_score",
        {
            "True": {"skip_perfect_score": True, "perfect_score": 0.5},
            "False": {"skip_perfect_score": False, "perfect_score": 0.5},
        },
        unchanged=("True",),
    ),
    row(
        "perfect_score",
        {
            "0.5": {"perfect_score": 0.5},
            "None": {"perfect_score": None, "skip_perfect_score": False},
        },
    ),
    row(
        "batch_sampler",
        {
            "epoch_shuffled": {"batch_sampler": "epoch_shuffled"},
            "an instance": {"batch_sampler": lambda: EpochShuffledBatchSampler(2)},
            "of one's own": {"batch_sampler": Uneven},
        },
        unchanged=("epoch_shuffled",),
    ),
    row(
        "reflection_minibatch_size",
        {
            "1": {"reflection_minibatch_size": 1},
            "2, several proposals": several(reflection_minibatch_size=2),
            "more than the trainset": {"reflection_minibatch_size": 5, "trainset": [1, 2]},
        },
    ),
    row(
        "reflection_prompt_template",
        {
            "a text": {"reflection_prompt_template": SHORT},
            "one per component": {"reflection_prompt_template": {"a": SHORT, "b": f"Please. {SHORT}"}},
            "for one component": {"reflection_prompt_template": {"a": SHORT}},
        },
    ),
    row(
        "custom_candidate_proposer",
        {
            "a function": {"custom_candidate_proposer": lambda: propose},
            "that proposes nothing at times": {"custom_candidate_proposer": lambda: nothing_at_times},
        },
        note="it is called one at a time unless reflection_concurrency says otherwise",
    ),
    row(
        "module_selector",
        {
            "round_robin": {"module_selector": "round_robin"},
            "all": {"module_selector": "all"},
            "an instance": {"module_selector": AllReflectionComponentSelector},
            "of one's own": {"module_selector": Wordy},
        },
        unchanged=("round_robin",),
    ),
    row(
        "use_merge",
        {"False": {"use_merge": False}, "True": MERGES, "several proposals": several(**MERGES)},
        note="a merge works on the state at its offer; of several in flight, those that the schedule allows are tried",
        unchanged=("False",),
    ),
    row(
        "max_merge_invocations",
        {f"{count}": {**MERGES, "max_merge_invocations": count} for count in (0, 20)},
        unchanged=("20",),
    ),
    row(
        "merge_val_overlap_floor",
        {
            f"{floor}": {
                **MERGES,
                "merge_val_overlap_floor": floor,
                "val_evaluation_policy": Halves,
                "valset": list(range(100, examples)),
            }
            for floor, examples in ((4, 108), (6, 110))
        },
    ),
    row(
        "max_metric_calls",
        {
            "an overshoot": {"max_metric_calls": 61},
            "a long run": {"max_metric_calls": 200},
            "None": {"max_metric_calls": None, "stop_callbacks": lambda: MaxCandidateProposalsStopper(9)},
        },
        note="never passed; in lockstep the host's overshoot is kept",
    ),
    row(
        "max_metric_calls",
        {"less than one proposal needs": {"max_metric_calls": 25}},
        refused="cannot pay for the seed's validation",
    ),
    row(
        "max_reflection_cost",
        {
            "of a model by name": {"reflection_lm": "fake/reflection", "max_reflection_cost": 0.045},
            "of a model that knows its cost": {"reflection_lm": Priced, "max_reflection_cost": 0.45},
            "of a strategy": {"reflection_strategy": Chain, "max_reflection_cost": 0.45},
            "never reached": {"reflection_lm": Reflection, "max_reflection_cost": 1.0},
        },
        note="reflections in flight when the cost is reached are finished, so it is passed by what they cost",
        unchanged=("of a strategy", "never reached"),
    ),
    row(
        "stop_callbacks",
        {
            "MaxMetricCallsStopper": {"stop_callbacks": lambda: MaxMetricCallsStopper(70)},
            "MaxCandidateProposalsStopper": {"stop_callbacks": lambda: MaxCandidateProposalsStopper(7)},
            "ScoreThresholdStopper": {"stop_callbacks": lambda: ScoreThresholdStopper(0.45)},
            "MaxTrackedCandidatesStopper": {"stop_callbacks": lambda: [MaxTrackedCandidatesStopper(3)]},
            "TimeoutStopCondition": {"stop_callbacks": lambda: TimeoutStopCondition(6.5)},
            "FileStopper": {"stop_callbacks": Touching},
            "SignalStopper": {"stop_callbacks": Signalled},
            "of one's own": {"stop_callbacks": lambda: [Late()]},
            "CompositeStopper": {
                "stop_callbacks": lambda: CompositeStopper(MaxCandidateProposalsStopper(7), ScoreThresholdStopper(0.6)),
                "max_metric_calls": None,
            },
            "CompositeStopper, all": {
                "stop_callbacks": lambda: CompositeStopper(
                    MaxCandidateProposalsStopper(5), MaxTrackedCandidatesStopper(3), mode="all"
                )
            },
        },
        note=LIVE,
    ),
    row(
        "stop_callbacks",
        {"NoImprovementStopper": {"stop_callbacks": lambda: NoImprovementStopper(3)}},
        note="counts offers: with many slots it can count to its limit before the first proposal has ended",
    ),
    row(
        "logger",
        {
            "None": {"logger": lambda: None},
            "None, with a run_dir": {"logger": lambda: None, **RUN_DIR},
            "Logger": {"logger": lambda: Logger(str(FOLDER / "mine.txt")), **RUN_DIR},
            "of one's own": {"logger": Log},
        },
        note="while the progress line is shown, also in lockstep, the host's default loggers print nothing; "
        "files are written",
    ),
    row(
        "run_dir",
        {
            "a new one": RUN_DIR,
            "with merges": {**RUN_DIR, **MERGES, "max_metric_calls": 90},
            "one to resume from": {**RUN_DIR, "before": {"max_metric_calls": 50}},
            "resumed with other options": {
                **RUN_DIR,
                "before": {"cache_evaluation": False, "max_metric_calls": 50},
                "cache_evaluation": True,
                "module_selector": "all",
            },
        },
        note="the state is also saved when a candidate was found",
    ),
    row(
        "callbacks",
        {
            "one more": {"callbacks": lambda: [Callbacks()]},
            "composed": {"callbacks": lambda: [CompositeCallback([Callbacks(), Callbacks()])]},
            "one that changes the state": {"callbacks": lambda: [Adding()]},
            "one that raises": {"callbacks": lambda: [Raising()]},
        },
        note="they are told of one proposal after the other, in the order in which they ended",
        unchanged=("one more", "composed", "one that raises"),
    ),
    row("use_wandb", {"True": {"use_wandb": True}}),
    row("wandb_api_key", {"a key": {"use_wandb": True, "wandb_api_key": "key"}}),
    row("wandb_init_kwargs", {"a project": {"use_wandb": True, "wandb_init_kwargs": {"project": "mine"}}}),
    row("wandb_attach_existing", {"True": {"use_wandb": True, "wandb_attach_existing": True}}),
    row("use_mlflow", {"True": {"use_mlflow": True}, "beside W&B": {"use_mlflow": True, "use_wandb": True}}),
    row("mlflow_tracking_uri", {"a server": {"use_mlflow": True, "mlflow_tracking_uri": "http://localhost:1"}}),
    row("mlflow_experiment_name", {"a name": {"use_mlflow": True, "mlflow_experiment_name": "mine"}}),
    row("mlflow_attach_existing", {"True": {"use_mlflow": True, "mlflow_attach_existing": True}}),
    row("tracking_key_prefix", {"a prefix": {"use_wandb": True, "use_mlflow": True, "tracking_key_prefix": "gepa/"}}),
    row(
        "track_best_outputs",
        {
            "False": {"track_best_outputs": False},
            "True": {"track_best_outputs": True},
            "True, with a run_dir": {"track_best_outputs": True, **RUN_DIR},
        },
        unchanged=("True", "True, with a run_dir"),
    ),
    row(
        "display_progress_bar",
        {"False": {"display_progress_bar": False}, "True": {"display_progress_bar": True}},
        note="shown where the progress line is off; it counts what the host has been told",
        unchanged=("False",),
    ),
    row(
        "use_cloudpickle",
        {
            "False": {"use_cloudpickle": False, **RUN_DIR},
            "True": {"use_cloudpickle": True, "adapter": Unpicklable, **RUN_DIR},
            "False where it is needed": {"use_cloudpickle": False, "adapter": Unpicklable, **RUN_DIR},
        },
        unchanged=("False", "False where it is needed"),
    ),
    row(
        "cache_evaluation",
        {
            "False": {"cache_evaluation": False},
            "True": {"cache_evaluation": True},
            "with merges": {"cache_evaluation": True, **MERGES},
            "with batch_evaluate": several(cache_evaluation=True, adapter=Pairs),
            "resumed": {**RUN_DIR, "cache_evaluation": True, "before": {"max_metric_calls": 50}},
        },
        note="caches validations apart, since ids of both sets overlap, and pays for no example of a minibatch twice; "
        "what a state file brings along is dropped, with a log line",
        unchanged=("False",),
    ),
    row("seed", {"one of one's own": {"seed": 7}}),
    row(
        "raise_on_exception",
        {
            f"{name}, {what} raises": {"raise_on_exception": name == "True", **kwargs}
            for name in ("True", "False")
            for what, kwargs in RAISING.items()
        },
        unchanged=tuple(f"True, {what} raises" for what in RAISING),
    ),
    row(
        "val_evaluation_policy",
        {
            "None": {"val_evaluation_policy": None},
            "full_eval": {"val_evaluation_policy": "full_eval"},
            "an instance": {"val_evaluation_policy": FullEvaluationPolicy},
            "half of the examples": {"val_evaluation_policy": Halves},
            "half of the examples, merges": {"val_evaluation_policy": Halves, **MERGES},
            "the examples validated least": {"val_evaluation_policy": Rarest},
        },
        unchanged=("None", "full_eval", "an instance"),
    ),
    row(
        "acceptance_criterion",
        {
            "strict_improvement": {"acceptance_criterion": "strict_improvement"},
            "improvement_or_equal": {"acceptance_criterion": "improvement_or_equal"},
            "an instance": {"acceptance_criterion": StrictImprovementAcceptance},
            "of one's own": several(acceptance_criterion=Margin),
        },
        note="a text that is in the pool or being validated is not validated again: it is rejected as a duplicate",
        unchanged=("strict_improvement", "an instance"),
    ),
    row(
        "sampling_strategy",
        {
            "SingleMutationSampling": {"sampling_strategy": SingleMutationSampling},
            "SameParentSampling": {"sampling_strategy": lambda: SameParentSampling(2)},
            "IndependentSampling": {"sampling_strategy": lambda: IndependentSampling(3)},
            "PxNSampling": {"sampling_strategy": lambda: PxNSampling(2, 2)},
            "of one's own": {"sampling_strategy": Varying},
        },
        unchanged=("SingleMutationSampling",),
    ),
    row(
        "selection_strategy",
        {
            "AllImprovements": several(selection_strategy=AllImprovements),
            "BestImprovement": several(selection_strategy=BestImprovement),
            "TopKImprovements": several(selection_strategy=lambda: TopKImprovements(2), max_metric_calls=160),
            "the last one": several(selection_strategy=Last),
            "what the criterion would not": several(selection_strategy=Daring),
        },
        note="those of one sampling call wait for each other, and for nobody else",
        unchanged=("AllImprovements",),
    ),
    row(
        "reflection_strategy",
        {
            "stateless": {"reflection_strategy": lambda: StatelessReflectionLM(Reflection())},
            "stateful": {"reflection_strategy": Chain},
            "stateful, several proposals": several(reflection_strategy=Chain),
            "with reflect_many": several(reflection_strategy=Together),
        },
        note="a strategy of one's own is called one at a time unless reflection_concurrency says otherwise",
    ),
)
