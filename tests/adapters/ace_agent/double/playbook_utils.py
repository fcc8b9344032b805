"""A playbook is a text: sections of bullets, each with an id and two counts."""

import json
import re

from utils import get_section_slug

BULLET = re.compile(r"\[([^\]]+)\]\s*helpful=(\d+)\s*harmful=(\d+)\s*::\s*(.*)")


def parse_playbook_line(line):
    found = BULLET.match(line.strip())
    if found is None:
        return None
    name, helpful, harmful, content = found.groups()
    return {"id": name, "helpful": int(helpful), "harmful": int(harmful), "content": content, "raw_line": line}


def format_playbook_line(bullet_id, helpful, harmful, content):
    return f"[{bullet_id}] helpful={helpful} harmful={harmful} :: {content}"


def get_next_global_id(playbook_text):
    names = [each["id"] for each in map(parse_playbook_line, playbook_text.split("\n")) if each]
    numbers = [int(found.group(1)) for found in (re.search(r"-(\d+)$", name) for name in names) if found]
    return max(numbers, default=0) + 1


def update_bullet_counts(playbook_text, bullet_tags):
    tags = {}
    for tag in bullet_tags if isinstance(bullet_tags, list) else ():
        name = (tag.get("id") or tag.get("bullet", "")) if isinstance(tag, dict) else ""
        if name:
            tags[name] = tag.get("tag", "neutral")
    if not tags:
        return playbook_text
    lines = []
    for line in playbook_text.strip().split("\n"):
        bullet = None if line.strip().startswith("#") else parse_playbook_line(line)
        if bullet is not None and bullet["id"] in tags:
            helpful = bullet["helpful"] + (tags[bullet["id"]] == "helpful")
            harmful = bullet["harmful"] + (tags[bullet["id"]] == "harmful")
            lines.append(format_playbook_line(bullet["id"], helpful, harmful, bullet["content"]))
        else:
            lines.append(line)
    return "\n".join(lines)


def _section(name):
    return name.strip().lower().replace(" ", "_").replace("&", "and")


def apply_curator_operations(playbook_text, operations, next_id):
    """Of all operations, ADD alone: at the end of its section, else under OTHERS."""
    lines = playbook_text.strip().split("\n")
    known = [_section(line.strip()[2:]) for line in lines if line.strip().startswith("##")]
    added = {}
    for operation in operations:
        if operation["type"] != "ADD":
            continue
        section = _section(operation.get("section", "general"))
        if section not in known and section != "general":
            section = "others"
        name = f"{get_section_slug(section)}-{next_id:05d}"
        added.setdefault(section, []).append(format_playbook_line(name, 0, 0, operation.get("content", "")))
        next_id += 1
    result, current = [], None
    for line in lines:
        if line.strip().startswith("##"):
            result += added.pop(current, [])
            current = _section(line.strip()[2:])
        result.append(line)
    result += added.pop(current, [])
    rest = [line for each in added.values() for line in each]
    if rest:
        place = next((at + 1 for at, line in enumerate(result) if line.strip() == "## OTHERS"), len(result))
        result[place:place] = rest
    return "\n".join(result), next_id


def get_playbook_stats(playbook_text):
    names = ("total_bullets", "high_performing", "problematic", "unused")
    stats = {**dict.fromkeys(names, 0), "by_section": {}}
    section = "general"
    for line in playbook_text.strip().split("\n"):
        if line.strip().startswith("##"):
            section = line.strip()[2:].strip()
        elif bullet := parse_playbook_line(line):
            helpful, harmful = bullet["helpful"], bullet["harmful"]
            stats["total_bullets"] += 1
            stats["high_performing"] += helpful > 5 and harmful < 2
            stats["problematic"] += harmful >= helpful and harmful > 0
            stats["unused"] += helpful + harmful == 0
            counts = stats["by_section"].setdefault(section, {"count": 0, "helpful": 0, "harmful": 0})
            counts["count"] += 1
            counts["helpful"] += helpful
            counts["harmful"] += harmful
    return stats


def extract_json_from_text(text, json_key=None):
    try:
        return json.loads(text.strip())
    except ValueError:
        return None


def extract_playbook_bullets(playbook_text, bullet_ids):
    if not bullet_ids:
        return "(no bullets)"
    bullets = [each for each in map(parse_playbook_line, playbook_text.split("\n")) if each]
    lines = [
        format_playbook_line(each["id"], each["helpful"], each["harmful"], each["content"])
        for each in bullets
        if each["id"] in bullet_ids
    ]
    return "\n".join(lines) or "(none of these bullets is in the playbook)"
