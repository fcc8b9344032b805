"""Secrets planted through every way in which something can go wrong, and looked for in all that flash writes."""

from __future__ import annotations

import json
import logging
import os
import socket
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from dspy_task import Task
from gepa_kit import kit, no_thread_stays  # noqa: F401 - fixtures

from flashevolve_plugins import Flash, FlashEvolveError, PluginError
from flashevolve_plugins._cli import main
from flashevolve_plugins._redact import HIDDEN, log, redact, register_secrets, register_secrets_of, shown, visible
from flashevolve_plugins.hooks import Judgement, Verdict, hookimpl
from flashevolve_plugins.hooks.manager import Installed

KEY = "sk-proj-0123456789abcdefghijKLMNOP"  # looks like one
NAMED = "velvet-otter-marmalade"  # is known to be one: by the environment, or as a model's key
OURS = "flashevolve"  # how the names of our files begin
DSPYS = ("dspy.utils.parallelizer", "dspy.teleprompt.gepa.gepa_utils")  # loggers of dspy's that our lines go to


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    monkeypatch.setenv("SOME_SERVICE_TOKEN", NAMED)


@pytest.fixture
def told(caplog, capsys):
    """What flash says while something runs; ends with a search for both secrets."""

    def run(what: Any, run_dir: Path | None = None) -> list[str]:
        found: list[str] = []
        caplog.set_level(logging.DEBUG, "flashevolve_plugins")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                what()
            except (FlashEvolveError, PluginError) as error:
                found.append(f"{type(error).__name__}: {error}")
            except RuntimeError:  # the host's, raised as the host raises it
                found.append("")
        form = logging.Formatter("%(message)s")
        found += [form.format(each) for each in caplog.records if each.name == "flashevolve_plugins" or ours(each)]
        found += [
            str(each.message) for each in warned if "flashevolve" in str(each.filename) or "Plugin" in str(each.message)
        ]
        streams = capsys.readouterr()
        found += [line for line in streams.err.splitlines() if line.startswith("flash")]
        for file in sorted(run_dir.rglob("*")) if run_dir is not None else ():
            if file.name.startswith(OURS) and file.suffix in {".jsonl", ".json", ".txt", ".log"}:  # not results as such
                found.append(file.read_text("utf-8"))
        return found

    return run


def ours(record: logging.LogRecord) -> bool:
    return record.name in DSPYS and Path(record.pathname).name == "_redact.py"


def lost(found: list[str]) -> int:
    """How many of the texts have a secret in them, whole or nearly."""
    return sum(secret in text for text in found for secret in (KEY, KEY[:24], NAMED, NAMED[:-4]))


def leaking() -> Exception:
    return RuntimeError(f"Incorrect API key provided: {KEY} (token {NAMED})")


def quiet(**options: Any) -> Flash:
    return Flash(progress=False, check_connection=False, **options)


# -- ways in which things go wrong ------------------------------------------------------------------------------------


def dspy_metric(task: Task, run_dir: str) -> None:
    def sometimes(gold, *_):
        if gold.rule == 2:
            raise leaking()

    task.on_metric = sometimes
    task.compile(quiet(), max_metric_calls=60, log_dir=run_dir)


def dspy_metric_always(task: Task, run_dir: str) -> None:
    def always(*_):
        raise leaking()

    task.on_metric = always
    task.compile(quiet(), val=20, max_metric_calls=90, log_dir=run_dir)


class AuthenticationError(Exception):
    """As clients of models raise it."""


def dspy_model(task: Task, run_dir: str) -> None:
    def fail(system, user):
        raise AuthenticationError(f"Incorrect API key provided: {KEY}, for the model {NAMED}")

    task.on_task = fail
    task.compile(quiet(), val=20, max_metric_calls=90, log_dir=run_dir)


def dspy_reflection(task: Task, run_dir: str) -> None:
    def fail(*_):
        raise leaking()

    task.on_reflect = fail
    task.compile(quiet(staleness="full"), max_metric_calls=300, log_dir=run_dir)


def dspy_useless_metric(task: Task, run_dir: str) -> None:
    task.compile(quiet(), metric=lambda *_: f"{KEY} {NAMED}", max_metric_calls=60, log_dir=run_dir)


def dspy_exit(task: Task, run_dir: str) -> None:
    def leave(gold, *_):
        if gold.rule == 2:
            raise SystemExit(f"{KEY} {NAMED}")

    task.on_metric = leave
    task.compile(quiet(), max_metric_calls=60, log_dir=run_dir)


def dspy_dead_server(task: Task, run_dir: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        base = f"http://someone:{NAMED}-2@127.0.0.1:{bound.getsockname()[1]}/v1"
        dead = dspy.LM("openai/some-model", api_base=base, api_key=f"{KEY}", num_retries=0)
        with dspy.context(lm=dead):
            task.compile(Flash(progress=False), max_metric_calls=60, log_dir=run_dir)


def dspy_feedback(task: Task, run_dir: str) -> None:
    """The feedback that leads to a proposal is kept in its record."""
    metric = task.metric

    def telling(gold, pred, trace=None, pred_name=None, pred_trace=None):
        found = metric(gold, pred, trace, pred_name, pred_trace)
        return dspy.Prediction(score=found.score, feedback=f"{found.feedback} Authorization: Bearer {KEY} {NAMED}")

    task.compile(quiet(), metric=telling, max_metric_calls=100, log_dir=run_dir)


DSPY = {
    "a metric raises": dspy_metric,
    "a metric always raises": dspy_metric_always,
    "a model refuses the key": dspy_model,
    "a reflection fails": dspy_reflection,
    "a metric returns a text": dspy_useless_metric,
    "a metric calls sys.exit": dspy_exit,
    "a server is not there": dspy_dead_server,
    "feedback quotes a request": dspy_feedback,
}


@pytest.mark.parametrize("name", DSPY)
def test_no_secret_is_in_what_flash_writes_of_dspy(name, task, told, tell, tmp_path):
    found = told(lambda: DSPY[name](task, str(tmp_path)), tmp_path)
    assert any(HIDDEN in text for text in found), "the secret was never on its way"
    tell(f"dspy: {name}", tries=1, outcome="no secret is written", lost=lost(found))


class Raising:
    @hookimpl
    def flashevolve_judge_stale(self, item, pool):
        raise leaking()


class Planning:
    @hookimpl
    def flashevolve_plan(self, snapshot):
        raise leaking()


class Reasons:
    @hookimpl
    def flashevolve_judge_stale(self, item, pool):
        return Judgement(Verdict.DISCARD, f"api_key={KEY} {NAMED}")


class Observing:
    @hookimpl
    def flashevolve_item_ended(self, record):
        raise leaking()


def gepa_policy(kit: Any, run_dir: str) -> None:  # noqa: F811
    kit.run(kit.flash(plugins=[Raising()], max_concurrency=20), run_dir=run_dir, calls=300)


def gepa_plan(kit: Any, run_dir: str) -> None:  # noqa: F811
    kit.run(kit.flash(plugins=[Planning()]), run_dir=run_dir)


def gepa_reasons(kit: Any, run_dir: str) -> None:  # noqa: F811
    kit.run(kit.flash(plugins=[Reasons()], max_concurrency=20), run_dir=run_dir, calls=300)


def gepa_observer(kit: Any, run_dir: str) -> None:  # noqa: F811
    kit.run(kit.flash(plugins=[Observing()]), run_dir=run_dir)


def gepa_reflection(kit: Any, run_dir: str) -> None:  # noqa: F811
    def fail(prompt):
        raise leaking()

    kit.run(kit.flash(), reflection=fail, run_dir=run_dir)


def gepa_evaluation(kit: Any, run_dir: str) -> None:  # noqa: F811
    adapter = kit.Words()
    adapter.working = lambda batch, _: leak_at(len(adapter.batches), 40)
    kit.run(kit.flash(), adapter=adapter, run_dir=run_dir)


def leak_at(number: int, at: int) -> None:
    if number == at:
        raise leaking()


def gepa_score(kit: Any, run_dir: str) -> None:  # noqa: F811
    adapter = kit.Words()
    evaluate = adapter.evaluate

    def useless(batch, candidate, capture_traces=False):
        found = evaluate(batch, candidate, capture_traces)
        found.scores = [f"{NAMED} {KEY}"] * len(batch)
        return found

    adapter.evaluate = useless
    kit.run(kit.flash(), adapter=adapter, run_dir=run_dir)


def gepa_merge(kit: Any, run_dir: str) -> None:  # noqa: F811
    reflection = kit.Reflection()

    def fail(*_):
        raise leaking()

    reflection.merge = fail
    kit.run(kit.flash(staleness="merge", max_concurrency=20), reflection=reflection, run_dir=run_dir, calls=400)


def gepa_prompt(kit: Any, run_dir: str) -> None:  # noqa: F811
    """A model writes a key into a prompt."""
    reflection = kit.Reflection()
    answer = reflection.answer
    reflection.answer = lambda prompt: answer(prompt).replace("```\n", f"```\nx-api-key: {KEY} {NAMED} ", 1)
    kit.run(kit.flash(staleness="merge"), reflection=reflection, run_dir=run_dir, calls=300)


GEPA = {
    "a policy raises": gepa_policy,
    "a planning policy raises": gepa_plan,
    "a policy gives reasons": gepa_reasons,
    "an observer raises": gepa_observer,
    "a reflection fails": gepa_reflection,
    "an evaluation raises": gepa_evaluation,
    "an adapter gives a text for a score": gepa_score,
    "a merge fails": gepa_merge,
    "a prompt holds a key": gepa_prompt,
}


@pytest.mark.parametrize("name", GEPA)
def test_no_secret_is_in_what_flash_writes_of_gepa(name, kit, told, tell, tmp_path):  # noqa: F811
    found = told(lambda: GEPA[name](kit, str(tmp_path)), tmp_path)
    assert any(HIDDEN in text for text in found), "the secret was never on its way"
    tell(f"gepa: {name}", tries=1, outcome="no secret is written", lost=lost(found))


def test_snapshots_hold_no_text_of_a_run(kit):  # noqa: F811
    seen = []

    class Watching:
        @hookimpl
        def flashevolve_snapshot(self, snapshot):
            seen.append(repr(snapshot))

    flash = kit.flash(plugins=[Watching()])
    gepa_prompt(SimpleNamespace(**{**vars(kit), "flash": lambda **_: flash, "run": kit.run}), None)
    assert seen
    assert lost([*seen, repr(flash.last_run)]) == 0


def test_the_command_line_hides_secrets_and_shows_control_characters(monkeypatch, capsys, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from flashevolve_plugins import UsageError\n"
        f"raise UsageError('no run with api_key={KEY}: \\x1b[2J\\u202e{NAMED}')\n",
        "utf-8",
    )
    assert main(["run", str(script)]) == 2
    said = capsys.readouterr().err
    assert lost([said]) == 0
    assert "\x1b" not in said
    assert "\\x1b[2J\\u202e" in said


def test_what_models_wrote_reaches_a_terminal_without_control_characters(kit, capsys, tmp_path):  # noqa: F811
    reflection = kit.Reflection()
    answer = reflection.answer
    reflection.answer = lambda prompt: answer(prompt).replace(
        "```\n", "```\n\x1b]0;owned\x07\x1b[2J\u202e[bold]%s{0} ", 1
    )
    kit.run(kit.flash(), reflection=reflection, run_dir=str(tmp_path), calls=300)
    number = next(
        each["item"]
        for line in (tmp_path / "flashevolve_items.jsonl").read_text("utf-8").splitlines()
        if "changed" in (each := json.loads(line))
    )
    capsys.readouterr()
    assert main(["items", str(tmp_path)]) == 0
    assert main(["items", str(tmp_path), "--item", str(number)]) == 0
    shown_text = capsys.readouterr().out
    assert "\\x1b]0;owned\\x07\\x1b[2J\\u202e[bold]%s{0}" in shown_text
    assert not any(each in shown_text for each in "\x1b\x07\u202e")


def test_a_line_of_ours_is_not_formatted_twice_and_moves_no_cursor(caplog):
    quiet()
    logging.getLogger("flashevolve_plugins").warning("A text: %s", "100%s {0} \x1b[2J\rover")
    assert caplog.messages == ["A text: 100%s {0} \\x1b[2J\\rover"]


# -- what a record holds ----------------------------------------------------------------------------------------------

WORDS = "an unmistakable phrase"


def texts_of(kit: Any, run_dir: Path, record: Any) -> str:  # noqa: F811
    adapter, reflection = kit.Words(), kit.Reflection()
    build, answer = adapter.make_reflective_dataset, reflection.answer

    def dataset(*arguments):
        return {name: [{**each, "Feedback": WORDS} for each in records] for name, records in build(*arguments).items()}

    def fail_sometimes(prompt):
        if reflection.calls % 4 == 0:
            raise RuntimeError(WORDS)
        return answer(prompt).replace("```\n", f"```\n{WORDS} ", 1)

    adapter.make_reflective_dataset, reflection.answer = dataset, fail_sometimes
    kit.run(
        kit.flash(record=record, plugins=[Reasoning()], max_concurrency=20),
        adapter=adapter,
        reflection=reflection,
        trainset=kit.Named(range(12), f"{WORDS} "),
        run_dir=str(run_dir),
        calls=400,
        raise_on_exception=False,
    )
    file = run_dir / "flashevolve_items.jsonl"
    return file.read_text("utf-8") if file.exists() else ""


class Reasoning:
    @hookimpl
    def flashevolve_judge_stale(self, item, pool):
        verdict = Verdict.DISCARD if item.number % 5 == 0 else Verdict.ACCEPT
        return Judgement(verdict, f"{WORDS}, of course")


def test_a_full_record_holds_the_words(kit, tmp_path):  # noqa: F811
    assert WORDS in texts_of(kit, tmp_path, "full")


def test_a_record_of_scores_holds_numbers_alone(kit, tmp_path, tell, capsys):  # noqa: F811
    text = texts_of(kit, tmp_path, "scores")
    lines = [json.loads(line) for line in text.splitlines()][1:]
    allowed = {
        *("item", "terminal", "version", "staleness", "calls", "started", "ended", "error", "checks", "members"),
        *("merged_into", "parent", "before", "after", "entries", "score", "parents", "stage", "verdict"),
    }
    nested = [each for line in lines for name in ("checks", "entries") for each in line.get(name, ())]
    assert {name for each in [*lines, *nested] for name in each} <= allowed
    assert any("after" in line for line in lines)
    assert any("entries" in line for line in lines)
    assert main(["items", str(tmp_path)]) == 0
    assert main(["items", str(tmp_path), "--item", str(lines[1]["item"])]) == 0
    assert WORDS not in capsys.readouterr().out
    tell('record="scores" with words everywhere', tries=1, outcome="numbers alone are recorded", lost=text.count(WORDS))


def test_without_records_there_is_no_file(kit, tmp_path, tell):  # noqa: F811
    texts_of(kit, tmp_path, record=False)
    found = [file.name for file in tmp_path.iterdir() if file.name.startswith("flashevolve_items")]
    tell("record=False", tries=1, outcome="no records are written", lost=len(found))


@pytest.mark.parametrize("wrong", [True, None, "none", 0, "Full"])
def test_only_three_values_are_taken(wrong):
    with pytest.raises(ValueError, match='must be "full", "scores" or False'):
        Flash(record=wrong)


# -- what is a secret -------------------------------------------------------------------------------------------------

HIDDEN_PARTS = {
    f"key {KEY}.": f"key {HIDDEN}.",
    "Authorization: Bearer abc.def-123456": f"Authorization: Bearer {HIDDEN}",
    "{'Authorization': 'Bearer abcdef123456', 'X': 1}": f"{{'Authorization': '{HIDDEN}', 'X': 1}}",
    '{"api_key": "whatever it is"}': '{"api_key": "whatever it is"}',
    '{"api_key": "whatever"}': f'{{"api_key": "{HIDDEN}"}}',
    "x-api-key: 0123456789": f"x-api-key: {HIDDEN}",
    "curl https://a.b/?api_key=xyzw&x=1": f"curl https://a.b/?api_key={HIDDEN}&x=1",
    "postgres://user:pa55@host:5432/db": f"postgres://{HIDDEN}@host:5432/db",
    "the token 9f86d081884c7d659a2feaa0c55ad015": f"the token {HIDDEN}",
    "API key provided: 9f86d081884c7d659a2feaa0c55ad015": f"API key provided: {HIDDEN}",
    "password=hunter2, user=me": f"password={HIDDEN}, user=me",
    "ghp_0123456789abcdefABCD": HIDDEN,
}
PLAIN = (
    "risk-averse, task-oriented and desk-bound readers",
    "The bearer of this letter; basic understanding is enough",
    "Count tokens: at most 4096. Password: must be kept. The secret of success is work.",
    "http://127.0.0.1:8000/v1 and https://example.org/a@b",
    "sha256 9f86d081884c7d659a2feaa0c55ad015 of the file",
    "note: 16:30 at https://example.org:443/path",
)


@pytest.mark.parametrize("text", HIDDEN_PARTS)
def test_what_looks_like_a_secret_is_hidden(text):
    assert redact(text) == HIDDEN_PARTS[text]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_words_stay(text):
    assert redact(text) == text


def test_what_the_environment_names_is_hidden_however_it_is_written(monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "a b/c'd\\e")
    monkeypatch.setenv("OTHER_KEY", "short")
    said = redact("a b/c'd\\e and a%20b%2Fc%27d%5Ce and " + repr("a b/c'd\\e") + " and short")
    assert said == f'{HIDDEN} and {HIDDEN} and "{HIDDEN}" and short'


def test_what_models_are_called_with_is_hidden():
    lm = SimpleNamespace(
        kwargs={
            "api_key": "plain-words-key",
            "api_base": "http://me:plain-words-word@host/v1",
            "extra_headers": {"Authorization": "Bearer plain-words-token", "X-Title": "a harmless title"},
        }
    )
    role = SimpleNamespace(llm=SimpleNamespace(_client=SimpleNamespace(api_key="plain-words-inner")), itself=None)
    role.model = role  # a loop
    register_secrets_of(lm, role, None, 3, "text")
    assert redact("plain-words-key plain-words-word plain-words-token plain-words-inner") == " ".join([HIDDEN] * 4)
    assert redact("a harmless title") == "a harmless title"


def test_a_secret_is_hidden_before_it_can_be_cut_in_two():
    register_secrets(["plain-words-cut", 3, "brief"])
    assert "plain" not in shown("x" * 190 + " plain-words-cut")
    assert redact("brief 3") == "brief 3"


def test_a_traceback_is_logged_without_the_secret(caplog):
    try:
        raise leaking()
    except RuntimeError as error:
        log(logging.getLogger("dspy.utils.parallelizer"), logging.ERROR, "It raised %r", error, exc_info=error)
    (record,) = caplog.records
    text = logging.Formatter().format(record)
    assert "Traceback" in text
    assert "leaking()" in text
    assert lost([text]) == 0


def test_a_line_of_our_logger_is_logged_without_the_secret(caplog):
    quiet()
    logger = logging.getLogger("flashevolve_plugins")
    logger.warning("It said %s", leaking())
    try:
        raise leaking()
    except RuntimeError:
        logger.exception("It raised")
    texts = [logging.Formatter().format(each) for each in caplog.records]
    assert ["It said" in texts[0], "Traceback" in texts[1]] == [True, True]
    assert lost(texts) == 0


def test_a_plugin_that_cannot_be_loaded_is_told_without_the_secret():
    class Point:
        name, value, module, dist = "leaky", "leaky.module", "leaky.module", None

        def load(self):
            raise leaking()

    with pytest.warns(UserWarning, match="was not loaded") as warned:
        Installed([Point()])
    assert lost([str(each.message) for each in warned]) == 0


def test_an_error_of_ours_hides_what_it_quotes():
    error = PluginError("some", "flashevolve_plan", "the run", leaking())
    assert lost([str(error), repr(error)]) == 0
    assert type(error.error) is RuntimeError


def test_visible_leaves_words_of_other_scripts_alone():
    text = "Grüße, 日本語\n\tमस्ते 👩‍🔬"
    assert visible(text) == text


def test_no_environment_variable_is_kept(monkeypatch):
    monkeypatch.delenv("SOME_SERVICE_TOKEN")
    assert redact(NAMED) == NAMED
    assert "SOME_SERVICE_TOKEN" not in os.environ
