"""Sessions are shown what others try, what was proposed, and what came of it since they began."""

import json

from harness_task import Evaluator, Proposer, run

from flashevolve_plugins import Flash


class Reader(Proposer):
    """Writes an idea down as its session begins, and reads what it is shown then and at its end."""

    def __init__(self, **options):
        super().__init__(steps=lambda n: n, **options)
        self.began, self.ended, self.told = {}, {}, {}

    def shown(self, request):
        return json.loads((request.experience_dir / "under_way.json").read_text())

    def flashevolve_seconds(self, request):
        n = int(request.candidate_id[1:])
        self.began[n] = self.shown(request)
        self.told[n] = request.instructions.constraints[-1]
        if n != 4:
            (request.workspace_dir / ".metaharness" / "idea.md").write_text(f"idea {n}\n")
        return self.seconds(n)

    def invoke(self, request):
        self.ended[int(request.candidate_id[1:])] = self.shown(request)
        return super().invoke(request)


def reading(tmp_path, seconds, **options):
    proposer = Reader(seconds=seconds.__getitem__)
    flash = Flash(
        max_concurrency=2, reflection_concurrency=2, staleness="full", clock="virtual", progress=False, **options
    )
    _, folder = run(tmp_path, flash, budget=len(seconds), proposer=proposer, evaluator=Evaluator(seconds=2.0))
    return proposer, folder


def names(shown):
    return {key: [each["name"] for each in told] for key, told in shown.items()}


def test_a_session_is_shown_ideas_proposals_and_what_was_evaluated_since(tmp_path):
    # the second ends at 3 and is evaluated at 5, the third ends at 4 and is evaluated at 6
    proposer, folder = reading(tmp_path, {1: 10.0, 2: 3.0, 3: 1.0, 4: 9.0})
    assert names(proposer.began[2]) == {"sessions": ["c0001"], "proposed": [], "evaluated_since": []}
    assert names(proposer.began[4]) == {"sessions": ["c0001"], "proposed": ["c0002", "c0003"], "evaluated_since": []}
    assert [each["idea"] for each in proposer.began[4]["sessions"]] == ["idea 1"]
    assert [each["idea"] for each in proposer.began[4]["proposed"]] == ["step 2", "step 3"]  # as the proposer says
    assert names(proposer.ended[1]) == {
        "sessions": ["c0004"],
        "proposed": [],
        "evaluated_since": ["c0002", "c0003"],
    }
    told = [(each["score"], each["made_from"], each["read"]) for each in proposer.ended[1]["evaluated_since"]]
    assert told[0] == (2.0, "c0000", str(folder / "candidates" / "c0002"))
    assert told[1][0] == 3.0


def test_a_session_does_not_inherit_the_idea_of_its_parent(tmp_path):
    # the first is evaluated at 3, the fourth begins at 5
    proposer, _ = reading(tmp_path, {1: 1.0, 2: 9.0, 3: 4.0, 4: 9.0})
    (other,) = proposer.ended[2]["sessions"]
    assert (other["name"], other["made_from"]) == ("c0004", "c0001")
    assert other["idea"] == ""


def test_a_proposer_is_told_of_both_files(tmp_path):
    proposer, _ = reading(tmp_path, {1: 1.0})
    assert ".metaharness/experience/under_way.json" in proposer.told[1]
    assert ".metaharness/idea.md" in proposer.told[1]


def test_the_hosts_diff_holds_nothing_of_it(tmp_path):
    _, folder = reading(tmp_path, {1: 1.0, 2: 1.0})
    for path in folder.glob("candidates/*/proposal/*"):
        assert path.name == "prompt.txt" or "under_way" not in path.read_text()


def test_an_idea_is_shown_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_API_KEY", "idea 1 is secret")

    class Leaks(Reader):
        def flashevolve_seconds(self, request):
            seconds = super().flashevolve_seconds(request)
            (request.workspace_dir / ".metaharness" / "idea.md").write_text("use idea 1 is secret")
            return seconds

    proposer = Leaks(seconds=lambda n: 1.0)
    flash = Flash(max_concurrency=2, reflection_concurrency=2, clock="virtual", progress=False)
    run(tmp_path, flash, budget=2, proposer=proposer)
    assert [each["idea"] for each in proposer.began[2]["sessions"]] == ["use [PLANTED_API_KEY]"]
