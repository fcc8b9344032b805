"""gepa's own adapters that need nothing but gepa: what each is declared for, and that it works."""

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from gepa.adapters.default_adapter.default_adapter import DefaultAdapter, EvaluationResult
from gepa.adapters.generic_rag_adapter import GenericRAGAdapter
from gepa.adapters.generic_rag_adapter.vector_store_interface import VectorStoreInterface
from gepa_adapters import Echo, answer, data, grade, run_all
from gepa_task import WORDS

from flashevolve_plugins import Flash, UsageError, _governor
from flashevolve_plugins.adapters.gepa.evaluation import evaluator_for
from flashevolve_plugins.adapters.gepa.shipped import SHIPPED, declare_shipped

BY_NAME = "some/model"
ONE_BATCH = "{} is called one batch at a time: pass Flash(evaluate='example') if several threads may call it at once."


@pytest.fixture(autouse=True, scope="module")
def declared():
    declare_shipped()


def evaluate(row, response):
    value = grade(int(row["input"].split()[1]), response)
    return EvaluationResult(value, f"{value:.2f}", {"score": value, "length": float(len(response))})


def default(model, name=BY_NAME, kind=DefaultAdapter):
    adapter = kind(name, evaluator=evaluate)
    adapter._lm = model  # what it makes of a model's name
    return adapter


# -- DefaultAdapter -------------------------------------------------------------------------------------------------


def test_the_default_adapter_with_a_model_s_name_works_example_by_example(kit, caplog):
    run = run_all(kit, default, meet=(1, 2), max_concurrency=4)
    assert 2 <= run.most_at_once <= 4
    assert caplog.messages == []


def test_the_default_adapter_s_own_number_of_workers_is_the_number_of_slots(kit):
    run = kit.run(kit.flash(), adapter=default(Echo()), trainset=data(range(12)), valset=data(range(8)))
    assert run.last.slots["task"] == 10


def test_the_default_adapter_with_a_function_works_one_batch_at_a_time_and_on_one_thread(kit, caplog):
    run = run_all(kit, lambda model: DefaultAdapter(model, evaluator=evaluate), meet=())
    assert run.most_at_once == 1
    assert len(run.threads) == 1
    assert caplog.messages == [ONE_BATCH.format("DefaultAdapter with a function as its model")]


def test_the_default_adapter_with_a_function_works_example_by_example_if_the_run_says_so(kit, caplog):
    run = run_all(kit, lambda model: DefaultAdapter(model, evaluator=evaluate), meet=(1, 2), evaluate="example")
    assert run.most_at_once >= 2
    assert caplog.messages == []


def test_a_batch_in_which_only_some_examples_have_objective_scores_is_refused_as_by_the_host(kit):
    def uneven(row, response):
        result = evaluate(row, response)
        return result if row["input"] == "case 3" else result._replace(objective_scores=None)

    errors = []
    for executor in (None, kit.flash(max_concurrency=4)):
        adapter = default(Echo())
        adapter.evaluator = uneven
        run = kit.run(executor, adapter=adapter, trainset=data(range(12)), valset=data(range(8)), catch=True)
        errors.append((type(run.error), str(run.error)))
    assert errors == [(ValueError, "Objective scores must either be all None or all not None.")] * 2


# -- GenericRAGAdapter ----------------------------------------------------------------------------------------------


class Store(VectorStoreInterface):
    """Documents in memory, one per word; the nearest are those that share most letters with the query."""

    def similarity_search(self, query, k=5, filters=None):
        found = sorted(WORDS, key=lambda word: (-len(set(word) & set(query)), word))[:k]
        return [{"content": each, "metadata": {"doc_id": each}, "score": 1.0} for each in found]

    def vector_search(self, query_vector, k=5, filters=None):
        raise NotImplementedError

    def get_collection_info(self):
        return {"vector_store_type": "memory", "document_count": len(WORDS)}


def questions(numbers):
    return [
        {
            "query": f"{answer(each)}?",
            "ground_truth_answer": answer(each),
            "relevant_doc_ids": answer(each).split(),
            "metadata": {},
        }
        for each in numbers
    ]


RAG = {"seed_candidate": {"answer_generation": "start"}, "rows": questions}


def test_the_rag_adapter_works_one_batch_at_a_time_since_its_store_and_model_are_the_user_s(kit, caplog):
    run = run_all(kit, lambda model: GenericRAGAdapter(Store(), model), meet=(), **RAG)
    assert run.most_at_once == 1
    assert len(run.threads) == 1
    assert caplog.messages == [ONE_BATCH.format("GenericRAGAdapter, with a store and a model of yours,")]


@pytest.mark.parametrize("way", ["example", "batch"])
def test_the_rag_adapter_works_at_once_if_the_run_says_so(kit, way):
    meet = (1, 2) if way == "example" else (11, 12)  # the seed is one batch of ten
    run = run_all(kit, lambda model: GenericRAGAdapter(Store(), model), meet=meet, evaluate=way, **RAG)
    assert run.most_at_once >= 2


@pytest.mark.parametrize("place", ["the model", "a client", "the store"])
def test_a_rag_example_whose_server_fails_is_tried_again_and_not_scored(kit, monkeypatch, place):
    monkeypatch.setattr(_governor, "FIRST_DELAY", 0.01)
    raised = []

    def fail():
        if len(raised) < 3:
            raised.append(1)
            raise ConnectionResetError("reset")

    class Failing(Echo):
        def answer(self, messages):
            if place != "the store":
                fail()
            return super().answer(messages)

    class FailingStore(Store):
        def similarity_search(self, query, k=5, filters=None):
            if place == "the store":
                fail()
            return super().similarity_search(query, k, filters)

    class Client:
        """As litellm's, with a method instead of a call."""

        def __init__(self, model):
            self.model = model

        def completion(self, messages):
            return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=self.model(messages)))])

    task = {
        "trainset": questions(range(12)),
        "valset": questions(range(100, 110)),
        "seed_candidate": RAG["seed_candidate"],
    }
    made = Client if place == "a client" else (lambda model: model)
    flash = Flash(progress=False, reflection_concurrency=4)
    run = kit.run(flash, adapter=GenericRAGAdapter(FailingStore(), made(Failing())), **task)
    undisturbed = kit.run(Flash(progress=False), adapter=GenericRAGAdapter(Store(), Echo()), **task)
    assert run.result.val_subscores[0] == undisturbed.result.val_subscores[0]
    assert len(raised) == flash.last_run.retries == 3


# -- what is matched ------------------------------------------------------------------------------------------------


def test_no_adapter_is_imported_that_the_user_has_not_imported():
    program = (
        "import sys, gepa\n"
        "adapters = lambda: {each for each in sys.modules if each.startswith('gepa.adapters')}\n"
        "before = adapters()\n"
        "from flashevolve_plugins.adapters.gepa.evaluation import evaluator_for\n"
        "from flashevolve_plugins.adapters.gepa.shipped import declare_shipped\n"
        "declare_shipped()\n"
        "print(evaluator_for(object(), 'batch').granularity, sorted(adapters() - before))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "batch []"


def test_every_declared_adapter_is_where_it_is_looked_for():
    import gepa.adapters

    for module, name in SHIPPED:
        file = Path(gepa.adapters.__path__[0], *module.split(".")).with_suffix(".py")
        assert f"\nclass {name}(" in file.read_text("utf-8"), file


def test_a_subclass_counts_as_gepa_s_own_unless_it_evaluates_in_its_own_way(kit):
    class Same(DefaultAdapter):
        def make_reflective_dataset(self, *arguments):
            return super().make_reflective_dataset(*arguments)

    class Own(DefaultAdapter):
        def evaluate(self, *arguments, **words):
            return super().evaluate(*arguments, **words)

    class Batches(DefaultAdapter):
        def batch_evaluate(self, items):
            return [self.evaluate(batch, candidate, capture_traces=True) for candidate, batch in items]

    class Says(DefaultAdapter):
        flashevolve_evaluate = "batch"

    on_itself = default(Echo())
    on_itself.evaluate = on_itself.evaluate
    adapters = [*(default(Echo(), kind=kind) for kind in (DefaultAdapter, Same, Own, Batches, Says)), on_itself]
    found = [evaluator_for(each, None).granularity for each in adapters]
    assert found == ["example", "example", "serial", "serial", "batch", "serial"]


def test_a_model_in_this_process_is_given_whole_batches_one_at_a_time():
    adapter = DefaultAdapter("vllm/some/model")
    evaluator = evaluator_for(adapter, None)
    assert (evaluator.granularity, evaluator.slots) == ("serial", 8)
    with pytest.raises(UsageError, match="with a model in this process, which evaluates one batch at a time: leave it"):
        evaluator_for(adapter, "example")


def test_what_cannot_be_asked_of_a_declared_adapter_is_refused_before_anything_is_spent(kit):
    model = Echo()
    with pytest.raises(UsageError, match="does not go with DefaultAdapter, which evaluates example by example"):
        kit.run(Flash(evaluate="batch"), adapter=default(model), trainset=data(range(12)), valset=data(range(8)))
    assert model.calls == 0


# -- an unknown adapter ---------------------------------------------------------------------------------------------


class Alone:
    """Entered by one thread, and never twice at once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.threads = set()

    def __enter__(self):
        assert self.lock.acquire(blocking=False), "entered twice at once"
        self.threads.add(threading.get_ident())

    def __exit__(self, *_):
        self.lock.release()


def test_an_unknown_adapter_sees_one_thread_and_one_call_at_a_time(kit, caplog):
    class Own(kit.Words):
        """What it keeps belongs to the thread that first came: a database connection, an event loop."""

        flashevolve_evaluate = None

        def __init__(self):
            super().__init__()
            self.alone = Alone()

        def evaluate(self, *arguments, **words):
            with self.alone:
                return super().evaluate(*arguments, **words)

        def make_reflective_dataset(self, *arguments):
            with self.alone:
                return super().make_reflective_dataset(*arguments)

    run = kit.run(Flash(progress=False, reflection_concurrency=4), adapter=Own())
    kit.check(run, 150)
    assert run.adapter.datasets > 1
    assert len(run.adapter.alone.threads) == 1
    assert [each for each in caplog.messages if each.startswith("Own does not say what it can evaluate at once")]
