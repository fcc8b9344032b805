"""``ace-playbook``: ``ACE(..., executor="flash")``, then ``adapt_offline`` and ``adapt_online``."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.adapters.ace.embeddings import KeptEmbeddings
from flashevolve_plugins.adapters.ace.host import (
    CURATE,
    EMBED,
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


class AcePlaybook:
    """One call of ``adapt_offline`` or ``adapt_online``.

    Args:
        ace: the user's ``ACE``.
        task: the host's ``Task``.
        phases: what a record calls each epoch.
        callback: is given each ``StepRecord``.
        feedback_fn: from a sample and a generation to ``Feedback``, or ``None`` for the host's own.
        lockstep: whether nothing runs at once.
    """

    raises = True
    keeps_failures = False
    options: Mapping[str, Any] = {}

    def __init__(  # noqa: PLR0913 - the host's own arguments
        self,
        ace: Any,
        task: Any,
        phases: Sequence[str],
        callback: Callable[[Any], None] | None,
        feedback_fn: Callable[[Any, Any], Any] | None,
        *,
        lockstep: bool,
    ) -> None:
        import ace as package  # noqa: PLC0415 - the host

        require_own_steps(ace, package.ACE, "step")
        self.package = package
        self.name = "ace-playbook, adapt_online" if list(phases) == ["online"] else "ace-playbook, adapt_offline"
        self.ace, self.task, self.phases = ace, task, phases
        self._callback, self._feedback_fn, self._lockstep = callback, feedback_fn, lockstep
        if not hasattr(task.samples, "__len__"):
            raise UsageError("task.samples has no length, and flash begins several at once: make it a list.")
        self.turns: Sequence[Turn] = turns_of(task.samples, len(phases))
        models = [role.llm for role in (ace.generator, ace.reflector, ace.curator)]
        self.concurrent = all(isinstance(each, (package.OpenAILLM, package.SimulatedLLM)) for each in models)
        self.urls: Sequence[str] = [
            str(each._client.base_url)
            for each in models
            if isinstance(each, package.OpenAILLM) and hasattr(each, "_client")
        ]
        self.reflects_elsewhere = any(each is not models[0] for each in models[1:])
        self._embeddings = None if lockstep or ace.embedder is None else KeptEmbeddings(ace.embedder)
        self._copies: dict[str, Any] = {}  # bullet id to the bullet as the last view has it
        self._usage = ace._usage_snapshot()
        self._history: list[Any] = []

    def ask(self, prompt: str) -> str:
        """Ask the curator's model."""
        return str(self.ace.curator.llm.complete("", prompt))

    def view(self) -> Any:
        """A copy, but in lockstep, where nothing changes while it is read. Copies share the bullets that are alike."""
        if self._lockstep:
            return self.ace.playbook
        live, before = self.ace.playbook, self._copies
        self._copies = {
            bullet.id: kept if (kept := before.get(bullet.id)) == bullet else copy(bullet) for bullet in live
        }
        book = copy(live)
        book.sections, book._bullets = list(live.sections), dict(self._copies)
        return book

    def entries(self) -> dict[str, str]:
        """Bullet id to content."""
        return {bullet.id: bullet.content for bullet in self.ace.playbook}

    # -- calls ------------------------------------------------------------------------------------------------------

    def learn(self, turn: Turn) -> Calls:
        """Generate, get feedback, reflect."""
        ace, sample = self.ace, turn.sample
        started = time.monotonic()
        generation = yield self._call(
            GENERATE, ace.generator, lambda book: ace.generator.generate(sample, book), cost=1
        )
        feedback = yield Call(FEEDBACK, lambda _: self._feedback(sample, generation), LOCAL)
        reflection = yield self._call(
            REFLECT, ace.reflector, lambda book: ace.reflector.reflect(sample, generation, feedback, book)
        )
        insights = [
            str(each.get("content", each)) if isinstance(each, dict) else str(each) for each in reflection.insights
        ]
        content = _Content(generation, feedback, reflection, started)
        # The host's own curator asks no model where there is no insight: nothing then waits for the others.
        curated = bool(insights) or type(ace.curator) is not self.package.Curator
        return Lesson(turn, "\n".join([reflection.diagnosis, *insights]).strip(), content, curated=curated)

    def _feedback(self, sample: Any, generation: Any) -> Any:
        return self.ace._build_feedback(sample, self.task, generation=generation, feedback_fn=self._feedback_fn)

    def curate(self, lessons: Sequence[Lesson]) -> Calls:
        """Ask the curator once; embed what it adds, so that refining need not wait for that."""
        curator = self.ace.curator
        first = lessons[0].content
        sample, reflection = lessons[0].turn.sample, first.reflection
        if len(lessons) > 1:
            reflection = self._together([each.content.reflection for each in lessons])
        delta = yield self._call(
            CURATE, curator, lambda book: curator.curate(sample, first.generation, reflection, book)
        )
        embeddings = self._embeddings
        if embeddings is not None:
            texts = [each.content.strip() for each in delta.operations]
            yield Call(EMBED, lambda _: embeddings.prepare(texts), self._embeds_in(curator), reads=False)
        return Delta(delta.operations, (delta.helpful_ids, delta.harmful_ids))

    def _embeds_in(self, curator: Any) -> str:
        """Where embeddings are asked for: a function of the user's own is called once at a time."""
        ours = str(getattr(self.ace.embedder, "__module__", "")).startswith(f"{self.package.__name__}.")
        return self._resource(curator) if ours else LOCAL

    def _together(self, reflections: Sequence[Any]) -> Any:
        """Several reflections as one."""
        return self.package.Reflection(
            insights=[insight for each in reflections for insight in each.insights],
            helpful_ids=[name for each in reflections for name in each.helpful_ids],
            harmful_ids=[name for each in reflections for name in each.harmful_ids],
            diagnosis="\n".join(each.diagnosis for each in reflections if each.diagnosis),
        )

    def _call(self, stage: str, role: Any, function: Callable[[Any], Any], *, cost: int = 0) -> Call:
        model = getattr(role.llm, "flashevolve_seconds", None)
        seconds = None if model is None else partial(model, stage)
        return Call(stage, function, self._resource(role), seconds, cost)

    def _resource(self, role: Any) -> str:
        return TASK if role.llm is self.ace.generator.llm else REFLECTION

    # -- operations -------------------------------------------------------------------------------------------------

    def target(self, operation: Any) -> str | None:
        """The bullet of an UPDATE or a REMOVE."""
        return None if operation.op is self.package.DeltaOp.ADD else operation.target_id

    def text(self, operation: Any) -> str:
        """The content of an UPDATE."""
        return "" if operation.op is self.package.DeltaOp.REMOVE else operation.content.strip()

    def changing(self, entry: str, text: str) -> Any:
        """An UPDATE, or a REMOVE."""
        kind = self.package.DeltaOp.UPDATE if text else self.package.DeltaOp.REMOVE
        return self.package.DeltaOperation(op=kind, content=text, target_id=entry)

    def apply(self, lessons: Sequence[Lesson], delta: Delta) -> bool:
        """Apply the delta, and refine, as the host's ``step`` does; a record for each lesson."""
        playbook, step, sections = self.ace.playbook, self.ace._step, list(self.ace.playbook.sections)
        try:
            return self._apply(lessons, delta)
        except Exception:
            if not self._lockstep:  # where the host leaves what it has done so far
                self.ace._step, playbook.sections[:] = step, sections
                playbook._bullets = {name: copy(bullet) for name, bullet in self._copies.items()}
            raise

    def _apply(self, lessons: Sequence[Lesson], delta: Delta) -> bool:
        ace = self.ace
        before = {bullet.id: bullet for bullet in ace.playbook}
        refine = self.package.refine.RefineResult(deduped=[], pruned=[])
        changed = False
        for place, lesson in enumerate(lessons):
            ace._step += 1
            last = place == len(lessons) - 1
            part = self._part(lesson, delta, operations=delta.operations if place == 0 else (), alone=len(lessons) == 1)
            merge = self.package.apply_delta(ace.playbook, part, step=ace._step)
            self._keep_apart(merge, before)
            if last:
                refine = self._refine(len(lessons))
            changed = changed or bool(merge.num_changes or merge.helpful_marked or merge.harmful_marked)
            lesson.told = self._record(lesson, part, merge, refine)
        return changed or bool(refine.num_removed)

    def _part(self, lesson: Lesson, delta: Delta, *, operations: Sequence[Any], alone: bool) -> Any:
        """What a lesson brings of a delta: the first one the operations, and each its own counters."""
        reflection = lesson.content.reflection
        helpful, harmful = delta.counters if alone else (reflection.helpful_ids, reflection.harmful_ids)
        return self.package.DeltaContext(operations=list(operations), helpful_ids=helpful, harmful_ids=harmful)

    def _keep_apart(self, merge: Any, before: dict[str, Any]) -> None:
        """The host draws ids of 32 bits: where one comes twice, the new bullet gets another, and the old one stays."""
        playbook = self.ace.playbook
        for place, name in enumerate(merge.added):
            if name in before and playbook.get(name) is not before[name]:
                added, fresh = playbook.get(name), self.package.Bullet("")
                added.id = merge.added[place] = fresh.id
                playbook.add(before[name])
                playbook.add(added)

    def _refine(self, steps: int) -> Any:
        """Once for several steps, if it is due in any of them."""
        ace, every = self.ace, self.ace.config.refine_every
        now, kept = ace._step, ace.embedder
        if every and now // every > (now - steps) // every:
            ace._step = now - now % every
        try:
            if self._embeddings is not None:
                ace.embedder = self._embeddings
            return ace._maybe_refine()
        finally:
            ace._step, ace.embedder = now, kept

    def _record(self, lesson: Lesson, part: Any, merge: Any, refine: Any) -> Any:
        ace, content, turn = self.ace, lesson.content, lesson.turn
        feedback, answer = content.feedback, content.generation.answer
        correct = feedback.correct
        if correct is None and feedback.ground_truth is not None:
            correct = answer.strip().lower() == feedback.ground_truth.strip().lower()
        usage = ace._usage_snapshot()
        used, self._usage = ace._usage_delta(self._usage, usage), usage
        return self.package.StepRecord(
            step=ace._step,
            phase=self.phases[turn.epoch - 1],
            sample_id=turn.sample.id,
            question=turn.sample.question,
            prediction=answer,
            ground_truth=feedback.ground_truth,
            correct=correct,
            delta=part.to_dict(),
            merge={
                "added": merge.added,
                "updated": merge.updated,
                "removed": merge.removed,
                "helpful_marked": merge.helpful_marked,
                "harmful_marked": merge.harmful_marked,
            },
            refine={"deduped": refine.deduped, "pruned": refine.pruned},
            playbook_size=len(ace.playbook),
            playbook_tokens=ace.playbook.approx_tokens(),
            diagnosis=content.reflection.diagnosis,
            latency_s=round(time.monotonic() - content.started, 4),
            **used,
        )

    # -- what the host is told --------------------------------------------------------------------------------------

    def tell(self, lesson: Lesson) -> None:
        """Append the record."""
        self._history.append(lesson.told)

    def call_back(self, lesson: Lesson) -> None:
        """Give the record to the callback."""
        if self._callback is not None:
            self._callback(lesson.told)

    def failed(self, turn: Turn, error: BaseException | None, reason: str) -> None:
        """The host has no place for it."""

    def extras(self) -> Iterable[Extra]:
        """None."""
        return ()

    def may_begin(self, turn: Turn) -> bool:
        """Always."""
        del turn
        return True

    def dump(self) -> dict[str, Any]:
        """Playbook, step, history."""
        history = [asdict(record) for record in self._history]
        return {"playbook": self.ace.playbook.to_dict(), "step": self.ace._step, "history": history}

    def load(self, state: dict[str, Any]) -> None:
        """Into the user's own playbook."""
        kept = self.package.Playbook.from_dict(state["playbook"])
        playbook = self.ace.playbook
        playbook.sections[:], playbook._bullets = kept.sections, kept._bullets
        self.ace._step = state["step"]
        self._history = [self.package.StepRecord(**record) for record in state["history"]]

    def finish(self) -> Any:
        """The host's ``RunResult``."""
        return self.package.RunResult(history=self._history, playbook=self.ace.playbook)


class _Content:
    """What the roles said in one turn."""

    def __init__(self, generation: Any, feedback: Any, reflection: Any, started: float) -> None:
        self.generation, self.feedback, self.reflection, self.started = generation, feedback, reflection, started
