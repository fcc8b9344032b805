"""ace-agent/ace, the paper's own code: ``ACE(..., executor="flash")``, then ``run("offline" | "online", ...)``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.adapters.ace.ace_agent_analysis import Analysis
from flashevolve_plugins.adapters.ace.ace_agent_roles import EMPTY, base_url
from flashevolve_plugins.adapters.ace.host import CURATE, GENERATE, REFLECT, Delta, Lesson

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashevolve_plugins.adapters.ace.ace_agent_results import Results
    from flashevolve_plugins.adapters.ace.ace_agent_roles import Answer, Roles
    from flashevolve_plugins.adapters.ace.host import Calls, Extra, Turn

#: Options of which a resumed run must have the same.
KEPT = ("curator_frequency", "eval_steps", "max_num_rounds", "no_ground_truth")


class AceAgent:
    """The training of one run.

    What the host does step by step with one playbook is told apart here: roles are given the newest text with the
    counts of their own turn; counts and operations are applied to the live text by one writer. The bulletpoint
    analyzer, which rewrites everything, runs there as well, on the caller's thread: while it does nothing else is
    applied, and nothing of what is applied can be lost.

    Args:
        ace: the user's ``ACE``.
        roles: its roles.
        results: what becomes of the turns that are over.
    """

    raises = True
    keeps_failures = True

    def __init__(self, ace: Any, roles: Roles, results: Results) -> None:
        self.ace, self.roles, self.results = ace, roles, results
        self.name = f"ace-agent/ace, {results.mode}"
        self.turns: Sequence[Turn] = results.turns
        self.options: Mapping[str, Any] = {
            **{name: roles.params[name] for name in KEPT},
            "online_eval_frequency": results.window,
        }
        code = roles.code
        self.urls: Sequence[str] = urls_of(ace)
        kinds = ((ace.generator, code.Generator), (ace.reflector, code.Reflector), (ace.curator, code.Curator))
        self.concurrent = all(isinstance(role, kind) for role, kind in kinds)
        self.reflects_elsewhere = roles.elsewhere
        self._analysis = Analysis(ace)
        self._entries: tuple[str, dict[str, str]] = ("", {})

    def ask(self, prompt: str) -> str:
        """Ask the curator's model, as the curator does."""
        curator = self.roles.curator
        call = sys.modules[type(self.ace.curator).__module__].timed_llm_call
        response, _ = call(
            curator.api_client,
            curator.api_provider,
            curator.model,
            prompt,
            role="curator",
            call_id="train_flashevolve",
            max_tokens=curator.max_tokens,
        )
        return str(response)

    def view(self) -> str:
        """The text."""
        return str(self.ace.playbook)

    def entries(self) -> dict[str, str]:
        """Bullet id to content."""
        text = self.ace.playbook
        if self._entries[0] != text:
            bullets = filter(None, map(self.roles.code.parse_playbook_line, text.split("\n")))
            self._entries = (text, {each["id"]: each["content"] for each in bullets})
        return self._entries[1]

    # -- calls ------------------------------------------------------------------------------------------------------

    def learn(self, turn: Turn) -> Calls:
        """Generate; while that is wrong, reflect and generate again; if it is right, reflect once."""
        roles, sample, step_id = self.roles, turn.sample, self.results.step_id(turn)
        seen = _Seen(sample)
        answer = yield roles.call(
            GENERATE, roles.generator, partial(self._begin, seen, f"{step_id}_gen_initial"), cost=1
        )
        correct = answer.correct
        self._log(turn, answer, answer.book, correct)
        for number in range(1 if correct else roles.params["max_num_rounds"]):
            call_id = f"{step_id}_reflect_on_correct" if correct else f"{step_id}_round_{number}"
            book = yield roles.call(REFLECT, roles.reflector, partial(self._reflect, seen, answer, call_id))
            if correct:
                self._log(turn, answer, book, correct, reflection_content=seen.reflection)
                break
            answer = yield roles.call(
                GENERATE,
                roles.generator,
                partial(self._again, seen, f"{step_id}_post_reflect_round_{number}"),
            )
            if answer.correct:
                break
        curated = turn.step % roles.params["curator_frequency"] == 0
        return Lesson(turn, str(seen.reflection), seen, curated=curated)

    def _begin(self, seen: _Seen, call_id: str, book: str) -> Answer:
        answer = self.roles.answer(book, seen.sample, call_id)
        seen.before = self.roles.result(book, answer.final, answer.correct)
        return answer

    def _again(self, seen: _Seen, call_id: str, book: str) -> Answer:
        return self.roles.answer(self._counted(book, seen.tags), seen.sample, call_id, seen.reflection)

    def _reflect(self, seen: _Seen, answer: Answer, call_id: str, book: str) -> str:
        book = self._counted(book, seen.tags)
        seen.reflection, tags = self.roles.reflect(book, seen.sample, answer, call_id)
        if tags:
            book = self._counted(book, [tags])  # tags that cannot be counted fail this turn, here
            seen.tags.append(tags)
        return book

    def _log(self, turn: Turn, answer: Answer, book: str, correct: Any, **more: Any) -> None:
        path, epoch = self.results.paths.usage_log, turn.epoch
        log = self.roles.code.log_bullet_usage
        log(path, epoch, turn.step, turn.sample, answer.bullet_ids, playbook=book, is_correct=correct, **more)

    def _counted(self, book: str, tags: Iterable[Any]) -> str:
        for given in tags:
            for each in self._analysis.follow(given):
                book = self.roles.code.update_bullet_counts(book, each)
        return book

    def curate(self, lessons: Sequence[Lesson]) -> Calls:
        """Ask the curator once, if it is the turn of any of the lessons."""
        due = [each for each in lessons if each.curated]
        if not due:
            return Delta()
        tags = [each for lesson in lessons for each in lesson.content.tags]
        step = {
            "current_step": max(each.turn.step for each in due),
            "total_samples": self.results.steps,
            "call_id": self.results.step_id(due[0].turn),
            "next_global_id": self.ace.next_global_id,
        }
        reflection = _together([each.content.reflection for each in due])
        context = _together([each.turn.sample.get("context", "") for each in due])

        def curate(book: str) -> Any:
            return self.roles.curate(self._counted(book, tags), reflection, context, **step)

        operations, rewritten = yield self.roles.call(CURATE, self.roles.curator, curate)
        return Delta(operations, rewritten)

    # -- operations -------------------------------------------------------------------------------------------------

    def target(self, operation: Any) -> None:
        """None: of all operations the host applies ADD alone."""

    def text(self, operation: Any) -> str:
        """The content that is added."""
        return str(operation.get("content", ""))

    def changing(self, entry: str, text: str) -> Any:
        """As the host would name it, could it apply it."""
        return {"type": "UPDATE" if text else "DELETE", "bullet_id": entry, "content": text}

    def apply(self, lessons: Sequence[Lesson], delta: Delta) -> bool:
        """Count tags, apply operations, and let the analyzer rewrite the result, all on the live text."""
        ace, code = self.ace, self.roles.code
        text, number = ace.playbook, ace.next_global_id
        for lesson in lessons:
            text = self._counted(text, lesson.content.tags)
        if delta.operations or delta.counters:
            if not self.roles.lockstep:
                number = max(number, code.get_next_global_id(text))
            text, number = code.apply_curator_operations(text, delta.operations, number)
        if any(lesson.curated for lesson in lessons):
            text = self._analysis.run(text)
        changed = text != ace.playbook
        ace.playbook, ace.next_global_id = text, number
        for lesson in lessons:
            lesson.told = text
        return bool(changed)

    # -- what the host is told --------------------------------------------------------------------------------------

    def tell(self, lesson: Lesson) -> None:
        """Rows and files."""
        self.results.told(lesson.turn, lesson.content.before, lesson.told)

    def call_back(self, lesson: Lesson) -> None:
        """The host calls nothing."""

    def failed(self, turn: Turn, error: BaseException | None, reason: str) -> None:
        """It is over; the host has no row for it."""
        del error, reason
        self.results.over(turn)

    def extras(self) -> Iterable[Extra]:
        """Generations for metrics, validations, tests of windows."""
        return self.results.extras()

    def may_begin(self, turn: Turn) -> bool:
        """Online, a window waits for the one before."""
        return self.results.may_begin(turn)

    def dump(self) -> dict[str, Any]:
        """Playbook, ids, results."""
        return {"playbook": self.ace.playbook, "next_global_id": self.ace.next_global_id, **self.results.dump()}

    def load(self, state: dict[str, Any]) -> None:
        """Into the user's ``ACE``."""
        self.ace.playbook, self.ace.next_global_id = state["playbook"], state["next_global_id"]
        self.results.load(state)

    def finish(self) -> Any:
        """What the host's method returns, once all its files are written."""
        return self.results.finish()


def urls_of(ace: Any) -> list[str]:
    """The base URLs of its servers, as far as they can be seen."""
    return [url for role in (ace.generator, ace.reflector, ace.curator) if (url := base_url(role)) is not None]


def _together(texts: Sequence[Any]) -> Any:
    """Several texts as one, each once; a single one as it is."""
    return texts[0] if len(texts) == 1 else "\n\n".join(dict.fromkeys(map(str, texts)))


@dataclass
class _Seen:
    """What a turn has seen.

    Args:
        sample: its sample.
        before: the first answer, as the host's files have it.
        reflection: the last reflection.
        tags: the tags of each reflection.
    """

    sample: Any
    before: dict[str, Any] = field(default_factory=dict)
    reflection: Any = EMPTY
    tags: list[Any] = field(default_factory=list)
