"""``ace-framework``: ``OfflineACE(..., executor="flash")``, then ``run``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.adapters.ace import ace_framework_skillbook as skillbook
from flashevolve_plugins.adapters.ace.ace_framework_results import Results
from flashevolve_plugins.adapters.ace.host import (
    CURATE,
    FEEDBACK,
    GENERATE,
    LOCAL,
    REFLECT,
    REFLECTION,
    TASK,
    Call,
    Delta,
    Lesson,
    Turn,
    require_own_steps,
    turns_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flashevolve_plugins.adapters.ace.host import Calls, Extra


@dataclass(frozen=True)
class _Content:
    """What the roles and the environment said in one turn."""

    output: Any
    result: Any
    reflection: Any


class AceFramework:
    """One call of ``OfflineACE.run``.

    Args:
        ace: the user's ``OfflineACE``.
        given: the arguments of ``run``, by name.
        lockstep: whether nothing runs at once.

    Raises:
        UsageError: the host is to learn in threads of its own.
    """

    name = "ace-framework, OfflineACE.run"
    raises = False
    keeps_failures = True

    options: Mapping[str, Any] = {}

    def __init__(self, ace: Any, given: Mapping[str, Any], *, lockstep: bool) -> None:
        import ace as package  # noqa: PLC0415 - the host

        require_own_steps(ace, package.OfflineACE, "_process_sample", "_apply_skill_tags", "_update_recent_reflections")
        if ace._async_learning:
            raise UsageError(
                "async_learning=True and flash are two asynchronous executors: leave out async_learning, or run "
                "without flash."
            )
        samples, epochs = given["samples"], given["epochs"]
        self.package, self.ace, self._lockstep = package, ace, lockstep
        self._environment, self._epochs, self._size = given["environment"], epochs, len(samples)
        self.turns: Sequence[Turn] = turns_of(samples, epochs)
        roles = (ace.agent, ace.reflector, ace.skill_manager)
        models = [_model(role) for role in roles if not isinstance(role, package.ReplayAgent)]
        known = package.LiteLLMClient or ()
        self.concurrent = all(isinstance(each, known) for each in models)
        bases = [each.config.api_base for each in models if isinstance(each, known)]
        self.urls: Sequence[str] = [each for each in bases if each]
        self.reflects_elsewhere = any(self._resource(role) == REFLECTION for role in roles)
        self._untagged: dict[int, Any] = {}  # turn's number -> a reflection whose tags are not counted yet
        self._state = skillbook.state(ace.skillbook)
        self._results = Results(self.turns, given["checkpoint_interval"], given["checkpoint_dir"])

    def ask(self, prompt: str) -> str:
        """Ask the skill manager's model."""
        return str(self.ace.skill_manager.llm.complete(prompt).text)

    def view(self) -> Any:
        """A copy, but in lockstep, where nothing changes while it is read."""
        return self.ace.skillbook if self._lockstep else skillbook.copy_of(self.ace.skillbook)

    def entries(self) -> dict[str, str]:
        """Skill id to content."""
        return skillbook.entries(self.ace.skillbook)

    # -- calls ------------------------------------------------------------------------------------------------------

    def learn(self, turn: Turn) -> Calls:
        """Generate, evaluate, reflect. The window of recent reflections is the live one, as the call begins."""
        ace, sample = self.ace, turn.sample
        output = yield self._call(
            GENERATE,
            ace.agent,
            lambda book: ace.agent.generate(
                question=sample.question,
                context=sample.context,
                skillbook=book,
                reflection=ace._reflection_context(),
                sample=sample,
            ),
            cost=1,
        )
        result = yield Call(FEEDBACK, lambda _: self._environment.evaluate(sample, output), LOCAL)
        reflection = yield self._call(
            REFLECT,
            ace.reflector,
            lambda book: ace.reflector.reflect(
                question=sample.question,
                agent_output=output,
                skillbook=book,
                ground_truth=result.ground_truth,
                feedback=result.feedback,
                max_refinement_rounds=ace.max_refinement_rounds,
            ),
        )
        self._untagged[turn.number] = reflection
        if self._lockstep:  # elsewhere with the delta: what an interrupted turn tagged would count twice in a resume
            self._tag(turn)
        ace._update_recent_reflections(reflection)
        return Lesson(turn, str(getattr(reflection, "key_insight", "")), _Content(output, result, reflection))

    def curate(self, lessons: Sequence[Lesson]) -> Calls:
        """Ask the skill manager once. It changes the skillbook that it is given, so that gets a copy of its own."""
        manager = self.ace.skill_manager
        view, book, output = yield self._call(CURATE, manager, partial(self._update_skills, lessons))
        if self._lockstep:
            return Delta(output.update.operations, output)
        skillbook.keep_embeddings(book, self.ace.skillbook)
        folds = skillbook.consolidations(getattr(manager, "dedup_manager", None), output, view)
        return Delta([*folds, *skillbook.counted(output.update.operations, book)], output)

    def _update_skills(self, lessons: Sequence[Lesson], view: Any) -> Any:
        """One call of the host. Runs in a slot."""
        ace, book = self.ace, view
        reflections = [each.content.reflection for each in lessons]
        if not self._lockstep:
            book = skillbook.copy_of(view)
            for each in reflections:
                skillbook.tag(book, each)
        contexts = [ace._question_context(each.turn.sample, each.content.result) for each in lessons]
        last = max((each.turn for each in lessons), key=lambda turn: turn.number)
        output = ace.skill_manager.update_skills(
            reflection=reflections[0] if len(lessons) == 1 else self._together(reflections),
            skillbook=book,
            question_context="\n\n".join(contexts),
            progress=ace._progress_string(last.epoch, self._epochs, last.step, self._size),
        )
        return view, book, output

    def _together(self, reflections: Sequence[Any]) -> Any:
        """Several reflections as one."""
        texts = ("reasoning", "error_identification", "root_cause_analysis", "correct_approach", "key_insight")
        return self.package.ReflectorOutput(
            **{name: "\n".join(filter(None, (getattr(each, name) for each in reflections))) for name in texts},
            extracted_learnings=[learning for each in reflections for learning in each.extracted_learnings],
            skill_tags=[tag for each in reflections for tag in each.skill_tags],
            raw={"reflections": [each.raw for each in reflections]},
        )

    def _call(self, stage: str, role: Any, function: Callable[[Any], Any], *, cost: int = 0) -> Call:
        model = getattr(_model(role), "flashevolve_seconds", None)
        seconds = None if model is None else partial(model, stage)
        return Call(stage, function, self._resource(role), seconds, cost)

    def _resource(self, role: Any) -> str:
        return TASK if _model(role) is _model(self.ace.agent) else REFLECTION

    # -- operations -------------------------------------------------------------------------------------------------

    def target(self, operation: Any) -> str | None:
        """The skill of an UPDATE of its content, or of a REMOVE. A TAG only counts."""
        if self._lockstep:
            return None
        if isinstance(operation, skillbook.Consolidation):
            return operation.target(self.entries())
        kind = operation.type.upper()
        changes = kind == "REMOVE" or (kind == "UPDATE" and operation.content is not None)
        return operation.skill_id if changes else None

    def text(self, operation: Any) -> str:
        """The content of an UPDATE."""
        if isinstance(operation, skillbook.Consolidation):
            return operation.text(self.entries())
        return "" if operation.type.upper() == "REMOVE" else str(operation.content)

    def changing(self, entry: str, text: str) -> Any:
        """An UPDATE, or a REMOVE."""
        kind = "UPDATE" if text else "REMOVE"
        return self.package.UpdateOperation(kind, "", content=text or None, skill_id=entry)

    def apply(self, lessons: Sequence[Lesson], delta: Delta) -> bool:
        """Tag, consolidate, track and update, in the host's order. To the host its sample has failed if one raises."""
        book, output = self.ace.skillbook, delta.counters
        folds = [each for each in delta.operations if isinstance(each, skillbook.Consolidation)]
        updates = [each for each in delta.operations if not isinstance(each, skillbook.Consolidation)]
        steps = [partial(self._tag, each.turn) for each in lessons]
        steps += [partial(each.apply, self.ace.skill_manager.dedup_manager, book) for each in folds]
        steps += [partial(self._track, each, output) for each in lessons]
        if self._lockstep:
            steps.append(partial(book.apply_update, output.update))
        else:
            steps += [partial(self._update, each) for each in updates]
        failure: Exception | None = None
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - told to the host in the place of a result
                failure = failure or error
                if self._lockstep:  # elsewhere it costs no other operation
                    break
        if failure is not None and len(lessons) > 1:  # nobody knows whose it was
            self._results.dropped(failure)
            failure = None
        for lesson in lessons:
            lesson.told = self._told(lesson, output) if failure is None else failure
        before, self._state = self._state, skillbook.state(book)
        return bool(self._state != before)

    def _told(self, lesson: Lesson, output: Any) -> Any:
        try:
            return self._result(lesson, output)
        except Exception as error:  # noqa: BLE001 - as the host has it then: applied, and failed
            return error

    def _tag(self, turn: Turn) -> None:
        """Count the tags of a turn's reflection, once."""
        reflection = self._untagged.pop(turn.number, None)
        if reflection is not None:
            self.ace._apply_skill_tags(reflection)

    def _track(self, lesson: Lesson, output: Any) -> None:
        content, turn = lesson.content, lesson.turn
        if self.ace.enable_observability:
            self.ace._track_observability_data(
                turn.sample, content.output, content.result, content.reflection, output, turn.epoch, turn.step
            )

    def _update(self, operation: Any) -> None:
        book = self.ace.skillbook
        book.apply_update(self.package.UpdateBatch("", [skillbook.numbered(operation, book)]))

    def _result(self, lesson: Lesson, output: Any) -> Any:
        content, turn = lesson.content, lesson.turn
        return self.package.ACEStepResult(
            sample=turn.sample,
            agent_output=content.output,
            environment_result=content.result,
            reflection=content.reflection,
            skill_manager_output=output,
            skillbook_snapshot=self.ace.skillbook.as_prompt(),
            epoch=turn.epoch,
            step=turn.step,
        )

    # -- what the host is told --------------------------------------------------------------------------------------

    def tell(self, lesson: Lesson) -> None:
        """Keep the result, or the failure."""
        if isinstance(lesson.told, Exception):
            self._results.failed(lesson.turn, lesson.told)
        else:
            self._results.add(lesson.turn, lesson.told, self.ace.skillbook)

    def call_back(self, lesson: Lesson) -> None:
        """The host has no place for it."""

    def failed(self, turn: Turn, error: BaseException | None, reason: str) -> None:
        """Count what was reflected all the same, as the host does."""
        self._tag(turn)
        self._results.failed(turn, error or reason)

    def extras(self) -> Iterable[Extra]:
        """None."""
        return ()

    def may_begin(self, turn: Turn) -> bool:
        """Always."""
        del turn
        return True

    def dump(self) -> dict[str, Any]:
        """Skillbook, recent reflections, results."""
        book, reflections = self.ace.skillbook.to_dict(), self.ace._recent_reflections
        return {"skillbook": book, "reflections": reflections, "results": self._results.dump()}

    def load(self, state: dict[str, Any]) -> None:
        """Into the user's own skillbook."""
        vars(self.ace.skillbook).update(vars(self.package.Skillbook.from_dict(state["skillbook"])))
        self.ace._recent_reflections = state["reflections"]
        self._state = skillbook.state(self.ace.skillbook)
        self._results.load(state["results"], self.package)

    def finish(self) -> Any:
        """The host's list of ``ACEStepResult``."""
        return self._results.finish()


def _model(role: Any) -> Any:
    """The model of a role, without what the host wraps around it."""
    from ace.llm_providers.instructor_client import InstructorClient  # noqa: PLC0415 - the host

    model = getattr(role, "llm", None)
    return model.llm if isinstance(model, InstructorClient) else model
