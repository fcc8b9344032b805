"""Values of gepa's options that a user writes himself: adapters, loaders, samplers, selectors, policies, reflectors."""

import os
import random
import re
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace

from gepa.adapters.default_adapter.default_adapter import EvaluationResult
from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal
from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa.strategies.proposal_sampling import SingleMutationSampling
from gepa.strategies.proposal_selection import AllImprovements
from gepa.utils import FileStopper, SignalStopper
from gepa_task import WORDS, Batched, Named, Reflection, Words, needs

MEMORY = Path("/dev/shm")  # noqa: S108 - many times faster than a disk, where there is one
#: The run directory of every case that has one; emptied before each run.
FOLDER = (MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())) / f"flashevolve-matrix-{os.getpid()}"

# -- adapters ----------------------------------------------------------------------------------------------------------


class Pairs(Batched, Words):
    """Evaluates many (candidate, batch) pairs in one call."""


class Proposing(Words):
    """Writes the new texts itself, and at times none."""

    def propose_new_texts(self, candidate, dataset, components):
        return propose(candidate, dataset, components) if self.datasets % 4 else {}


class Forgetful(Words):
    """Captures no traces of every third batch."""

    flashevolve_evaluate = "batch"

    def evaluate(self, batch, candidate, capture_traces=False):
        traces = capture_traces and sum(batch) % 3 != 0
        return super().evaluate(batch, candidate, traces)


class Counting(Words):
    """Makes two metric calls for each example, and says so."""

    def evaluate(self, batch, candidate, capture_traces=False):
        evaluation = super().evaluate(batch, candidate, capture_traces)
        evaluation.num_metric_calls = 2 * len(batch)
        return evaluation


class Plain(Words):
    """Knows no objectives."""

    def evaluate(self, batch, candidate, capture_traces=False):
        evaluation = super().evaluate(batch, candidate, capture_traces)
        evaluation.objective_scores = None
        return evaluation


class Keeping(Words):
    """Has a state of its own in the host's state file."""

    restored = None

    def get_adapter_state(self):
        return {"datasets": self.datasets}

    def set_adapter_state(self, state):
        self.restored = dict(state)
        self.datasets = state.get("datasets", 0)


class Unpicklable(Words):
    """Has a state that only cloudpickle writes."""

    def get_adapter_state(self):
        return {"local": local()}


def local():
    """An object that plain pickle cannot write, since nobody could import its class."""

    class Local:
        def __repr__(self):
            return "Local()"

        def __eq__(self, other):
            return repr(self) == repr(other)

        def __hash__(self):
            return 0

    return Local()


class Slotted:
    """An adapter without an instance dictionary."""

    __slots__ = ("evaluate", "make_reflective_dataset", "propose_new_texts")

    flashevolve_evaluate = "example"

    def __init__(self):
        inner = Words()
        self.evaluate, self.make_reflective_dataset = inner.evaluate, inner.make_reflective_dataset
        self.propose_new_texts = None


def namespace():
    """An adapter that is no instance of a class of the user's."""
    inner = Words()
    return SimpleNamespace(
        evaluate=inner.evaluate, make_reflective_dataset=inner.make_reflective_dataset, propose_new_texts=None
    )


def raising(**errors):
    """An adapter whose calls of a hook raise where a function of their number says so."""

    def make():
        adapter = Words()
        adapter.errors, adapter.flashevolve_evaluate = errors, "batch"
        return adapter

    return make


# -- gepa's DefaultAdapter ---------------------------------------------------------------------------------------------


def questions(numbers):
    return [{"input": f"{each}", "additional_context": {}, "answer": WORDS[needs(each)[0]]} for each in numbers]


def echo(messages):
    """A task model that answers with the first words of its instruction."""
    return " ".join(messages[0]["content"].split()[:6])


def lenient(data, response):
    score = (1 + sum(WORDS[each] in response for each in needs(int(data["input"])))) / 4
    return EvaluationResult(score, f"{score}", {"score": score, "length": 1 / (1 + len(response))})


ASKED = {"trainset": questions(range(12)), "valset": questions(range(100, 110)), "seed_candidate": {"a": "start"}}

# -- data loaders ------------------------------------------------------------------------------------------------------


def named(numbers, prefix):
    return lambda: Named(numbers, prefix)


class Growing:
    """A data loader that has one more example after every third fetch."""

    def __init__(self, examples, more):
        self.items, self.more, self.fetched = list(examples), list(more), 0

    def all_ids(self):
        return list(range(len(self.items)))

    def fetch(self, ids):
        self.fetched += 1
        if self.fetched % 3 == 0 and self.more:
            self.items.append(self.more.pop(0))
        return [self.items[each] for each in ids]

    def __len__(self):
        return len(self.items)


# -- samplers and selectors --------------------------------------------------------------------------------------------


class Uneven:
    """A batch sampler that does not tell its size, and draws from a generator of its own."""

    def __init__(self):
        self.rng = random.Random(5)

    def next_minibatch_ids(self, loader, state):
        return self.rng.sample(list(loader.all_ids()), 2 + state.i % 3)


class Newest:
    """A candidate selector that reads the iteration, the trace and the budget."""

    def select_candidate_idx(self, state):
        back = (state.i + state.full_program_trace[-1]["i"] + state.total_num_evals) % 2
        return max(0, len(state.program_candidates) - 1 - back)


class Wordy:
    """A component selector with a state of its own."""

    def __init__(self):
        self.asked = 0

    def __call__(self, state, trajectories, scores, index, candidate):
        self.asked += 1
        return [sorted(candidate)[self.asked % len(candidate)]]


class Failing(Wordy):
    """A component selector that raises at times."""

    def __call__(self, state, trajectories, scores, index, candidate):
        names = super().__call__(state, trajectories, scores, index, candidate)
        if self.asked % 5 == 3:
            raise RuntimeError(f"selection {self.asked} fails")
        return names


class Varying(SingleMutationSampling):
    """Asks for none, one or two proposals, as the iteration says."""

    def sample_tasks(self, state, candidate_selector, batch_sampler, trainset):
        one = super().sample_tasks
        return [task for _ in range(state.i % 3) for task in one(state, candidate_selector, batch_sampler, trainset)]


class Last(AllImprovements):
    """The last of what passes."""

    def select(self, proposals, state, acceptance_criterion):
        return super().select(proposals, state, acceptance_criterion)[-1:]


class Daring(AllImprovements):
    """Takes at times what the criterion would not, and once something that was not proposed."""

    def select(self, proposals, state, acceptance_criterion):
        if state.i % 4 == 1:
            return proposals[:1]
        if state.i == 2:
            return [SimpleNamespace(candidate={})]
        return super().select(proposals, state, acceptance_criterion)


class Margin:
    """An acceptance criterion that reads everything it gets, and says why not."""

    def should_accept(self, proposal, state):
        iteration, task = proposal.metadata["proposal_id"].split("-")
        known = int(iteration) == state.i + 1 and int(task) >= 0 and "prompt:" in "".join(proposal.metadata)
        better = sum(proposal.eval_after.scores) > sum(proposal.eval_before.scores)
        return known and (better or len(state.program_candidates) % 3 == 0)

    def reject_reason(self, proposal, state):
        return f"{sum(proposal.subsample_scores_after)} does not do after {len(state.program_candidates)} candidates"


# -- validation policies -----------------------------------------------------------------------------------------------


class Halves(FullEvaluationPolicy):
    """Validates on a half only, the other half each time."""

    def get_eval_batch(self, loader, state, target_program_idx=None):
        return list(loader.all_ids())[len(state.program_candidates) % 2 :: 2]


class Rarest(FullEvaluationPolicy):
    """Validates on the examples that were validated least, the seed on four of them."""

    def get_seed_eval_batch(self, loader):
        return list(loader.all_ids())[:4]

    def get_eval_batch(self, loader, state, target_program_idx=None):
        seen = [each for scores in state.prog_candidate_val_subscores for each in scores]
        count = 3 + state.full_program_trace[-1]["i"] % 3
        return sorted(loader.all_ids(), key=lambda each: (seen.count(each), each))[:count]


# -- reflection --------------------------------------------------------------------------------------------------------


class Batching(Reflection):
    """A reflection model that answers many prompts in one call."""

    def batch_complete(self, messages_list):
        return [self(messages[0]["content"]) for messages in messages_list]


class Unreliable(Reflection):
    """A reflection model that raises at times."""

    def __init__(self):
        super().__init__()
        self.errors = lambda number: number % 5 in {1, 2}


class Priced(Reflection):
    """A reflection model that knows its cost."""

    @property
    def total_cost(self):
        return 0.1 * self.calls


def propose(candidate, dataset, components):
    """New texts by a function of the user's."""
    return {name: f"{candidate[name]} {WORDS[len(candidate[name]) % 5]}" for name in components}


def nothing_at_times(candidate, dataset, components):
    return propose(candidate, dataset, components) if len(candidate[components[0]]) % 4 else {}


class Chain:
    """A stateful reflector: each reflection hands over to a successor that knows how many there were."""

    def __init__(self, count=0):
        self.count = count

    @property
    def total_cost(self):
        return 0.1 * self.count

    def reflect(self, candidate, dataset, components):
        words = {name: f"{candidate[name].split()[-1]} w{self.count % 5} ant bee" for name in components}
        return ReflectionProposal(words, metadata={"count": self.count, "prompt:x": "own"}), Chain(self.count + 1)


class Together:
    """A reflector that learns from all reflections of one sampling call together."""

    def reflect(self, candidate, dataset, components):
        return self.reflect_many([(candidate, dataset, components)])[0]

    def reflect_many(self, jobs):
        words = sorted({each for candidate, _, names in jobs for name in names for each in candidate[name].split()})
        texts = [
            {name: " ".join([*words[-4:], WORDS[(len(jobs) + number) % 12]]) for name in names}
            for number, (_, _, names) in enumerate(jobs)
        ]
        return [(ReflectionProposal(each, metadata={"together": len(jobs)}), self) for each in texts]


# -- stoppers ----------------------------------------------------------------------------------------------------------


class Touching(FileStopper):
    """Somebody makes the stop file while it is asked for the fourth time."""

    def __init__(self):
        super().__init__(str(FOLDER / "stop"))
        self.asked = 0

    def __call__(self, gepa_state):
        self.asked += 1
        if self.asked == 4:
            FOLDER.mkdir(exist_ok=True)
            Path(self.stop_file_path).touch()
        return super().__call__(gepa_state)


class Signalled(SignalStopper):
    """A signal comes while it is asked for the fourth time."""

    def __init__(self):
        super().__init__([signal.SIGUSR1])
        self.asked = 0

    def __call__(self, gepa_state):
        self.asked += 1
        if self.asked == 4:
            signal.raise_signal(signal.SIGUSR1)
            self.cleanup()
        return super().__call__(gepa_state)


class Late:
    """A stopper that reads everything the state says."""

    def __call__(self, state):
        return state.i >= 3 and len(state.program_candidates) > 1 and state.total_num_evals > 50


# -- callbacks ---------------------------------------------------------------------------------------------------------


class Adding:
    """A callback that has one method, and changes what the host hands it."""

    def on_iteration_end(self, event):
        event["state"].adapter_state = {"iteration": event["iteration"]}


class Raising:
    """A callback that raises whatever it is told."""

    def on_iteration_start(self, event):
        raise RuntimeError(f"iteration {event['iteration']}")

    on_candidate_accepted = on_candidate_rejected = on_budget_updated = on_iteration_end = on_iteration_start


def host_files():
    """What is in the run directory, without what flash alone can read or keeps beside the host's own."""
    return [each for each in sorted(FOLDER.rglob("*")) if not re.match(r"best\.json|flashevolve\.", each.name)]
