"""The three roles. Each has a prompt, makes one call, and reads the response."""

import json
import re

from llm import timed_llm_call
from logger import log_curator_failure
from playbook_utils import apply_curator_operations, extract_json_from_text


class _Role:
    def __init__(self, api_client, api_provider, model, max_tokens=4096):
        self.api_client, self.api_provider, self.model, self.max_tokens = api_client, api_provider, model, max_tokens

    def _ask(self, parts, call_id, log_dir, use_json_mode):
        prompt = "\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in parts.items())
        return timed_llm_call(
            self.api_client,
            self.api_provider,
            self.model,
            prompt,
            role=type(self).__name__.lower(),
            call_id=call_id,
            max_tokens=self.max_tokens,
            log_dir=log_dir,
            use_json_mode=use_json_mode,
        )


class Generator(_Role):
    def generate(
        self, question, playbook, context="", reflection="(empty)", use_json_mode=False, call_id="gen", log_dir=None
    ):
        parts = {"playbook": playbook, "reflection": reflection, "question": question, "context": context}
        response, info = self._ask(parts, call_id, log_dir, use_json_mode)
        try:
            named = json.loads(response).get("bullet_ids", []) if use_json_mode else None
        except ValueError:
            named = None
        return response, re.findall(r"\[([a-z]{3,}-\d{5})\]", response) if named is None else named, info


class Reflector(_Role):
    def reflect(
        self,
        question,
        reasoning_trace,
        predicted_answer,
        ground_truth,
        environment_feedback,
        bullets_used,
        use_ground_truth=True,
        use_json_mode=False,
        call_id="reflect",
        log_dir=None,
    ):
        parts = {"question": question, "trace": reasoning_trace, "answer": predicted_answer}
        if use_ground_truth and ground_truth:
            parts["truth"] = ground_truth
        parts.update(feedback=environment_feedback, bullets=bullets_used)
        response, info = self._ask(parts, call_id, log_dir, use_json_mode)
        try:
            tags = json.loads(response).get("bullet_tags", [])
        except ValueError:
            tags = []
        return response, tags, info


class Curator(_Role):
    def curate(
        self,
        current_playbook,
        recent_reflection,
        question_context,
        current_step,
        total_samples,
        token_budget,
        playbook_stats,
        use_ground_truth=True,
        use_json_mode=False,
        call_id="curate",
        log_dir=None,
        next_global_id=1,
    ):
        parts = {
            "step": f"{current_step} of {total_samples}, {token_budget} tokens, truth {use_ground_truth}",
            "stats": json.dumps(playbook_stats, indent=2),
            "reflection": recent_reflection,
            "playbook": current_playbook,
            "context": question_context,
        }
        response, info = self._ask(parts, call_id, log_dir, use_json_mode)
        try:
            operations = _operations(response)
            text, next_global_id = apply_curator_operations(current_playbook, operations, next_global_id)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a response, the training goes on
            log_curator_failure(log_dir, current_step, "unreadable", response, 0, str(error))
            return current_playbook, next_global_id, [], info
        return text, next_global_id, operations, info


def _operations(response):
    found = extract_json_from_text(response, "operations")
    if not found or not isinstance(found.get("reasoning"), str) or not isinstance(found["operations"], list):
        raise ValueError("no operations")
    return found["operations"]
