"""What it takes to try one of gepa's own adapters: a model that echoes, data it can be scored on, and the trial."""

import threading

from gepa_checks import assert_same, check_serial_history
from gepa_task import ONE, WORDS, needs, score

from flashevolve_plugins import Flash

PATIENCE = 60.0  # seconds


class Echo:
    """A chat model that answers with its system prompt. Counts its calls, and on which threads they are made.

    Args:
        meet: which two calls wait for each other, counted from 1: they only end if they are made at once.
    """

    def __init__(self, meet=()):
        self.lock = threading.Lock()
        self.calls = self.at_once = self.most_at_once = 0
        self.threads = set()
        self._meet = meet
        self._meeting = threading.Barrier(2)

    def __call__(self, messages):
        with self.lock:
            self.calls += 1
            number = self.calls
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.threads.add(threading.get_ident())
        try:
            if number in self._meet:
                self._meeting.wait(PATIENCE)
            return self.answer(messages)
        finally:
            with self.lock:
                self.at_once -= 1

    def answer(self, messages):
        return messages[0]["content"]

    def batch_complete(self, requests, **_options):
        """As ``gepa.lm.LM`` has it."""
        return [self(messages) for messages in requests]


def data(numbers):
    """Examples as ``DefaultAdapter`` and those made after it want them."""
    return [{"input": f"case {each}", "additional_context": {}, "answer": answer(each)} for each in numbers]


def answer(number):
    return " ".join(sorted(WORDS[each] for each in needs(number)))


def grade(number, text):
    """How good a text is for an example."""
    return score(number, {"a": text})


TRAINSET, VALSET = range(12), range(100, 110)


def run_all(kit, make, meet, *, seed_candidate=ONE, calls=150, rows=data, **settings):
    """Try an adapter: lockstep is the host, and at once every result is what a whole batch gives.

    Args:
        kit: the fixture.
        make: from a model to an adapter.
        meet: as in ``Echo``, in the run with many slots.
        seed_candidate: the host's.
        calls: ``max_metric_calls``.
        rows: from numbers to examples.
        settings: of that run's ``Flash``.

    Returns:
        The concurrent run, with its model as ``model``.
    """
    task = {"trainset": rows(TRAINSET), "valset": rows(VALSET), "seed_candidate": seed_candidate, "calls": calls}
    host = kit.run(adapter=make(Echo()), **task)
    assert_same(host, kit.run(Flash(lockstep=True, progress=False), adapter=make(Echo()), **task))
    model = Echo(meet)
    flash = Flash(progress=False, check_connection=False, reflection_concurrency=4, **settings)
    run = kit.run(flash, adapter=make(model), **task)
    run.model, run.most_at_once, run.threads = model, model.most_at_once, set(model.threads)
    check_serial_history(run, threading.get_ident())
    assert run.result.total_metric_calls == run.last.spent <= calls
    assert len(run.result.candidates) > 1
    check_against_whole_batches(run, make(Echo()), task["valset"])
    assert threading.get_ident() not in run.threads
    return run


def check_against_whole_batches(run, adapter, valset):
    for candidate, scores in zip(run.result.candidates, run.result.val_subscores, strict=True):
        assert list(scores.values()) == adapter.evaluate(valset, candidate).scores
