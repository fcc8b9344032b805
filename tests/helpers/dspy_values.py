"""Values of dspy.GEPA's options that are objects: metrics, proposers and selectors. Each is made for one task's run."""

from __future__ import annotations

from typing import Any


def a_number(task: Any) -> Any:
    """A metric that gives no feedback."""

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
        return task.metric(gold, pred, trace, pred_name, pred_trace).score

    return metric


def an_instance(task: Any) -> Any:
    """A metric that is an object."""

    class Metric:
        def __call__(
            self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
        ) -> Any:
            return task.metric(gold, pred, trace, pred_name, pred_trace)

    return Metric()


def objectives(task: Any) -> Any:
    """A metric of two objectives: what is right, and that the question is even."""

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        found = task.metric(gold, pred, trace, pred_name, pred_trace)
        named = {"right": found.score, "even": 1.0 - gold.rule % 2 * (found.score < 1)}
        return task.dspy.Prediction(score=found.score, feedback=found.feedback, objective_scores=named)

    return metric


def per_predictor(task: Any) -> Any:
    """A metric whose score depends on whom it is asked for."""

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        found = task.metric(gold, pred, trace, pred_name, pred_trace)
        return task.dspy.Prediction(score=found.score + 0.25 * bool(pred_name), feedback=found.feedback)

    return metric


def by_trace(task: Any) -> Any:
    """A metric of code that asks how its answer came about."""

    def metric(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None, program_trace: Any = ()
    ) -> Any:
        found = task.metric(gold, pred, trace, pred_name, pred_trace)
        return task.dspy.Prediction(score=found.score - 0.125 * len(program_trace), feedback=found.feedback)

    return metric


def raising(task: Any) -> Any:
    """A metric that has no score for one validation example."""

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if "case 101" in gold.question:
            raise ValueError("no score")
        return task.metric(gold, pred, trace, pred_name, pred_trace)

    return metric


class Proposer:
    """An instruction proposer of the user's own; it notes whose model is in force."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def __call__(self, candidate: Any, reflective_dataset: Any, components_to_update: Any) -> dict[str, str]:
        """Learn from the feedback."""
        self._task.note_proposer()
        return {
            name: self._task.learn(candidate[name] + str(reflective_dataset[name])) for name in components_to_update
        }


def a_function(task: Any) -> Any:
    """The same as a function."""

    def propose(candidate: Any, reflective_dataset: Any, components_to_update: Any) -> dict[str, str]:
        return Proposer(task)(candidate, reflective_dataset, components_to_update)

    return propose


def of_code(task: Any) -> Any:
    """A code proposer of the user's own."""
    from dspy_task import SOURCE

    def propose(
        candidate: Any, reflective_dataset: Any, components_to_update: Any, task_descriptions: Any, context_blurbs: Any
    ) -> dict[str, str]:
        task.note_proposer()
        assert set(task_descriptions) == set(context_blurbs) >= set(components_to_update)
        return {
            name: SOURCE.format(task.learn(candidate[name] + str(reflective_dataset[name])))
            for name in components_to_update
        }

    return propose


def last_component(task: Any) -> Any:
    """A component selector of the user's own."""
    del task
    return lambda state, trajectories, scores, index, candidate: [max(candidate)]


def another_model(task: Any) -> Any:
    """A reflection LM that says the same whatever it is asked."""
    return task.make_lm("other", lambda *_: '{"new_instruction": "Answer. knows-answer-1 knows-answer-3"}')


def mumbling(task: Any) -> Any:
    """A task LM some of whose answers cannot be parsed, and an adapter that does not try twice."""

    def answer(system: str, user: str) -> str:
        return "mumble" if any(f"case {n} " in user for n in (1, 4, 101)) else task._answer(system, user)

    adapter = task.dspy.ChatAdapter(use_json_adapter_fallback=False)
    return {"lm": task.make_lm("task", answer), "adapter": adapter}
