"""In lockstep a run is the host's own: the same playbook, the same history, the same calls in the same order."""

import pytest
from ace import ACE, ACEConfig, Feedback, SimulatedLLM, TeachingEnvironment, build_teaching_task
from ace_task import NumberModel, dumped, make_ace, make_task, told

from flashevolve_plugins import Flash


def edits(rules, shown):
    """Adds, and now and then sharpens or removes what it was shown."""
    first = shown.partition("[ctx-")[2][:8]
    made = [{"op": "ADD", "section": rule[-1], "content": rule} for rule in rules]
    if first and rules[0].endswith("3"):
        made.append({"op": "UPDATE", "target_id": f"ctx-{first}", "content": f"better {rules[0]}"})
    if first and rules[0].endswith("7"):
        made.append({"op": "REMOVE", "target_id": f"ctx-{first}"})
    return made


OPTIONS = {
    "plain": {},
    "epochs": {"epochs": 3},
    "rounds": {"rounds": 3},
    "no labels": {"use_labels": False},
    "refine seldom": {"refine_every": 4, "dedup_threshold": 0.4},
    "refine never": {"refine_every": 0},
    "refine lazily": {"lazy_refine_token_budget": 40, "dedup_threshold": 0.4},
    "curator without a model": {"curator_use_llm": False},
    "prune at once": {"harmful_margin": 0},
}


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_lockstep_is_the_hosts_own_run(same_ids, options, online):
    seen = []
    for executor in (None, Flash(lockstep=True, progress=False)):
        same_ids()
        model, records = NumberModel(rules=12, operations=edits), []
        ace = make_ace(model, executor=executor, **OPTIONS[options])
        run = ace.adapt_online if online else ace.adapt_offline
        result = run(make_task(20), records.append)
        assert result.playbook is ace.playbook
        assert records == result.history
        seen.append((dumped(ace), told(result), result.summary(), model.calls, ace._step))
    assert seen[0] == seen[1]
    assert len(seen[0][1]) >= 20


@pytest.mark.parametrize("seed", range(8))
def test_lockstep_is_the_hosts_own_run_in_its_teaching_environment(same_ids, seed):
    seen = []
    for executor in (None, Flash(lockstep=True, progress=False)):
        same_ids(seed)
        ace = ACE(SimulatedLLM(TeachingEnvironment(seed=seed)), config=ACEConfig(epochs=2), executor=executor)
        result = ace.adapt_offline(build_teaching_task(repeats=2, seed=seed))
        seen.append((dumped(ace), told(result)))
    assert seen[0] == seen[1]


def test_lockstep_gives_the_users_feedback_to_the_reflector(same_ids):
    seen = []
    for executor in (None, Flash(lockstep=True, progress=False)):
        same_ids()
        model = NumberModel()
        ace = make_ace(model, executor=executor)
        feedback = lambda sample, generation: Feedback(signal=f"{sample.id} gave {generation.answer}")  # noqa: E731
        seen.append((told(ace.adapt_offline(make_task(5), feedback_fn=feedback)), model.calls))
    assert seen[0] == seen[1]
    assert any("s4 gave 4" in user for _, user in seen[1][1])


def test_lockstep_raises_what_the_host_raises():
    for executor in (None, Flash(lockstep=True, progress=False)):
        model = NumberModel(fails={3})
        ace = make_ace(model, executor=executor)
        with pytest.raises(LookupError, match="question 3 has no answer"):
            ace.adapt_offline(make_task(6))
        assert model.count("Generator") == 4
        assert len(ace.playbook) == 3
