"""The example ``text_classification``: an evaluation's jobs are datasets with seeds."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import HostError, UsageError
from flashevolve_plugins.adapters.meta_harness.checkout_host import CheckoutHost
from flashevolve_plugins.adapters.meta_harness.host import Job, Ran
from flashevolve_plugins.adapters.meta_harness.private_copy import OWN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flashevolve_plugins.adapters.meta_harness.checkout import Example
    from flashevolve_plugins.adapters.meta_harness.checkout_host import Work
    from flashevolve_plugins.adapters.meta_harness.publishing import Candidate

BENCHMARK = ["load_config", "load_results", "build_val_runs", "print_frontier", "parse_run_path", "DATASETS", "MODELS"]
JOB_SECONDS = 7200.0  # as the host
TRIES = 3  # as the host


class TextClassification(CheckoutHost):
    """Its arguments are those of :class:`CheckoutHost`.

    Raises:
        UsageError: a model that its configuration does not have.
        HostError: a benchmark that flash does not know.
    """

    label = "system"

    def __init__(self, example: Example, args: Any, *, lockstep: bool) -> None:
        benchmark: Any = example.modules.get("benchmark")
        missing = [name for name in BENCHMARK if not hasattr(benchmark, name)]
        if missing:
            raise HostError(f"The benchmark.py in {str(example.path)!r} has no {missing[0]}, which flash calls.")
        self._benchmark = benchmark
        models = [each["model"] for each in benchmark.MODELS]
        if args.model not in models:
            raise UsageError(f"--model {args.model} is not in config.yaml: it has {', '.join(models)}.")
        super().__init__(example, args, lockstep=lockstep)
        config = benchmark.load_config()
        self._names = list(config["memory_systems"]["baselines"])
        self._inner = config.get("inner_loop", {})
        self._model = self.module.get_model_short_name(args.model)

    def has_results(self, name: str) -> bool:
        """Whether any dataset has results of this name."""
        return any((self.logs / dataset / name).exists() for dataset in self._benchmark.DATASETS)

    def iterations(self) -> int:
        """As the host counts."""
        return int(self.module.count_iterations_from_summary())

    def counted(self) -> int:
        """Datasets."""
        return len(self._benchmark.DATASETS)

    def baselines(self) -> Sequence[Job]:
        """One command each in lockstep, else their datasets and seeds."""
        if self.args.skip_baseline:
            return ()
        if self.lockstep:
            return [Job(partial(self.module.run_benchmark, ["--memory", name])) for name in self._names]
        return [job for name in self._names for job in self._jobs(name, self.logs)]

    def take_baselines(self) -> tuple[str, float]:
        """The host's own frontier of them."""
        if not self.args.skip_baseline or not self.lockstep:  # a killed run may have got no further than the summary
            self._write_frontier()
        return self._first_of_frontier()

    def _first_of_frontier(self) -> tuple[str, float]:
        path = self.module.FRONTIER_VAL
        pareto = json.loads(path.read_text()).get("_pareto", []) if path.exists() else []
        first = pareto[0] if pareto else {}
        return str(first.get("system", "none")), float(first.get("val_accuracy", 0))

    def stem(self, told: Mapping[str, Any]) -> str | None:
        """Its name is its module's, and part of a program that the host runs: nothing else will do."""
        name = told.get("name")
        return name if isinstance(name, str) and name.isidentifier() else None

    def renamed(self, told: Mapping[str, Any], stem: str) -> dict[str, Any]:
        """The name is the module's."""
        return {**told, "name": stem} if stem else dict(told)

    def module_of(self, name: str) -> str:
        """The name is the module's."""
        return name

    def check(self, candidate: Candidate) -> bool:
        """The host's import check."""
        return bool(self.module.validate_candidates([candidate.told]))

    def evaluation(self, candidate: Candidate) -> Sequence[Job]:
        """One command in lockstep, else its datasets and seeds."""
        if self.lockstep:
            return [Job(partial(self.module.run_benchmark, ["--memory", candidate.name]))]
        return self._jobs(candidate.name, self.staging / candidate.name)

    def _jobs(self, name: str, logs: Path) -> Sequence[Job]:
        runs, _, _ = self._benchmark.build_val_runs(
            logs,
            [(name, f"agents/{name}.py")],
            self._benchmark.DATASETS,
            self._benchmark.MODELS,
            self._inner.get("mode", "online"),
            self._inner.get("num_epochs", 1),
            self._inner.get("temperature"),
        )
        place = self.logs / "flashevolve_jobs"
        return [
            Job(partial(self._run, command, place / f"{name}.{number}.log"), name=_piece(command, logs, name))
            for number, (_, command) in enumerate(runs)
        ]

    def _run(self, command: Sequence[str], log: Path) -> Ran:
        for _ in range(TRIES):
            if self.run_job(command, log, JOB_SECONDS) == 0:
                return Ran(ok=True, score=_accuracy(command))
        return Ran(ok=False)

    def write(self, work: Work, results: Sequence[Any]) -> dict[str, float]:
        """The summary, then the frontier; in lockstep, as the host, the other way round."""
        valid = work.valid
        if self.lockstep:
            self._write_frontier()
        for candidate in valid:
            self._take(candidate.name)
        scores = self._scores([each.name for each in valid])
        with self.appending():
            self.module.update_evolution_summary(
                work.iteration,
                [each.told for each in valid],
                scores,
                propose_time=work.propose_seconds,
                bench_time=self.seconds_since(work),
                wall_time=work.propose_seconds + self.seconds_since(work),
            )
        if self.lockstep:
            return scores
        self._write_frontier()
        whole, count = {}, len(results) // len(valid)
        for number, candidate in enumerate(valid):
            mine = results[number * count :][:count]
            if candidate.name in scores and all(each.ok for each in mine):
                whole[candidate.name] = scores[candidate.name]
        return whole

    def write_failed(self, work: Work) -> None:
        """As the host: every candidate failed."""
        told = [{**each.told, "name": each.name} for each in work.candidates]
        with self.appending():
            self.module.update_evolution_summary(work.iteration, told, {}, propose_time=work.propose_seconds)

    def _take(self, name: str) -> None:
        """Move a candidate's results to the others'."""
        for dataset in self._benchmark.DATASETS:
            source = self.staging / name / dataset / name
            if source.is_dir():
                target = self.logs / dataset / name
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)

    def _scores(self, names: Sequence[str]) -> dict[str, float]:
        """The mean over the datasets, in percent; in lockstep 0 where there is no result, as the host has it."""
        results = self.module.load_results(self.logs, "val.json")
        scores = {}
        for name in names:
            found = [results.get((self._model, dataset, name), {}) for dataset in self._benchmark.DATASETS]
            values = [each["accuracy"] * 100 for each in found if each.get("accuracy") is not None]
            if values:
                scores[name] = sum(values) / len(values)
            elif self.lockstep:
                scores[name] = 0
        return scores

    def _write_frontier(self) -> None:
        """The host's frontier of what is committed."""
        if self.lockstep:
            self.module.run_benchmark(["--frontier", "--model", self._model])
            return
        view = self.staging / "frontier"
        for path in self.logs.rglob("val.json"):
            if OWN in path.parts or not self._benchmark.parse_run_path(self.logs, path):
                continue
            link = view / path.relative_to(self.logs)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            try:
                os.link(path, link)
            except OSError:  # a file system without links
                shutil.copyfile(path, link)
        view.mkdir(parents=True, exist_ok=True)
        with _silent(self._benchmark):
            self._benchmark.print_frontier(view, self.example.path / "results", model_filter=self._model, metric="val")
        made = view / self.module.FRONTIER_VAL.name
        if made.exists():
            made.replace(self.module.FRONTIER_VAL)

    def last(self) -> Sequence[Job]:
        """The host's test of the baselines and of all that is on the frontier."""
        path = self.module.FRONTIER_VAL
        frontier = json.loads(path.read_text()) if path.exists() else {}
        names = {*self._names, *(each["system"] for each in frontier.get("_pareto", []))}
        for key, value in frontier.items():
            if not key.startswith("_") and isinstance(value, dict) and "best_system" in value:
                names.add(value["best_system"])
        return [Job(partial(self.module.run_benchmark, ["--memory", name, "--test"])) for name in sorted(names)]

    def take_last(self, results: Sequence[Any]) -> None:
        """The host's own tables."""
        del results
        self.module.run_benchmark(["--frontier", "--test", "--model", self._model])
        self.module.run_benchmark(["--results"])


def _piece(command: Sequence[str], logs: Path, name: str) -> str | None:
    """The dataset, model and seed of a job: where it writes, without its candidate. The host shuffles the jobs."""
    with suppress(ValueError, LookupError):
        place = Path(command[command.index("--val-output") + 1]).parent.relative_to(logs)
        return "/".join(each for each in place.parts if each != name)
    return None


def _accuracy(command: Sequence[str]) -> float | None:
    """What a job has written of one dataset and seed, from 0 to 1."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        path = command[command.index("--val-output") + 1]
        return float(json.loads(Path(path).read_text(encoding="utf-8"))["accuracy"])
    return None


@contextmanager
def _silent(module: Any) -> Iterator[None]:
    """Let a module print nothing, and every other go on."""
    module.print = lambda *_, **__: None
    try:
        yield
    finally:
        del module.print
