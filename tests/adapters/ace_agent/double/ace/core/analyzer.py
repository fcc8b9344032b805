"""Merges bullets that say the same."""

from playbook_utils import parse_playbook_line


class BulletpointAnalyzer:
    def __init__(self, client, model, max_tokens=4096, embedding_model_name="all-mpnet-base-v2"):
        self.client, self.model, self.max_tokens = client, model, max_tokens

    def _merge_bullets_with_llm(self, bullets_group):
        first = bullets_group[0]
        helpful = sum(each["helpful"] for each in bullets_group)
        harmful = sum(each["harmful"] for each in bullets_group)
        line = f"[{first['id']}] helpful={helpful} harmful={harmful} :: {first['content']}"
        return {**first, "helpful": helpful, "harmful": harmful, "original_line": line}

    def analyze(self, playbook, threshold=0.90, merge=True):
        lines = playbook.strip().split("\n")
        groups = {}
        for at, bullet in enumerate(map(parse_playbook_line, lines)):
            if bullet:
                groups.setdefault(bullet["content"], []).append((at, bullet))
        gone = set()
        for group in groups.values():
            if len(group) > 1:
                lines[group[0][0]] = self._merge_bullets_with_llm([each for _, each in group])["original_line"]
                gone.update(at for at, _ in group[1:])
        return "\n".join(line for at, line in enumerate(lines) if at not in gone)
