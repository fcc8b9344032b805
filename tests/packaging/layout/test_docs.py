"""The documents name what exists, exactly, and nothing else."""

import dataclasses
import inspect
import re

import pytest

from flashevolve_plugins import Flash
from flashevolve_plugins.hooks import specs

LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
OPTION = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def hooks():
    return {name: hook for name, hook in vars(specs).items() if name.startswith("flashevolve_")}


def test_every_hook_is_documented_with_its_exact_arguments(source_root):
    text = (source_root / "docs/reference/hooks.md").read_text("utf-8")
    documented = set(re.findall(r"`(flashevolve_\w+\([^)]*\))`", text))
    assert documented == {f"{name}({', '.join(inspect.signature(hook).parameters)})" for name, hook in hooks().items()}


def test_every_option_of_flash_is_documented(source_root):
    text = (source_root / "docs/reference/flash.md").read_text("utf-8")
    table = text.partition("## ")[0]
    assert OPTION.findall(table) == [field.name for field in dataclasses.fields(Flash) if field.init]


def documents(root):
    return [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]


def test_every_link_between_documents_leads_somewhere(source_root):
    broken = [
        f"{document.name}: {target}"
        for document in documents(source_root)
        for target in LINK.findall(document.read_text("utf-8"))
        if not (document.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("word", ["DEMO_OUTPUT", "SPEED_TABLE", "VIRTUAL_TABLE", "TODO"])
def test_no_document_is_unfinished(source_root, word):
    assert [each.name for each in documents(source_root) if word in each.read_text("utf-8")] == []
