"""What a run would reach outside this process, replaced by recorders: models, experiment trackers, bars and clocks."""

import itertools
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import gepa.core.engine
from gepa.utils import stop_condition
from gepa_records import frozen
from gepa_task import LONG, Reflection


class Service:
    """Stands in for a package: any function of it can be called, and the calls are kept."""

    def __init__(self, calls, name):
        self._calls, self._name = calls, name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Service(self._calls, f"{self._name}.{name}")

    def __call__(self, *arguments, **words):
        self._calls.append((self._name, frozen(arguments), frozen(words)))
        return Service(self._calls, f"{self._name}()")

    def __setitem__(self, key, value):
        self._calls.append((self._name, key, frozen(value)))

    def __deepcopy__(self, memo):
        return self

    def __eq__(self, other):
        return isinstance(other, Service) and self._name == other._name

    def __hash__(self):
        return hash(self._name)


class Mlflow(Service):
    """As mlflow, it has an active run per thread, and copies artifacts when they are logged."""

    def __init__(self, calls, name="mlflow"):
        super().__init__(calls, name)
        self._active = threading.local()
        self.log_artifact = self._log_artifact
        self.MlflowClient = lambda **_: SimpleNamespace(
            log_artifact=lambda _, path, **words: self._log_artifact(path, **words),
            log_param=Service(calls, "client.log_param"),
            log_metric=Service(calls, "client.log_metric"),
        )

    def active_run(self):
        return getattr(self._active, "run", None)

    def start_run(self):
        self._calls.append(("mlflow.start_run",))
        self._active.run = SimpleNamespace(info=SimpleNamespace(run_id="a run"))

    def end_run(self):
        self._calls.append(("mlflow.end_run",))
        self._active.run = None

    def _log_artifact(self, path, **words):
        self._calls.append(("log_artifact", Path(path).read_text(encoding="utf-8"), words))
        Path(path).unlink()


class Litellm:
    """Answers gepa's reflection prompt as the task's reflection model does, and any other with its system prompt."""

    def __init__(self, calls):
        self._calls = calls
        self._reflection = Reflection()

    def completion(self, *, model, messages, **words):
        self._calls.append((model, frozen(messages), words))
        prompt = messages[-1]["content"]
        reflects = "```" in prompt
        answer = self._reflection.answer(prompt) if reflects else " ".join(messages[0]["content"].split()[:LONG])
        choice = SimpleNamespace(finish_reason="stop", message=SimpleNamespace(content=answer))
        return SimpleNamespace(choices=[choice], usage=SimpleNamespace(prompt_tokens=1, completion_tokens=1))

    def batch_completion(self, *, messages, max_workers, **words):
        return [self.completion(messages=each, **words) for each in messages]

    def completion_cost(self, **_):
        return 0.01


class Services:
    """All of them, with one list of calls."""

    def __init__(self, monkeypatch):
        self.calls = []
        self.mlflow = Mlflow(self.calls)
        monkeypatch.setitem(sys.modules, "litellm", Litellm(self.calls))
        monkeypatch.setitem(sys.modules, "mlflow", self.mlflow)
        monkeypatch.setitem(sys.modules, "wandb", Service(self.calls, "wandb"))
        monkeypatch.setattr(gepa.core.engine, "tqdm", Service(self.calls, "tqdm"))
        ticks = itertools.count(100.0)
        monkeypatch.setattr(stop_condition, "time", SimpleNamespace(time=lambda: next(ticks)))

    def take(self):
        """The calls since the last time."""
        taken = list(self.calls)
        self.calls.clear()
        return taken
