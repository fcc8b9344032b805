"""The rows of gepa.optimize_anything: its parameters, and the fields of its configuration's parts."""

from functools import partial

from anything_task import BatchEvaluator, Evaluator, Printing, Refiner, Scoring, Warm, chance, line
from gepa.core.callbacks import CompositeCallback
from gepa.logging.logger import Logger
from gepa.strategies.acceptance import StrictImprovementAcceptance
from gepa.strategies.batch_sampler import EpochShuffledBatchSampler
from gepa.strategies.candidate_selector import EpsilonGreedyCandidateSelector
from gepa.strategies.component_selector import AllReflectionComponentSelector
from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa.strategies.proposal_sampling import IndependentSampling, PxNSampling, SameParentSampling
from gepa.strategies.proposal_selection import BestImprovement, TopKImprovements
from gepa.utils import MaxCandidateProposalsStopper, NoImprovementStopper, ScoreThresholdStopper
from gepa_records import Callbacks, Log
from gepa_task import ONE, TWO, Named
from gepa_values import (
    FOLDER,
    Batching,
    Chain,
    Halves,
    Last,
    Late,
    Margin,
    Newest,
    Priced,
    Rarest,
    Together,
    Uneven,
    Unreliable,
    Wordy,
    nothing_at_times,
    propose,
)
from options import Option

row = partial(Option, "optimize_anything")

SINGLE = {"seed_candidate": "start", "dataset": None, "valset": None}
RUN_DIR = {"run_dir": str(FOLDER)}
MERGES = {"max_merge_invocations": 20, "calls": 150}
BATCH = {"evaluator": None, "batch_evaluator": BatchEvaluator}
REFINER = {"refiner_lm": Refiner, "max_refinements": 1}
SHORT = "Say it shorter.\n```\n<curr_param>\n```\n<side_info>"
ALONE = "it is called one at a time unless reflection_concurrency says otherwise"


def several(**options):
    return {"sampling_strategy": lambda: PxNSampling(2, 2), "calls": 90, **options}


def fails(candidate, example):
    return chance("fails", line(candidate, example)).random() < 0.2


def failing(kind=Evaluator):
    return lambda: kind(fails=fails)


FAILING_BATCH = {"evaluator": None, "batch_evaluator": failing(BatchEvaluator)}


class Legacy(BatchEvaluator):
    """Returns scores, pairs, and triples of which the middle is not used."""

    def found(self, candidate, example):
        it, info = super().found(candidate, example)
        return [it, (it, info), (it, "unused", info)][len(line(candidate, example)) % 3]


class WarmBatch(BatchEvaluator):
    """Asks for the best evaluations of every pair's example so far."""

    def __call__(self, pairs, opt_states):
        found = super().__call__(pairs)
        return [
            (it + 0.01 * len(best.best_example_evals), info) for (it, info), best in zip(found, opt_states, strict=True)
        ]


class Specific(Evaluator):
    """Tells more of each component, scores included."""

    def found(self, candidate, example):
        it, info = super().found(candidate, example)
        return it, {**info, "a_specific_info": {"scores": {"length": 1 / (1 + len(candidate["a"]))}, "Feedback": "a"}}


class Keywords(Evaluator):
    """Takes whatever it is given."""

    def __call__(self, candidate, **words):
        assert set(words) == {"example", "opt_state"}
        return super().__call__(candidate, words["example"])


OPTIONS = (
    row(
        "seed_candidate",
        {
            "a text": {"seed_candidate": "start"},
            "one component": {"seed_candidate": ONE},
            "two components": {"seed_candidate": TWO},
            "None: seedless": {"seed_candidate": None, "objective": "The right words."},
            "None, single task": {**SINGLE, "seed_candidate": None, "objective": "The right words."},
        },
        unchanged=("one component",),
    ),
    row(
        "evaluator",
        {
            "a score and what else is known": {"evaluator": Evaluator},
            "a score alone": {"evaluator": Scoring},
            "scores of each component": {"evaluator": Specific},
            "with opt_state": {"evaluator": Warm, "parallel": False},
            "that takes any keyword": {"evaluator": Keywords},
            "of a single task": {**SINGLE, "evaluator": Evaluator},
        },
        note="several threads call it at once, of a single task too, unless parallel=False",
        unchanged=("a score and what else is known", "that takes any keyword", "of a single task"),
    ),
    row(
        "batch_evaluator",
        {
            "alone": BATCH,
            "beside evaluator": {"batch_evaluator": BatchEvaluator},
            "several proposals": several(**BATCH),
            "several proposals, a text": several(**BATCH, seed_candidate="start"),
            "of a single task": {**SINGLE, **BATCH},
            "results of every form": {**BATCH, "batch_evaluator": Legacy},
            "with opt_states": {**BATCH, "batch_evaluator": WarmBatch},
            "alone, with a refiner": {**BATCH, **REFINER},
            "alone, with a refiner, one at a time": {**BATCH, **REFINER, "parallel": False},
            "beside evaluator, with a refiner": {"batch_evaluator": BatchEvaluator, **REFINER},
            "with a cache": several(**BATCH, cache_evaluation=True),
        },
        note="one call at a time, with all pairs of a stage, unless Flash(evaluate='batch') says otherwise",
        unchanged=("beside evaluator, with a refiner",),
    ),
    row(
        "dataset",
        {
            "None: single task": SINGLE,
            "alone: multi task": {"dataset": list(range(8)), "valset": None},
            "shorter than a minibatch": {"dataset": [1, 2]},
            "a DataLoader with ids of its own": {"dataset": lambda: Named(range(12), "t")},
        },
    ),
    row("valset", {"a list": {"valset": list(range(200, 204))}, "None: the dataset": {"valset": None}}),
    row(
        "objective",
        {
            "a text": {"objective": "The right words."},
            "and a background": {"objective": "Words.", "background": "Few."},
        },
    ),
    row("background", {"a text": {"background": "Few words."}}),
    row("config", {"with parts as dicts": {"configure": lambda: as_dicts}}, unchanged=("with parts as dicts",)),
    row("GEPAConfig.engine", {"one of one's own": {"seed": 7}}),
    row("GEPAConfig.reflection", {"one of one's own": {"reflection_minibatch_size": 2}}),
    row("GEPAConfig.tracking", {"one of one's own": {"use_wandb": True}}),
    row(
        "GEPAConfig.merge",
        {"of two components": {**MERGES, "seed_candidate": TWO}, "several proposals": {**several(), **MERGES}},
        note="a merge works on the state at its offer; of several in flight, those that the schedule allows are tried",
    ),
    row(
        "GEPAConfig.refiner",
        {
            "one refinement": REFINER,
            "of a text": {**REFINER, "seed_candidate": "start"},
            "single task": {**SINGLE, **REFINER, "calls": 150},
        },
    ),
    row(
        "GEPAConfig.stop_callbacks",
        {
            "MaxCandidateProposalsStopper": {
                "stop_callbacks": lambda: [MaxCandidateProposalsStopper(7)],
                "calls": None,
            },
            "ScoreThresholdStopper": {"stop_callbacks": lambda: ScoreThresholdStopper(0.45)},
            "NoImprovementStopper": {"stop_callbacks": lambda: NoImprovementStopper(3)},
            "of one's own": {"stop_callbacks": lambda: [Late()], "calls": 120},
        },
        note="each is asked once per offer, with live counts; proposals in flight when it says stop are finished",
    ),
    row(
        "GEPAConfig.callbacks",
        {
            "one more": {"callbacks": lambda: [Callbacks()]},
            "composed": {"callbacks": lambda: [CompositeCallback([Callbacks(), Callbacks()])]},
        },
        note="they are told of one proposal after the other, in the order in which they ended",
        unchanged=("one more", "composed"),
    ),
)


def as_dicts(config):
    """The same configuration as a file would give it."""
    parts = {name: vars(getattr(config, name)) for name in ("engine", "reflection", "tracking")}
    return type(config)(**parts, callbacks=config.callbacks)


ENGINE = (
    row(
        "EngineConfig.run_dir",
        {
            "a new one": RUN_DIR,
            "with a cache": {**RUN_DIR, "cache_evaluation": True},
            "one to resume from": {**RUN_DIR, "before": {"calls": 40}, "calls": 90},
        },
        note="the state is also saved when a candidate was found",
    ),
    row("EngineConfig.seed", {"one of one's own": {"seed": 7}}),
    row(
        "EngineConfig.display_progress_bar",
        {"True": {"display_progress_bar": True}},
        note="shown where the progress line is off; it counts what the host has been told",
    ),
    row(
        "EngineConfig.raise_on_exception",
        {
            "False": {"raise_on_exception": False, "evaluator": failing()},
            "False, batch_evaluator": {
                **BATCH,
                "raise_on_exception": False,
                "batch_evaluator": failing(BatchEvaluator),
            },
            "False, batch_evaluator and a cache": {
                **FAILING_BATCH,
                "raise_on_exception": False,
                "cache_evaluation": True,
            },
            "False, with a refiner": {**REFINER, "raise_on_exception": False, "evaluator": failing()},
        },
    ),
    row(
        "EngineConfig.raise_on_exception",
        {
            "True": {"raise_on_exception": True, "evaluator": failing(), "parallel": False},
            "True, batch_evaluator": {**FAILING_BATCH, "raise_on_exception": True},
        },
        unchanged=("True", "True, batch_evaluator"),
    ),
    row("EngineConfig.use_cloudpickle", {"True": {"use_cloudpickle": True, **RUN_DIR}}),
    row(
        "EngineConfig.track_best_outputs",
        {"False": {"track_best_outputs": False}, "True": {"track_best_outputs": True}},
        unchanged=("True",),
    ),
    row(
        "EngineConfig.max_metric_calls",
        {"an overshoot": {"max_metric_calls": 41}, "a long run": {"max_metric_calls": 150}},
        note="never passed; in lockstep the host's overshoot is kept",
    ),
    row(
        "EngineConfig.max_metric_calls",
        {"less than one proposal needs": {"max_metric_calls": 15}},
        refused="cannot pay for the seed's validation",
    ),
    row("EngineConfig.max_candidate_proposals", {"5": {"max_candidate_proposals": 5, "calls": 90}}),
    row(
        "EngineConfig.max_reflection_cost",
        {
            "of a model that knows its cost": {"reflection_lm": Priced, "max_reflection_cost": 0.45, "calls": 90},
            "never reached": {"max_reflection_cost": 1.0},
        },
        note="reflections in flight when the cost is reached are finished, so it is passed by what they cost",
        unchanged=("never reached",),
    ),
    row(
        "EngineConfig.val_evaluation_policy",
        {
            "full_eval": {"val_evaluation_policy": "full_eval"},
            "an instance": {"val_evaluation_policy": FullEvaluationPolicy},
            "half of the examples": {"val_evaluation_policy": Halves},
            "the examples validated least": {"val_evaluation_policy": Rarest},
        },
        unchanged=("full_eval", "an instance"),
    ),
    row(
        "EngineConfig.candidate_selection_strategy",
        {
            "pareto": {"candidate_selection_strategy": "pareto"},
            "current_best": {"candidate_selection_strategy": "current_best"},
            "epsilon_greedy": {"candidate_selection_strategy": "epsilon_greedy"},
            "top_k_pareto": {"candidate_selection_strategy": "top_k_pareto", "calls": 200},
            "an instance": {"candidate_selection_strategy": lambda: EpsilonGreedyCandidateSelector(0.5, None)},
            "of one's own": {"candidate_selection_strategy": Newest},
        },
        unchanged=("pareto",),
    ),
    row(
        "EngineConfig.frontier_type",
        {name: {"frontier_type": name, "calls": 150} for name in ("instance", "objective", "hybrid", "cartesian")},
        unchanged=("hybrid",),
    ),
    row(
        "EngineConfig.acceptance_criterion",
        {
            "strict_improvement": {"acceptance_criterion": "strict_improvement"},
            "improvement_or_equal": {"acceptance_criterion": "improvement_or_equal"},
            "an instance": {"acceptance_criterion": StrictImprovementAcceptance},
            "of one's own": {"acceptance_criterion": Margin, "calls": 100},
        },
        note="a text that is in the pool or being validated is not validated again: it is rejected as a duplicate",
        unchanged=("strict_improvement", "an instance"),
    ),
    row(
        "EngineConfig.parallel",
        {
            "True": {"parallel": True},
            "False": {"parallel": False},
            "False, several proposals": several(parallel=False),
            "False, with a refiner": {**REFINER, "parallel": False},
        },
        note="True: example by example, also those of several candidates; False: one batch at a time, while everything "
        "else overlaps",
        unchanged=("True", "False", "False, several proposals", "False, with a refiner"),
    ),
    row(
        "EngineConfig.max_workers",
        {"2": {"max_workers": 2}, "None": {"max_workers": None}},
        note="the slots, unless max_concurrency says otherwise; 32 for None",
        unchanged=("2", "None"),
    ),
    row(
        "EngineConfig.cache_evaluation",
        {
            "True": {"cache_evaluation": True, "valset": None},
            "single task": {**SINGLE, "cache_evaluation": True},
            "with a refiner": {**REFINER, "cache_evaluation": True, "valset": None},
        },
        note="validations reuse what minibatches found only where both have the same examples, whose ids else overlap",
    ),
    row(
        "EngineConfig.cache_evaluation_storage",
        {
            "memory": {"cache_evaluation": True, **RUN_DIR, "cache_evaluation_storage": "memory"},
            "disk": {"cache_evaluation": True, **RUN_DIR, "cache_evaluation_storage": "disk"},
            "disk, resumed": {
                "cache_evaluation": True,
                **RUN_DIR,
                "cache_evaluation_storage": "disk",
                "before": {"calls": 40},
                "calls": 90,
            },
        },
        unchanged=("disk", "disk, resumed"),
    ),
    row(
        "EngineConfig.best_example_evals_k",
        {"2": {"best_example_evals_k": 2, "evaluator": Warm, "parallel": False}},
        note="an evaluation is given what had ended when it began",
    ),
    row("EngineConfig.capture_stdio", {"True": {"capture_stdio": True, "evaluator": Printing, "parallel": False}}),
    row(
        "EngineConfig.sampling_strategy",
        {
            "SameParentSampling": {"sampling_strategy": lambda: SameParentSampling(2)},
            "IndependentSampling": {"sampling_strategy": lambda: IndependentSampling(3)},
            "PxNSampling": {"sampling_strategy": lambda: PxNSampling(2, 2), "calls": 90},
        },
    ),
    row(
        "EngineConfig.selection_strategy",
        {
            "BestImprovement": several(selection_strategy=BestImprovement),
            "TopKImprovements": several(selection_strategy=lambda: TopKImprovements(1)),
            "the last one": several(selection_strategy=Last),
        },
        note="those of one sampling call wait for each other, and for nobody else",
    ),
)

REFLECTION = (
    row("ReflectionConfig.skip_perfect_score", {"True": {"skip_perfect_score": True, "perfect_score": 0.5}}),
    row("ReflectionConfig.perfect_score", {"0.5": {"skip_perfect_score": True, "perfect_score": 0.5}}),
    row(
        "ReflectionConfig.reflection_strategy",
        {
            "stateful": {"reflection_strategy": Chain},
            "with reflect_many": several(reflection_strategy=Together),
        },
        note="a strategy of one's own is called one at a time unless reflection_concurrency says otherwise",
    ),
    row(
        "ReflectionConfig.batch_sampler",
        {
            "epoch_shuffled": {"batch_sampler": "epoch_shuffled"},
            "an instance": {"batch_sampler": lambda: EpochShuffledBatchSampler(2)},
            "of one's own": {"batch_sampler": Uneven},
        },
        unchanged=("epoch_shuffled",),
    ),
    row("ReflectionConfig.reflection_minibatch_size", {"1": {"reflection_minibatch_size": 1}}),
    row(
        "ReflectionConfig.module_selector",
        {
            "round_robin": {"module_selector": "round_robin", "seed_candidate": TWO},
            "all": {"module_selector": "all", "seed_candidate": TWO},
            "an instance": {"module_selector": AllReflectionComponentSelector, "seed_candidate": TWO},
            "of one's own": {"module_selector": Wordy, "seed_candidate": TWO},
        },
        unchanged=("round_robin",),
    ),
    row(
        "ReflectionConfig.reflection_lm",
        {
            "a model's name": {"reflection_lm": "fake/reflection"},
            "with batch_complete": several(reflection_lm=Batching),
            "that raises at times": several(reflection_lm=Unreliable),
        },
        note=f"of a function, {ALONE}; batch_complete is not used: each prompt is a call of its own",
    ),
    row(
        "ReflectionConfig.reflection_lm_kwargs",
        {"temperature": {"reflection_lm": "fake/reflection", "reflection_lm_kwargs": {"temperature": 0.5}}},
    ),
    row(
        "ReflectionConfig.reflection_prompt_template",
        {
            "a text": {"reflection_prompt_template": SHORT},
            "one per component": {"reflection_prompt_template": {"a": SHORT}},
        },
    ),
    row(
        "ReflectionConfig.custom_candidate_proposer",
        {
            "a function": {"custom_candidate_proposer": lambda: propose},
            "that proposes nothing at times": {"custom_candidate_proposer": lambda: nothing_at_times},
        },
        note=ALONE,
    ),
)

MERGE = (
    row("MergeConfig.max_merge_invocations", {"1": {**MERGES, "max_merge_invocations": 1, "seed_candidate": TWO}}),
    row(
        "MergeConfig.merge_val_overlap_floor",
        {"2": {**MERGES, "merge_val_overlap_floor": 2, "seed_candidate": TWO, "val_evaluation_policy": Halves}},
    ),
)

REFINE = (
    row(
        "RefinerConfig.refiner_lm",
        {"a function": REFINER, "None: the reflection's": {"refiner_lm": None, "max_refinements": 1}},
        note="called with its evaluation, so that it may run beside a reflection",
        unchanged=("None: the reflection's",),
    ),
    row(
        "RefinerConfig.max_refinements",
        {"0": {**REFINER, "max_refinements": 0}, "3": {**REFINER, "max_refinements": 3}},
        note="a minibatch reserves 1 + max_refinements calls per example; a validation counts one, as by the host",
    ),
)

TRACKING = (
    row(
        "TrackingConfig.logger",
        {
            "None": {"logger": None},
            "None, with a run_dir": {"logger": None, **RUN_DIR},
            "Logger": {"logger": lambda: Logger(str(FOLDER / "mine.txt")), **RUN_DIR},
            "of one's own": {"logger": Log},
        },
        note="while the progress line is shown, also in lockstep, the host's default loggers print nothing; "
        "files are written",
        unchanged=("of one's own",),
    ),
    row("TrackingConfig.use_wandb", {"True": {"use_wandb": True}}),
    row("TrackingConfig.wandb_api_key", {"a key": {"use_wandb": True, "wandb_api_key": "key"}}),
    row("TrackingConfig.wandb_init_kwargs", {"a project": {"use_wandb": True, "wandb_init_kwargs": {"project": "it"}}}),
    row("TrackingConfig.wandb_attach_existing", {"True": {"use_wandb": True, "wandb_attach_existing": True}}),
    row("TrackingConfig.wandb_step_metric", {"a name": {"use_wandb": True, "wandb_step_metric": "gepa/iteration"}}),
    row("TrackingConfig.use_mlflow", {"True": {"use_mlflow": True}}),
    row(
        "TrackingConfig.mlflow_tracking_uri",
        {"a server": {"use_mlflow": True, "mlflow_tracking_uri": "http://localhost:1"}},
    ),
    row("TrackingConfig.mlflow_experiment_name", {"a name": {"use_mlflow": True, "mlflow_experiment_name": "mine"}}),
    row("TrackingConfig.mlflow_attach_existing", {"True": {"use_mlflow": True, "mlflow_attach_existing": True}}),
    row("TrackingConfig.key_prefix", {"a prefix": {"use_wandb": True, "use_mlflow": True, "key_prefix": "gepa/"}}),
)

OPTIONS += ENGINE + REFLECTION + MERGE + REFINE + TRACKING
