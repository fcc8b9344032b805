"""A stale candidate of a checkout is carried onto what is best now, without another session."""

import pytest

AGENT = """SCORE = 0.5


class AgentHarness:
    first = 1

    second = 2
"""
# the second session begins with the first, and ends when the first one's candidate is in the frontier
LATE = {"waits_for": "waits-4"}
OPTIONS = ("--proposers", "2", "--evaluators", "2")


@pytest.fixture
def base(checkout):
    """The name of the best baseline's module."""
    name = "few_memory" if checkout.text else "baseline_one"
    (checkout.example / "agents" / f"{name}.py").write_text(AGENT)
    return name


def second(checkout):
    """The item of the second session: that of the baselines comes before the first."""
    return checkout.items()[3]


def test_a_change_of_another_place_goes_onto_what_is_best_now(checkout, base):
    knobs = {
        "1": {"edits": [base, "SCORE = 0.5", "SCORE = 0.8"]},
        "2": {"edits": [base, "second = 2", "second = 3"], **LATE},
        "4": LATE,
    }
    checkout.flash(*OPTIONS, claude=knobs, iterations=4)
    published = (checkout.example / "agents" / "p2_sys_2.py").read_text()
    assert published == AGENT.replace("0.5", "0.8").replace("second = 2", "second = 3")
    (check,) = second(checkout)["checks"]
    assert (check["verdict"], check["stage"]) == ("patch", "check")
    assert check["reason"] == "stale by 1: its change was carried onto what is best now"
    rows = {row["iteration"]: row.get("avg_val", row.get("avg_pass_rate")) for row in checkout.summary()}
    assert rows[2] == rows[1]  # it is evaluated as what it has become
    assert not (checkout.fakes / "claude-2-again.json").exists()


def test_a_change_of_the_same_place_is_tried_as_it_was_made(checkout, base):
    knobs = {
        "1": {"edits": [base, "SCORE = 0.5", "SCORE = 0.8"]},
        "2": {"edits": [base, "SCORE = 0.5", "SCORE = 0.9"], **LATE},
        "4": LATE,
    }
    checkout.flash(*OPTIONS, claude=knobs, iterations=4)
    assert (checkout.example / "agents" / "p2_sys_2.py").read_text() == AGENT.replace("0.5", "0.9")
    (check,) = second(checkout)["checks"]
    told = "stale by 1, goes on as it was made: agent.py was changed in the same place"
    assert (check["verdict"], check["reason"]) == ("accept", told)


def test_what_was_made_of_another_agent_is_tried_as_it_was_made(text):
    agents = text.example / "agents"
    (agents / "few_memory.py").write_text(AGENT)
    (agents / "no_memory.py").write_text(AGENT.replace("0.5", "0.2"))
    knobs = {
        "1": {"edits": ["few_memory", "SCORE = 0.5", "SCORE = 0.8"], "base": "few_memory"},
        "2": {"edits": ["no_memory", "second = 2", "second = 3"], "base": "no_memory", **LATE},
        "4": LATE,
    }
    text.flash(*OPTIONS, claude=knobs, iterations=4)
    assert (agents / "p2_sys_2.py").read_text() == AGENT.replace("0.5", "0.2").replace("second = 2", "second = 3")
    (check,) = second(text)["checks"]
    assert check["reason"].endswith("p2_sys_2 was made of no_memory, not of what was best")


def test_full_carries_nothing(checkout, base):
    knobs = {
        "1": {"edits": [base, "SCORE = 0.5", "SCORE = 0.8"]},
        "2": {"edits": [base, "second = 2", "second = 3"], **LATE},
        "4": LATE,
    }
    checkout.flash(*OPTIONS, "--staleness", "full", claude=knobs, iterations=4)
    assert (checkout.example / "agents" / "p2_sys_2.py").read_text() == AGENT.replace("second = 2", "second = 3")


def test_of_several_candidates_of_a_session_each_is_whole_by_its_own_jobs(text):
    knobs = {"1": {"score": 0.4, "more": [["other", 0.9], ["third", 0.5]]}}
    text.flash(claude=knobs, uv={"p1_other": {"fails": "second"}}, iterations=1)
    assert {row["system"] for row in text.summary()} == {"p1_sys_1", "p1_other", "p1_third"}
    (committed,) = (each for each in text.items().values() if each["terminal"] == "committed" and each["item"] > 1)
    assert committed["entries"][0]["score"] == 55.0  # the third: the other one has no whole result


def test_an_agent_that_is_a_package_is_carried_whole(tmp_path):
    from flashevolve_plugins.adapters.meta_harness.checkout_carry import carried_agents, carry_agents
    from flashevolve_plugins.adapters.meta_harness.publishing import Candidate

    files = {
        "old/__init__.py": "a = 1\n",
        "old/tools.py": "b = 1\n",
        "best/__init__.py": "a = 1\n",
        "best/tools.py": "b = 2\n",
        "best/more.py": "c = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    own = {"p2_new/__init__.py": b"a = 2\n", "p2_new/tools.py": b"b = 1\n"}
    candidate = Candidate({"base_system": "old"}, "p2_new", "p2_new", "old", own)
    carried = carried_agents(tmp_path, [candidate], "old", "best")
    assert carried.conflict == ""
    carry_agents([candidate], carried.files, "best")
    assert candidate.files == {
        "p2_new/__init__.py": b"a = 2\n",
        "p2_new/tools.py": b"b = 2\n",
        "p2_new/more.py": b"c = 1\n",
    }
    assert (candidate.made_of, candidate.told) == ("best", {"base_system": "best"})


@pytest.mark.parametrize("count", [1, 2])
def test_a_policy_is_asked_before_a_single_check_and_never_between_two(count):
    from types import SimpleNamespace

    from flashevolve_plugins.adapters.meta_harness.host import CHECK, EVALUATE, Proposal
    from flashevolve_plugins.adapters.meta_harness.items import _stage

    session = SimpleNamespace(samples=tuple)
    proposal = Proposal(1, 1, None)
    assert _stage(session, proposal, CHECK, [object()] * count).judged is (count == 1)
    assert _stage(session, proposal, EVALUATE, [object()] * count).judged


def test_every_job_of_an_evaluation_says_its_own_score(checkout, monkeypatch):
    from argparse import Namespace

    from flashevolve_plugins.adapters.meta_harness.checkout import load
    from flashevolve_plugins.adapters.meta_harness.publishing import Candidate
    from flashevolve_plugins.adapters.meta_harness.terminal_bench import TerminalBench
    from flashevolve_plugins.adapters.meta_harness.text_classification import TextClassification
    from flashevolve_plugins.adapters.meta_harness.watching import partial_scores

    for name, value in checkout.setup({}, {}).items():
        monkeypatch.setenv(name, value)
    (checkout.example / "agents" / "mine.py").write_text("SCORE = 0.5\n\n\nclass AgentHarness:\n    pass\n")
    args = Namespace(iterations=1, run_name="r", model="maker/Small", trials=1, concurrent=1)
    kind = TextClassification if checkout.text else TerminalBench
    host = kind(load(checkout.example), args, lockstep=False)
    host._tasks = ["easy", "hard"]  # the second one asks for 0.7
    candidate = Candidate({"name": "mine", "import_path": "agents.mine:AgentHarness"}, "mine")
    results = [job.call() for job in host.evaluation(candidate)]
    assert sorted(partial_scores(results)) == ([0.5, 0.5, 0.6, 0.6] if checkout.text else [0.0, 1.0])
    assert all(each.ok for each in results)
