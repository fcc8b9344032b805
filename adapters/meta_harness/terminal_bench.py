"""The example ``terminal_bench_2``: an evaluation's jobs are the trials of its tasks, where the tasks are known."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.adapters.meta_harness.checkout_host import CheckoutHost
from flashevolve_plugins.adapters.meta_harness.host import Job, Ran
from flashevolve_plugins.adapters.meta_harness.private_copy import OWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flashevolve_plugins.adapters.meta_harness.checkout import Example
    from flashevolve_plugins.adapters.meta_harness.checkout_host import Work
    from flashevolve_plugins.adapters.meta_harness.publishing import Candidate

CLASS = "AgentHarness"  # whatever the proposer says, the host takes this one
MODULE = re.compile(r"agents\.(\w+)(?:\.\w+)*")
UNSAFE = re.compile(r"[^\w.-]")
TRIAL_SECONDS = 14_400.0  # as the host's for all trials
TRIES = 2
FINAL_TRIALS = 5


class TerminalBench(CheckoutHost):
    """Its arguments are those of :class:`CheckoutHost`."""

    label = "agent"

    def __init__(self, example: Example, args: Any, *, lockstep: bool) -> None:
        super().__init__(example, args, lockstep=lockstep)
        self.jobs_folder = self._place("JOBS_DIR", "jobs")
        self.evaluators = args.concurrent
        self._tasks: list[str] = []

    def has_results(self, name: str) -> bool:
        """Whether a candidate of this name has a folder of trials."""
        return any(self._jobs_folder.glob(f"evolve-{name}-t*"))

    @property
    def _jobs_folder(self) -> Path:
        assert self.jobs_folder is not None  # noqa: S101 - this layout has one
        return self.jobs_folder

    def iterations(self) -> int:
        """As the host counts."""
        return int(self.module.count_iterations())

    def counted(self) -> int:
        """Trials."""
        return int(self.args.trials)

    # -- baselines --------------------------------------------------------------------------------------------------

    def _baseline_job(self, name: str) -> str:
        return f"{name}-t{self.args.trials}"

    def baselines(self) -> Sequence[Job]:
        """One command each, where there is no earlier result that fits."""
        if self.args.skip_baseline:
            return ()
        return [
            Job(partial(self._run_whole, path, self._baseline_job(name)))
            for name, path in self.module.BASELINES
            if not self._is_there(self._jobs_folder / self._baseline_job(name))
        ]

    def _run_whole(self, import_path: str, job: str) -> Any:
        """All tasks and trials in one command."""
        trials, concurrent = self.args.trials, self.args.concurrent
        return self.module.harbor_run(import_path, job, n_trials=trials, n_concurrent=concurrent)[1]

    def _is_there(self, folder: Path) -> bool:
        """Whether a baseline has results of this model and of as many trials."""
        if not folder.exists() or not self.module.parse_job_results(folder):
            return False
        config = folder / "config.json"
        if not config.exists():
            return True
        try:
            said = json.loads(config.read_text())
        except (ValueError, OSError):
            return False
        model = said.get("model") or said.get("agent", {}).get("model", "")
        return self.module.MODEL in str(model) and said.get("n_attempts", 0) == self.args.trials

    def take_baselines(self) -> tuple[str, float]:
        """Let them enter the host's frontier. Their tasks are the ones that candidates are tried on."""
        for name, _ in self.module.BASELINES:
            folder = self._jobs_folder / self._baseline_job(name)
            rewards = self.module.parse_job_results(folder, expected_trials=self.args.trials) if folder.exists() else {}
            if rewards:
                self._tasks = sorted({*self._tasks, *rewards})
                with self.changing_frontier():
                    self.module.update_frontier({name: self.module.compute_pass_rates(rewards)})
        return self._first_of_frontier()

    def _first_of_frontier(self) -> tuple[str, float]:
        path = self.module.FRONTIER_VAL
        best = json.loads(path.read_text()).get("_best", {}) if path.exists() else {}
        return str(best.get("agent", "none")), float(best.get("avg_pass_rate", 0))

    # -- candidates -------------------------------------------------------------------------------------------------

    def stem(self, told: Mapping[str, Any]) -> str | None:
        """The module of its import path, which is part of a program that the host runs: nothing else will do."""
        path = told.get("import_path")
        found = MODULE.fullmatch(path.split(":")[0]) if isinstance(path, str) else None
        return found.group(1) if found and isinstance(told.get("name"), str) else None

    def renamed(self, told: Mapping[str, Any], stem: str) -> dict[str, Any]:
        """A path to the host's class; with a name, in the module of that name, after which the candidate is called."""
        renamed = dict(told)
        module = str(told.get("import_path", "")).split(":")[0]
        if stem:
            inner = module.split(".")[2:]
            module = ".".join(["agents", stem, *inner])
            renamed["name"] = UNSAFE.sub("_", stem)
        if module:
            renamed["import_path"] = f"{module}:{CLASS}"
        return renamed

    def module_of(self, name: str) -> str:
        """A baseline's is in its import path; a candidate has its module's name."""
        found = MODULE.fullmatch(dict(self.module.BASELINES).get(name, "").split(":")[0])
        return found.group(1) if found else name

    def check(self, candidate: Candidate) -> bool:
        """The host's import check and its smoke test."""
        name, path = candidate.name, candidate.told["import_path"]
        if not self.module.validate_candidate(name, path):
            return False
        return bool(self.args.skip_smoke or self.module.smoke_test(name, path))

    def _job(self, candidate: Candidate) -> str:
        return f"evolve-{candidate.name}-t{self.args.trials}"

    def evaluation(self, candidate: Candidate) -> Sequence[Job]:
        """Trial by trial; all in one command in lockstep, and where no task is known."""
        path, job = candidate.told["import_path"], self._job(candidate)
        if self.lockstep or not self._tasks:
            return [Job(partial(self._run_whole, path, job))]
        return [
            Job(partial(self._run_trial, path, job, task, trial), name=f"{task} {trial}")
            for trial in range(self.args.trials)
            for task in self._tasks
        ]

    def _run_trial(self, import_path: str, job: str, task: str, trial: int) -> Ran:
        """One trial of one task; tried again where the command fails and leaves no result."""
        place = self._jobs_folder / OWN / job
        for attempt in range(TRIES):
            name = f"{task}-{trial}-{attempt}"
            command = [
                str(self.example.path / "scripts" / "run_eval.sh"),
                import_path,
                self.module.EVAL_TASK_SET,
                *("1", "1", "-i", task, "--job-name", name, "--jobs-dir", str(place)),
            ]
            log = self.logs / "flashevolve_jobs" / f"{job}.{name}.log"
            self.run_job(command, log, TRIAL_SECONDS, HARBOR_MODEL=self.module.MODEL)
            for result in (place / name).glob(f"{task}__*/result.json"):
                return Ran(ok=True, score=self._reward(result.parent.parent, task))
        return Ran(ok=False)

    def _reward(self, folder: Path, task: str) -> float | None:
        """As the host reads it."""
        rewards = self.module.parse_job_results(folder).get(task)
        return float(rewards[0]) if rewards else None

    def write(self, work: Work, results: Sequence[Any]) -> dict[str, float]:
        """The summary, then the frontier; in lockstep, as the host, the other way round."""
        module, metrics, whole = self.module, {}, {}
        told: dict[str, Any] = {}
        count = len(results) // len(work.valid)
        for number, candidate in enumerate(work.valid):
            mine = [each.ok if isinstance(each, Ran) else bool(each) for each in results[number * count :][:count]]
            folder = self._gathered(candidate)
            if not folder.is_dir() or not any(mine):
                told[candidate.name] = ({}, 0)
                continue
            rewards = module.parse_job_results(folder, expected_trials=self.args.trials)
            told[candidate.name] = module.compute_pass_rates(rewards)
            metrics[candidate.name] = module.summarize_trial_metrics(module.parse_trial_metrics(folder))
            if all(mine):
                whole[candidate.name] = float(told[candidate.name][1])
        if self.lockstep:
            module.update_frontier(told, metrics=metrics)
        with self.appending():
            module.update_evolution_summary(
                work.iteration,
                [each.told for each in work.valid],
                told,
                propose_time=work.propose_seconds,
                bench_time=self.seconds_since(work),
                metrics=metrics,
            )
        if not self.lockstep:
            with self.changing_frontier():
                module.update_frontier({name: told[name] for name in whole}, metrics=metrics)
        return whole

    def _gathered(self, candidate: Candidate) -> Path:
        """The folder that the host reads a candidate's trials from."""
        folder = self._jobs_folder / self._job(candidate)
        apart = self._jobs_folder / OWN / folder.name
        for trial in sorted(apart.glob("*/*__*")):
            if (trial / "result.json").is_file():
                folder.mkdir(exist_ok=True)
                target, number = folder / trial.name, 1
                while target.exists():
                    number += 1
                    target = folder / f"{trial.name}-{number}"
                trial.rename(target)
        return folder

    def write_failed(self, work: Work) -> None:
        """As the host: every candidate failed."""
        told = [{**each.told, "name": each.name} for each in work.candidates]
        with self.appending():
            self.module.update_evolution_summary(work.iteration, told, {}, propose_time=work.propose_seconds)

    # -- the end ----------------------------------------------------------------------------------------------------

    def last(self) -> Sequence[Job]:
        """The host's optional trials of the best candidate."""
        name, _ = self._first_of_frontier()
        if not self.args.full_eval or name in ("none", self.module.BASELINES[0][0]):
            return ()
        for line in self.module.EVOLUTION_SUMMARY.read_text().splitlines():
            row = json.loads(line) if line.strip() else {}
            if row.get("agent") == name and row.get("import_path"):
                run = partial(self.module.harbor_run, n_trials=FINAL_TRIALS, n_concurrent=self.args.concurrent)
                return [Job(partial(run, row["import_path"], f"final-{name}-t{FINAL_TRIALS}"))]
        return ()
