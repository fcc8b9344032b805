"""The calls of generator, reflector and curator of ace-agent/ace. They run in slots and change nothing."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.adapters.ace.host import REFLECTION, TASK, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

logger = logging.getLogger("flashevolve_plugins")

EMPTY = "(empty)"  # the host's reflection where there is none
NO_ANSWER = "No final answer found"  # what the host takes from a response without one
RIGHT = "Predicted answer matches ground truth"
WRONG = "Predicted answer does not match ground truth"


@dataclass(frozen=True)
class Answer:
    """What a generator said.

    Args:
        book: the playbook that it was given.
        response: all that it said.
        bullet_ids: the bullets that it used.
        final: its answer.
        correct: what the user's processor says of it.
    """

    book: str
    response: Any
    bullet_ids: Any
    final: str
    correct: Any


class RunOverError(Exception):
    """A call was to be repeated after the end of its run."""


class Gate:
    """Lets calls through until the run is over.

    The host repeats a call that found no server up to 1000 times, 15 to 30 seconds apart. Nobody waits for these any
    more once the run is over, and a thread cannot be ended from outside.
    """

    def __init__(self) -> None:
        self.closed = False

    def watched(self, role: Any) -> Any:
        """A copy of a role, whose calls pass through here."""
        client = getattr(role, "api_client", None)
        if client is None:
            return role
        watched = copy.copy(role)
        watched.api_client = _Client(client, self)
        return watched


class _Client:
    """A client whose chat completions pass through a gate."""

    def __init__(self, client: Any, gate: Gate) -> None:
        self._client, self._gate = client, gate
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _create(self, *args: Any, **kwargs: Any) -> Any:
        if self._gate.closed:
            raise RunOverError("the run is over")
        return self._client.chat.completions.create(*args, **kwargs)


class Roles:
    """The roles with the run's settings.

    Args:
        ace: the user's ``ACE``.
        code: the host's module.
        processor: the user's data processor.
        params: what the host reads from the run's configuration.
        log_dir: where the host logs each call.
        lockstep: whether nothing runs at once.
    """

    def __init__(  # noqa: PLR0913 - what the host passes along as well
        self, ace: Any, code: Any, processor: Any, params: Mapping[str, Any], log_dir: str, *, lockstep: bool
    ) -> None:
        self.code, self.processor, self.params, self.lockstep = code, processor, params, lockstep
        self.gate = Gate()
        originals = [ace.generator, ace.reflector, ace.curator]
        self.generator, self.reflector, self.curator = originals if lockstep else map(self.gate.watched, originals)
        self._max_tokens, self._log_dir = ace.max_tokens, log_dir
        self._common = {"use_json_mode": params["use_json_mode"], "log_dir": log_dir}
        self._truth = not params["no_ground_truth"]
        models = [(base_url(each), getattr(each, "model", None)) for each in originals]
        self.elsewhere = any(each != models[0] for each in models[1:])

    def call(self, stage: str, role: Any, function: Callable[[Any], Any], *, cost: int = 0) -> Call:
        """A call of one of the roles."""
        resource = TASK if role is self.generator or not self.elsewhere else REFLECTION
        model = getattr(getattr(role, "api_client", None), "flashevolve_seconds", None)
        return Call(stage, function, resource, None if model is None else partial(model, stage), cost)

    def answer(self, book: str, sample: Mapping[str, Any], call_id: str, reflection: str = EMPTY) -> Answer:
        """Generate, and ask the processor whether that is correct."""
        response, bullet_ids, _ = self.generator.generate(
            question=sample.get("question", ""),
            playbook=book,
            context=sample.get("context", ""),
            reflection=reflection,
            call_id=call_id,
            **self._common,
        )
        final = self.code.extract_answer(response)
        correct = self.processor.answer_is_correct(final, sample.get("target", ""))
        return Answer(book, response, bullet_ids, final, correct)

    def result(self, book: str, final: str, correct: Any) -> dict[str, Any]:
        """An answer as the host's files have it."""
        return {
            "final_answer": final,
            "is_correct": correct,
            "playbook_num_tokens": self.code.count_tokens(book),
            "playbook_length": len(book),
        }

    def reflect(self, book: str, sample: Mapping[str, Any], answer: Answer, call_id: str) -> Any:
        """Reflect on an answer: what the reflector said, and its tags of bullets."""
        response, tags, _ = self.reflector.reflect(
            question=sample.get("question", ""),
            reasoning_trace=answer.response,
            predicted_answer=answer.final,
            ground_truth=sample.get("target", "") if self._truth else None,
            environment_feedback=RIGHT if answer.correct else WRONG,
            bullets_used=self.code.extract_playbook_bullets(book, answer.bullet_ids),
            use_ground_truth=self._truth,
            call_id=call_id,
            **self._common,
        )
        return response, tags

    def curate(self, book: str, reflection: str, context: str, **step: Any) -> tuple[list[Any], bool]:
        """Ask the curator: the operations that it wants, and whether they have made another text of the playbook."""
        text, _, operations, _ = self.curator.curate(
            current_playbook=book,
            recent_reflection=reflection,
            question_context=context,
            token_budget=self.params["token_budget"],
            playbook_stats=self.code.get_playbook_stats(book),
            use_ground_truth=self._truth,
            **step,
            **self._common,
        )
        return operations, text != book

    # -- tests ------------------------------------------------------------------------------------------------------

    def tests(self, stage: str, samples: Sequence[Any], book: str) -> list[Call]:
        """The calls of a test of samples: one for each; in lockstep one for all, which is the host's own."""
        code, json_mode = self.code, self.params["use_json_mode"]

        def all_of_them(_: Any) -> Any:
            return code.evaluate_test_set(
                self.processor,
                self.generator,
                book,
                samples,
                self._max_tokens,
                self._log_dir,
                max_workers=self.params["test_workers"],
                use_json_mode=json_mode,
            )

        def one(index: int, sample: Any, _: Any) -> Any:
            given = (index, sample, self.generator, book, self._max_tokens, self._log_dir, json_mode)
            return code.evaluate_single_test_sample(given, self.processor)

        if self.lockstep:
            return [self.call(stage, self.generator, all_of_them)]
        return [self.call(stage, self.generator, partial(one, index, each)) for index, each in enumerate(samples)]

    def tested(self, samples: Sequence[Any], results: Sequence[Any]) -> tuple[Any, Any]:
        """The host's results and error log of a test.

        A sample that failed counts as one without an answer, while the host leaves it out.
        """
        if self.lockstep:
            return done(results[0])  # type: ignore[no-any-return]
        rows, problems = [], []
        for index, (sample, result) in enumerate(zip(samples, results, strict=True)):
            row, problem = (None, result) if isinstance(result, BaseException) else result
            if row is None:
                problems.append(problem)
                row = {"index": index, "final_answer": NO_ANSWER, "target": sample.get("target", "")}
            rows.append(row)
        if problems:
            logger.warning(
                "%s of %s samples of a test failed and count as wrong (%s).", len(problems), len(samples), problems[0]
            )
        answers = [row["final_answer"] for row in rows]
        accuracy = self.processor.evaluate_accuracy(answers, [row["target"] for row in rows])
        wrong = [row for row in rows if not row.get("is_correct")]
        errors = [
            {"index": row["index"], "prediction": row["final_answer"], "ground_truth": row["target"]} for row in wrong
        ]
        result = {
            "accuracy": accuracy,
            "correct": len(rows) - len(wrong),
            "total": len(rows),
            "no_answer": answers.count(NO_ANSWER),
        }
        return result, {"accuracy": accuracy, "errors": errors}


def done(result: Any) -> Any:
    """A call's result; raises what the call raised."""
    if isinstance(result, BaseException):
        raise result
    return result


def base_url(role: Any) -> str | None:
    """Where a role's client finds its server, if that can be seen."""
    url = str(getattr(getattr(role, "api_client", None), "base_url", ""))
    return url if url.startswith(("http://", "https://")) else None
