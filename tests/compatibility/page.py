"""Writes docs/reference/compatibility.md from the rows of the matrix: ``python tests/compatibility/page.py``."""

import sys
from pathlib import Path

from options import HOSTS, seeds

PAGE = Path("docs", "reference", "compatibility.md")
TITLES = {"gepa.optimize": "gepa.optimize", "optimize_anything": "gepa.optimize_anything"}
HEAD = """# Compatibility

Every option of the supported hosts, each with the values that are tried, and what flash does with it:

- **same**: a run has what the host's own run has.
- **same, with note**: so it is in lockstep; the note says what differs outside it.
- **refused**: one sentence says so before anything is spent.

`tox -e matrix` runs each value twice for each seed, with the host's own loop and with `Flash(lockstep=True)`, and
compares all that a user can see: candidates, parents, scores, trace entries, callbacks with their payloads, tracker
calls, log lines, metric calls, what is printed, files and random generators. It runs the values outside lockstep too:
one proposal at a time, which is the host's run as far as the budget goes, and many at once, in serial order and within
the budget. `python tests/compatibility/page.py` writes this page from the rows of that test.

What is covered: every value by itself, and 300 draws of up to ten values at once. Each value has the first few seeds,
of which the last column is the sum, and further ones only until a run accepted something and, where the option matters,
differed from a run without it.

| host | options | values | pairs of runs equal in lockstep |
|---|---|---|---|
"""


def text(options):
    """The page.

    Args:
        options: the rows of all hosts.
    """
    by_host = {host: [each for each in options if each.host == host] for host in HOSTS}
    page = HEAD
    for host, rows in by_host.items():
        names, values = len({each.name for each in rows}), sum(len(each.cases) for each in rows)
        pairs = sum(len(each.cases) * len(seeds(each)) for each in rows)
        page += f"| `{TITLES.get(host, host)}` | {names} | {values} | {pairs} |\n"
    for host, rows in by_host.items():
        page += f"\n## {TITLES.get(host, host)}\n\n| option | values | flash | note |\n|---|---|---|---|\n"
        for each in rows:
            note = f"{each.refused} ..." if each.refused else each.note
            cells = (f"`{each.name}`", "; ".join(each.cases), each.verdict, note)
            page += "".join(f"| {cell.replace('|', chr(92) + '|')} " for cell in cells) + "|\n"
    return page


def rows():
    """The rows of all hosts."""
    import anything_options
    import dspy_options
    import gepa_options

    return (*gepa_options.OPTIONS, *anything_options.OPTIONS, *dspy_options.OPTIONS)


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.path.insert(0, str(root / "tests" / "helpers"))
    (root / PAGE).write_text(text(rows()), encoding="utf-8")
