"""The host: one step after the other, with one playbook."""

import json
from datetime import datetime, timezone
from pathlib import Path

from logger import *  # noqa: F403 - the functions of a checkout are found in this module
from logger import log_bullet_usage
from playbook_utils import *  # noqa: F403 - as above
from playbook_utils import extract_playbook_bullets, get_playbook_stats, update_bullet_counts
from utils import *  # noqa: F403 - as above
from utils import count_tokens, evaluate_test_set, extract_answer, initialize_clients

from .core import BulletpointAnalyzer, Curator, Generator, Reflector

SECTIONS = (
    "STRATEGIES & INSIGHTS",
    "FORMULAS & CALCULATIONS",
    "CODE SNIPPETS & TEMPLATES",
    "COMMON MISTAKES TO AVOID",
    "PROBLEM-SOLVING HEURISTICS",
    "CONTEXT CLUES & INDICATORS",
    "OTHERS",
)
#: Name in what is extracted, name in the configuration, default.
OPTIONS = (
    ("num_epochs", "num_epochs", 1),
    ("max_num_rounds", "max_num_rounds", 3),
    ("curator_frequency", "curator_frequency", 1),
    ("eval_steps", "eval_steps", 100),
    ("save_steps", "save_steps", 50),
    ("token_budget", "playbook_token_budget", 80000),
    ("task_name", "task_name", "default"),
    ("use_json_mode", "json_mode", False),
    ("no_ground_truth", "no_ground_truth", False),
    ("save_dir", "save_dir", "./results"),
    ("test_workers", "test_workers", 20),
)


def _save(path, content):
    Path(path).write_text(content if isinstance(content, str) else json.dumps(content, indent=2), encoding="utf-8")


class ACE:
    def __init__(
        self,
        api_provider,
        generator_model,
        reflector_model,
        curator_model,
        max_tokens=4096,
        initial_playbook=None,
        use_bulletpoint_analyzer=False,
        bulletpoint_analyzer_threshold=0.90,
    ):
        clients = initialize_clients(api_provider)
        self.generator = Generator(clients[0], api_provider, generator_model, max_tokens)
        self.reflector = Reflector(clients[1], api_provider, reflector_model, max_tokens)
        self.curator = Curator(clients[2], api_provider, curator_model, max_tokens)
        self.use_bulletpoint_analyzer = use_bulletpoint_analyzer
        self.bulletpoint_analyzer_threshold = bulletpoint_analyzer_threshold
        self.bulletpoint_analyzer = (
            BulletpointAnalyzer(clients[2], curator_model, max_tokens) if use_bulletpoint_analyzer else None
        )
        self.max_tokens = max_tokens
        self.playbook = self.best_playbook = initial_playbook or "\n\n".join(f"## {name}" for name in SECTIONS)
        self.next_global_id = 1

    def _extract_config_params(self, config):
        return {name: config.get(key, default) for name, key, default in OPTIONS}

    def run(self, mode, train_samples=None, val_samples=None, test_samples=None, data_processor=None, config=None):
        params = self._extract_config_params(config)
        moment = datetime.now(timezone.utc).strftime("%Y%m%d_%H%M%S")
        folder = Path(params["save_dir"], f"ace_run_{moment}_{params['task_name']}_{mode}")
        log_dir, books = folder / "detailed_llm_logs", folder / "intermediate_playbooks"
        log_dir.mkdir(parents=True, exist_ok=True)
        models = {f"{name}_model": getattr(self, name).model for name in ("generator", "reflector", "curator")}
        _save(
            folder / "run_config.json",
            {"task_name": params["task_name"], "mode": mode, **models, "config": config},
        )
        common = {"data_processor": data_processor, "config": config, "log_dir": str(log_dir)}
        common["save_path"] = str(folder)
        results = {}
        if mode == "eval_only":
            results["test_results"] = self._run_test(test_samples, playbook=self.playbook, prefix="test", **common)
        else:
            books.mkdir(exist_ok=True)
            paths = {"usage_log_path": str(folder / "bullet_usage_log.jsonl"), "playbook_dir": str(books)}
            if test_samples:
                before = self._run_test(test_samples, playbook=self.playbook, prefix="initial", **common)
                results["initial_test_results"] = before
            if mode == "online":
                online = self._online_train_and_test(test_samples=test_samples, **common, **paths)
                results["online_test_results"] = online
            else:
                trained = self._offline_train(train_samples=train_samples, val_samples=val_samples, **common, **paths)
                results["training_results"] = trained
                if test_samples:
                    after = self._run_test(test_samples, playbook=self.best_playbook, prefix="final", **common)
                    results["final_test_results"] = after
        _save(folder / "final_results.json", results)
        return results

    def _test(self, samples, data_processor, playbook, params, log_dir):
        return evaluate_test_set(
            data_processor,
            self.generator,
            playbook,
            samples,
            self.max_tokens,
            log_dir,
            max_workers=params["test_workers"],
            use_json_mode=params["use_json_mode"],
        )

    def _run_test(self, test_samples, data_processor, playbook, config, log_dir, save_path, prefix="test"):
        params = self._extract_config_params(config)
        results, errors = self._test(test_samples, data_processor, playbook, params, log_dir)
        _save(Path(save_path, f"{prefix}_test_results.json"), {"test_results": results, "error_log": errors})
        return results

    def _train_single_sample(
        self,
        task_dict,
        data_processor,
        step_id,
        epoch,
        step,
        usage_log_path,
        log_dir,
        config_params,
        total_samples,
    ):
        common = {"use_json_mode": config_params["use_json_mode"], "log_dir": log_dir}
        truth = not config_params["no_ground_truth"]
        question, context = task_dict.get("question", ""), task_dict.get("context", "")
        target = task_dict.get("target", "")

        def generate(name, reflection="(empty)"):
            response, bullets, _ = self.generator.generate(
                question=question,
                playbook=self.playbook,
                context=context,
                reflection=reflection,
                call_id=f"{step_id}_{name}",
                **common,
            )
            answer = extract_answer(response)
            return response, bullets, answer, data_processor.answer_is_correct(answer, target)

        def result():
            return {
                "final_answer": answer,
                "is_correct": right,
                "playbook_num_tokens": count_tokens(self.playbook),
                "playbook_length": len(self.playbook),
            }

        def reflect(name, feedback):
            said, tags, _ = self.reflector.reflect(
                question=question,
                reasoning_trace=response,
                predicted_answer=answer,
                ground_truth=target if truth else None,
                environment_feedback=feedback,
                bullets_used=extract_playbook_bullets(self.playbook, bullets),
                use_ground_truth=truth,
                call_id=f"{step_id}_{name}",
                **common,
            )
            if tags:
                self.playbook = update_bullet_counts(self.playbook, tags)
            return said

        def log(**more):
            given = {"playbook": self.playbook, "is_correct": right, **more}
            log_bullet_usage(usage_log_path, epoch, step, task_dict, bullets, **given)

        response, bullets, answer, right = generate("gen_initial")
        log()
        tracked = {"pre_train_result": result()}
        before, reflection = answer, "(empty)"
        if right:
            reflection = reflect("reflect_on_correct", "Predicted answer matches ground truth")
            log(reflection_content=reflection)
        else:
            for number in range(config_params["max_num_rounds"]):
                reflection = reflect(f"round_{number}", "Predicted answer does not match ground truth")
                response, bullets, answer, right = generate(f"post_reflect_round_{number}", reflection)
                if right:
                    break
        if step % config_params["curator_frequency"] == 0:
            self._curate(reflection, context, step, total_samples, config_params, step_id, log_dir)
        response, bullets, answer, right = generate("post_curate")
        tracked["post_train_result"] = result()
        return before, answer, tracked

    def _curate(self, reflection, context, step, total_samples, params, step_id, log_dir):
        self.playbook, self.next_global_id, _, _ = self.curator.curate(
            current_playbook=self.playbook,
            recent_reflection=reflection,
            question_context=context,
            current_step=step,
            total_samples=total_samples,
            token_budget=params["token_budget"],
            playbook_stats=get_playbook_stats(self.playbook),
            use_ground_truth=not params["no_ground_truth"],
            use_json_mode=params["use_json_mode"],
            call_id=step_id,
            log_dir=log_dir,
            next_global_id=self.next_global_id,
        )
        if self.bulletpoint_analyzer:
            self.playbook = self.bulletpoint_analyzer.analyze(
                playbook=self.playbook, threshold=self.bulletpoint_analyzer_threshold, merge=True
            )

    def _stated(self):
        return {
            "playbook_num_tokens": count_tokens(self.playbook),
            "playbook_length": len(self.playbook),
            "playbook_stats": get_playbook_stats(self.playbook),
        }

    def _offline_train(
        self,
        train_samples,
        val_samples,
        data_processor,
        config,
        save_path,
        usage_log_path,
        playbook_dir,
        log_dir,
    ):
        params = self._extract_config_params(config)
        folder, books = Path(save_path), Path(playbook_dir)
        results, rows, logs, best = [], [], [], 0.0
        self.best_playbook = self.playbook
        for epoch in range(1, params["num_epochs"] + 1):
            epoch_rows = []
            for step, sample in enumerate(train_samples, 1):
                _, _, tracked = self._train_single_sample(
                    task_dict=sample,
                    data_processor=data_processor,
                    step_id=f"train_e_{epoch}_s_{step}",
                    epoch=epoch,
                    step=step,
                    usage_log_path=usage_log_path,
                    log_dir=log_dir,
                    config_params=params,
                    total_samples=len(train_samples),
                )
                epoch_rows.append({"epoch": epoch, "step": step, "target": sample.get("target", ""), **tracked})
                rows.append(epoch_rows[-1])
                if step % params["save_steps"] == 0:
                    _save(books / f"epoch_{epoch}_step_{step}_playbook.txt", self.playbook)
                if step % params["eval_steps"] == 0:
                    place, train = {"epoch": epoch, "step": step}, _accuracies(data_processor, epoch_rows)
                    result, errors = self._test(val_samples, data_processor, self.playbook, params, log_dir)
                    results.append({**place, "train_result": train, "val_result": result, **self._stated()})
                    logs.append({**place, "val_results": result, "error_log": errors})
                    if result["accuracy"] > best:
                        best, self.best_playbook = result["accuracy"], self.playbook
                    _save(folder / "val_results.json", logs)
            _save(books / f"epoch_{epoch}_final_playbook.txt", self.playbook)
        _save(folder / "train_results.json", {"best_accuracy": best, "results": results})
        _save(folder / "pre_train_post_train_results.json", rows)
        _save(folder / "final_playbook.txt", self.playbook)
        _save(folder / "best_playbook.txt", self.best_playbook)
        return {"best_validation_accuracy": best}

    def _online_train_and_test(
        self, test_samples, data_processor, config, save_path, usage_log_path, playbook_dir, log_dir
    ):
        params, size = self._extract_config_params(config), config.get("online_eval_frequency", 100)
        folder, books = Path(save_path), Path(playbook_dir)
        if params["num_epochs"] != 1:
            raise ValueError("online training has one epoch")
        trained, rows, tested, errors = [], [], [], []
        weighted = right = total = 0
        for window, start in enumerate(range(0, len(test_samples), size), 1):
            samples = test_samples[start : start + size]
            result, log = self._test(samples, data_processor, self.playbook, params, log_dir)
            weighted += result["accuracy"] * result["total"]
            right, total = right + result["correct"], total + result["total"]
            for each in log["errors"]:
                place = {"window": window, "global_index": start + each["index"]}
                errors.append({**place, "prediction": each["prediction"], "ground_truth": each["ground_truth"]})
            tested.append(
                {
                    "window": window,
                    "start_idx": start,
                    "end_idx": start + len(samples),
                    **{f"window_{name}": result[name] for name in ("accuracy", "correct", "total")},
                }
            )
            window_rows = []
            for step, sample in enumerate(samples, start + 1):
                _, _, tracked = self._train_single_sample(
                    task_dict=sample,
                    data_processor=data_processor,
                    step_id=f"online_train_s_{step}",
                    epoch=1,
                    step=step,
                    usage_log_path=usage_log_path,
                    log_dir=log_dir,
                    config_params=params,
                    total_samples=len(test_samples),
                )
                target = sample.get("target", "")
                window_rows.append({"window": window, "global_step": step, "target": target, **tracked})
                rows.append(window_rows[-1])
                if step % params["save_steps"] == 0:
                    _save(books / f"step_{step}_playbook.txt", self.playbook)
            trained.append(
                {
                    "window": window,
                    "global_step": start + len(samples),
                    "train_result": _accuracies(data_processor, window_rows),
                    "cumulative_test_accuracy": weighted / total,
                    **self._stated(),
                }
            )
            _save(books / f"window_{window}_final_playbook.txt", self.playbook)
        told = {"accuracy": weighted / total, "correct": right, "total": total}
        _save(
            folder / "test_results.json",
            {
                "test_accuracy": told["accuracy"],
                "test_results": {**told, "window_results": tested},
                "test_error_log": {"accuracy": told["accuracy"], "errors": errors},
            },
        )
        _save(folder / "train_results.json", {"train_results": trained})
        _save(folder / "pre_train_post_train_results.json", rows)
        _save(folder / "final_playbook.txt", self.playbook)
        return told


def _accuracies(data_processor, rows):
    targets = [row["target"] for row in rows]
    return {
        f"{name}_train_accuracy": data_processor.evaluate_accuracy(
            [row[f"{name}_train_result"]["final_answer"] for row in rows], targets
        )
        for name in ("pre", "post")
    }
