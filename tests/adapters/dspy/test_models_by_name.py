"""gepa's own adapters that call models by name, with the litellm that dspy brings along."""

import json
import threading
from types import SimpleNamespace

import gepa
import pytest

from flashevolve_plugins import BackendError, Flash
from flashevolve_plugins.benchmarks import Landscape
from flashevolve_plugins.benchmarks.server import LatencyModel, ServerSettings, SimulatedServer

PATIENCE = 60.0


class Quiet:
    def log(self, message):
        """The console is not looked at."""


def optimize(adapter, train, val, seed_candidate, reflection_lm, executor=None, **options):
    return gepa.optimize(
        {"system_prompt": seed_candidate},
        trainset=train,
        valset=val,
        adapter=adapter,
        reflection_lm=reflection_lm,
        logger=Quiet(),
        executor=executor,
        **{"max_metric_calls": 120, **options},
    )


# -- AnyMathsAdapter, litellm.completion replaced -------------------------------------------------------------------


class Completion:
    """Solves a sum if the system prompt says how; in place of ``litellm.completion``."""

    def __init__(self, meet=0):
        self.lock = threading.Lock()
        self.calls = self.at_once = self.most_at_once = 0
        self.meet, self.together = meet, threading.Barrier(max(meet, 1))

    def __call__(self, *, messages, **options):
        with self.lock:
            self.calls += 1
            number = self.calls
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if number <= self.meet:
                self.together.wait(PATIENCE)
            return self.answer(messages[0]["content"], messages[-1]["content"], options)
        finally:
            with self.lock:
                self.at_once -= 1

    def answer(self, system, question, options):
        assert options["response_format"]["type"] == "json_object"
        kind = question.split()[0]
        right = f"know {kind}" in system
        content = json.dumps({"final_answer": "42" if right else "0", "solution_pad": "so it is"})
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=content))])


KINDS = ("sums", "roots", "primes", "angles")


def problems(count):
    return [
        {"input": f"{KINDS[each % 4]} {each}", "additional_context": {"kind": KINDS[each % 4]}, "answer": "42"}
        for each in range(count)
    ]


def learn(prompt):
    """One kind more than the prompt knew, of those that its feedback names."""
    known = {kind for kind in KINDS if f"know {kind}" in prompt}
    wrong = [kind for kind in KINDS if f"kind: {kind}" in prompt and kind not in known]
    return "```\n" + " ".join(f"know {kind}" for kind in sorted(known | set(wrong[:1]))) + "\n```"


@pytest.fixture
def anymaths(monkeypatch):
    from gepa.adapters.anymaths_adapter.anymaths_adapter import AnyMathsAdapter, litellm

    def run(executor, meet=0, **options):
        completion = Completion(meet)
        monkeypatch.setattr(litellm, "completion", completion)
        adapter = AnyMathsAdapter("openai/some-model", max_litellm_workers=5, **options)
        return optimize(adapter, problems(12), problems(8), "solve", learn, executor), completion

    return run


def test_anymaths_in_lockstep_is_the_host(anymaths):
    (host, theirs), (same, ours) = anymaths(None), anymaths(Flash(lockstep=True, progress=False))
    assert len(host.candidates) > 2
    assert (same.candidates, same.val_subscores, same.total_metric_calls, ours.calls) == (
        host.candidates, host.val_subscores, host.total_metric_calls, theirs.calls,
    )  # fmt: skip


def test_anymaths_works_example_by_example_in_as_many_slots_as_it_has_workers(anymaths):
    flash = Flash(progress=False, reflection_concurrency=4)
    result, completion = anymaths(flash, meet=5)
    assert completion.most_at_once == flash.last_run.slots["task"] == 5
    assert completion.calls == result.total_metric_calls <= 120
    assert len(result.candidates) > 2
    for candidate, scores in zip(result.candidates, result.val_subscores, strict=True):
        assert [scores[each] for each in range(8)] == [
            float(f"know {KINDS[each % 4]}" in candidate["system_prompt"]) for each in range(8)
        ]


def test_anymaths_asks_whether_its_ollama_is_there_before_anything_is_spent():
    from gepa.adapters.anymaths_adapter.anymaths_adapter import AnyMathsAdapter

    adapter = AnyMathsAdapter("ollama/some-model", api_base="http://127.0.0.1:9")
    with pytest.raises(BackendError, match="127.0.0.1:9"):
        optimize(adapter, problems(12), problems(8), "solve", learn, Flash(progress=False))


# -- DefaultAdapter, a server that speaks HTTP ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")  # litellm's way with pydantic
def test_the_default_adapter_on_a_server(monkeypatch):
    from gepa.adapters.default_adapter.default_adapter import DefaultAdapter, EvaluationResult

    landscape = Landscape(seed=3, missed=0.0, wrong_name=0.0)

    def rows(split, count):
        return [
            {"input": each.question, "additional_context": {}, "answer": ""}
            for each in landscape.examples(split, count)
        ]

    def grade(row, response):
        return EvaluationResult(*landscape.feedback(row["input"], response))

    with SimulatedServer(ServerSettings(landscape=landscape, latency=LatencyModel(time_scale=0))) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none needed")
        results, spent = [], []
        for executor in (None, Flash(progress=False)):
            before = server.metrics()
            adapter = DefaultAdapter("openai/simulated", evaluator=grade)
            task = rows("train", 12), rows("val", 10), "Answer.", "openai/simulated"
            results.append(optimize(adapter, *task, executor, max_metric_calls=200))
            spent.append(server.metrics()["vllm:request_success_total"] - before["vllm:request_success_total"])
    assert executor.last_run.slots == {"task": 10, "reflection": 10, "local": 1}
    for result, requests in zip(results, spent, strict=True):
        assert len(result.candidates) > 1
        assert max(result.val_aggregate_scores) > result.val_aggregate_scores[0]
        assert requests > result.total_metric_calls  # and one per reflection
    assert executor.last_run.spent == results[1].total_metric_calls <= 200
