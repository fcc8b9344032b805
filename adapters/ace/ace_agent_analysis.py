"""The bulletpoint analyzer of ace-agent/ace: it merges bullets into one, under the id of the first."""

from __future__ import annotations

import copy
from typing import Any


class Analysis:
    """Runs the analyzer, and remembers where bullets have gone, so that tags given to them before are not lost.

    Args:
        ace: the user's ``ACE``.
    """

    def __init__(self, ace: Any) -> None:
        self._analyzer: Any = None
        self._moved: dict[str, str] = {}
        if getattr(ace, "use_bulletpoint_analyzer", False) and ace.bulletpoint_analyzer:
            self._threshold = ace.bulletpoint_analyzer_threshold
            self._analyzer = copy.copy(ace.bulletpoint_analyzer)
            if hasattr(self._analyzer, "_merge_bullets_with_llm"):
                self._merge = self._analyzer._merge_bullets_with_llm
                self._analyzer._merge_bullets_with_llm = self._merged

    def run(self, text: str) -> str:
        """The playbook after the analyzer, if the run has one."""
        if self._analyzer is None:
            return text
        return str(self._analyzer.analyze(playbook=text, threshold=self._threshold, merge=True))

    def _merged(self, group: Any) -> Any:
        bullet = self._merge(group)
        if bullet:
            moved = {each["id"]: bullet["id"] for each in group if each["id"] != bullet["id"]}
            self._moved = {old: moved.get(new, new) for old, new in self._moved.items()} | moved
        return bullet

    def follow(self, tags: Any) -> list[Any]:
        """The tags in lists for the host to count, each bullet at most once in a list."""
        if not self._moved or not isinstance(tags, list):
            return [tags]
        stayed, moved = [], []
        for tag in tags:
            name = (tag.get("id") or tag.get("bullet", "")) if isinstance(tag, dict) else ""
            if name in self._moved:
                moved.append([{**tag, "id": self._moved[name]}])
            else:
                stayed.append(tag)
        return [each for each in (stayed, *moved) if each]
