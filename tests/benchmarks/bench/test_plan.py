"""What the options ask for, and what they are told when that cannot work."""

from __future__ import annotations

import pytest

from flashevolve_plugins import UnknownNameError, UsageError
from flashevolve_plugins._cli import main
from flashevolve_plugins.benchmarks.bench.command import _parser, plan
from flashevolve_plugins.benchmarks.bench.plan import QUICK, TABLES
from flashevolve_plugins.benchmarks.bench.rivals import PLUGINS, POLICIES, TURBO, Rival, parse
from flashevolve_plugins.benchmarks.presets import PRESETS
from flashevolve_plugins.benchmarks.server.profiles import PROFILES
from flashevolve_plugins.hooks import Guarded, Merge

BAD = {
    "no slots": (["--slots", "0"], "--slots=0 must be at least 1"),
    "no seeds": (["--seeds", "0"], "--seeds=0 must be at least 1"),
    "no time": (["--time-scale", "0"], "--time-scale=0 must be above 0"),
    "unknown landscape": (["--landscape", "moon"], "Unknown --landscape 'moon': known are 'additive'"),
    "unknown profile": (["--profile", "abacus"], "Unknown --profile 'abacus': known are 'api'"),
    "unknown table": (["--tables", "round"], "Unknown --tables 'round': known are"),
    "unknown rival": (["--rivals", "nobody"], "Unknown rival 'nobody': known are"),
    "a strategy of nothing": (["--rivals", "independent-0"], "a strategy makes at least 1 proposal"),
    "a bound that the policy has not": (["--rivals", "full:2"], "max_staleness"),
    "an unknown control": (["--rivals", "full@push"], "Unknown rival 'full@push': known are"),
    "no workers": (["--rivals", "full@fixed:0-1"], "Fixed(rollout=0) must be a whole number of at least 1"),
    "two selections": (["--quick", "--slots", "4"], "--quick and --slots do not go together"),
    "two plans": (["--quick", "--tables", "speed"], "--quick and --tables do not go together"),
    "refusals in virtual time": (["--profile", "api-limited"], "api-limited refuses requests, which virtual time"),
    "lengths of examples through the server": (
        ["--profile", "h100-examples", "--clock", "server"],
        "h100-examples knows how long each example's answers are, which the simulated server does not",
    ),
    "too small a budget": (["--calls", "200"], "--calls=200 pays for no proposal"),
    "half of a server": (["--server", "http://127.0.0.1:9/v1"], "--server, --model and --data go together"),
    "a model for nobody": (["--model", "gpt"], "--server, --model and --data go together"),
    "a server in virtual time": (
        ["--server", "http://127.0.0.1:9/v1", "--model", "m", "--data", "d", "--clock", "virtual"],
        "neither landscape nor profile nor virtual time",
    ),
}


def planned(*arguments):
    return plan(_parser().parse_args(arguments))


@pytest.mark.parametrize(("arguments", "sentence"), BAD.values(), ids=BAD)
def test_a_bad_option_is_told_in_one_sentence(arguments, sentence, capsys, tmp_path):
    assert main(["bench", *arguments, "--results", str(tmp_path / "results")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
    assert not (tmp_path / "results").exists()


def test_results_go_into_a_folder(tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.write_text("")
    assert main(["bench", "--quick", "--dry-run", "--results", str(taken)]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_without_options_every_table_is_made():
    assert planned() == list(TABLES.values())


def test_quick_is_small_and_has_both_clocks():
    tables = planned("--quick")
    assert tables == list(QUICK)
    assert {table.clock for table in tables} == {"virtual", "server"}
    assert sum(len(table.runs()) for table in tables) <= 40


def test_settings_of_your_own_are_every_combination():
    (table,) = planned("--slots", "4", "8", "--val", "20", "--calls", "400", "--landscape", "all", "length")
    assert [(cell.landscape, cell.slots, cell.val) for cell in table.cells] == [
        ("all", 4, 20), ("all", 8, 20), ("length", 4, 20), ("length", 8, 20),
    ]  # fmt: skip
    assert table.clock == "virtual"
    assert planned("--clock", "server")[0].clock == "server"


def test_rivals_and_seeds_hold_for_every_table():
    for table in planned("--rivals", "full", "full", "guarded:1/4", "--seeds", "3"):
        assert (table.rivals, table.seeds) == (("full", "guarded:1/4"), 3)


def test_a_given_server_has_a_table_of_its_own(tmp_path):
    (table,) = planned(
        "--server", "http://127.0.0.1:9/v1", "--model", "m", "--data", "here/gsm8k.jsonl", "--slots", "4"
    )
    (cell,) = table.cells
    assert (table.clock, cell.landscape, cell.profile, cell.slots) == ("server", "file:gsm8k.jsonl", "given", 4)


@pytest.mark.parametrize("table", [*TABLES.values(), *QUICK], ids=lambda table: table.name)
def test_a_table_names_what_exists_and_keeps_its_runs_apart(table):
    assert {cell.landscape for cell in table.cells} <= set(PRESETS)
    assert {cell.profile for cell in table.cells} <= set(PROFILES)
    for name in table.rivals:
        parse(name)
    runs = table.runs()
    assert len({run.path for run in runs}) == len(runs)
    assert len({cell.title for cell in table.cells}) == len(table.cells)


def test_a_run_is_not_mistaken_for_one_at_another_time_scale():
    (slow,), (fast,) = (planned("--clock", "server", "--time-scale", scale) for scale in ("0.1", "0.2"))
    assert slow.runs()[0].path != fast.runs()[0].path


WHOLE = {"speculate": False}  # but for ``flash``, no stage is left early without a plugin


def test_names_stand_for_hosts_strategies_and_policies():
    assert parse("sequential") == Rival("sequential")
    assert parse("gepa:sequential").host == "gepa"
    assert parse("independent-8").sampling == ("IndependentSampling", (8,))
    assert parse("gepa:pxn-2x4/best") == Rival("gepa:pxn-2x4/best", "gepa", ("PxNSampling", (2, 4)), best_only=True)
    assert parse("guarded:4/8").flash == {**WHOLE, "staleness": "guarded", "max_staleness": 4, "max_items": 8}
    assert parse("flash").flash == {"speculate": None}
    assert parse("full").flash == {**WHOLE, "staleness": "full"}
    assert parse("merge@adaptive").flash == {**WHOLE, "staleness": "merge", "control": "adaptive"}
    assert parse("full/8@pull").flash == {**WHOLE, "staleness": "full", "max_items": 8, "control": "pull"}
    fixed = parse("full@fixed:16-8").flash["control"]
    assert fixed.workers == {"rollout": 16, "propose": 16, "gate": 16, "validate": 8}
    assert [parse(name).flash["staleness"].least for name in ("merge-at-once", "merge-waits:7/3")] == [1, 7]
    assert parse("merge-waits:7/3").flash["max_items"] == 3
    assert parse(TURBO).requirements == ("turbo-gepa==0.1.6",)


def test_a_policy_is_one_line(monkeypatch):
    monkeypatch.setitem(POLICIES, "two", {"staleness": "full", "max_items": 2})
    assert parse("two").flash == {**WHOLE, "staleness": "full", "max_items": 2}
    assert parse("two/3").flash == {**WHOLE, "staleness": "full", "max_items": 3}


def test_plugins_stand_behind_a_policys_name_and_are_fresh_each_time(monkeypatch):
    monkeypatch.setitem(PLUGINS, "deep", "Merge")
    monkeypatch.setitem(PLUGINS, "at-most", "Guarded")
    flash = parse("guarded:4/8+deep+at-most:2").flash
    assert (flash["staleness"], flash["max_staleness"], flash["max_items"]) == ("guarded", 4, 8)
    merge, guarded = flash["plugins"]
    assert (type(merge), type(guarded), guarded.max_staleness) == (Merge, Guarded, 2)
    assert parse("full+deep").flash["plugins"][0] is not parse("full+deep").flash["plugins"][0]


@pytest.mark.parametrize("name", ["full+nothing", "full+deep:", "full+deep:x", "full+", "sequential+deep"])
def test_a_plugin_that_is_none_is_told(monkeypatch, name):
    monkeypatch.setitem(PLUGINS, "deep", "Merge")
    with pytest.raises(UnknownNameError):
        parse(name)


@pytest.mark.parametrize("plugin", ["at-most:1.5", "at-most:1/2"])
def test_a_number_that_a_plugin_refuses_is_told(monkeypatch, plugin):
    monkeypatch.setitem(PLUGINS, "at-most", "Guarded")
    with pytest.raises((UsageError, UnknownNameError)):
        parse(f"full+{plugin}")


def test_strategies_are_the_hosts_own():
    from gepa.strategies.proposal_sampling import PxNSampling
    from gepa.strategies.proposal_selection import AllImprovements, BestImprovement

    made = parse("pxn-2x4/best").strategies()
    assert isinstance(made["sampling_strategy"], PxNSampling)
    assert (made["sampling_strategy"].p, made["sampling_strategy"].n) == (2, 4)
    assert isinstance(made["selection_strategy"], BestImprovement)
    assert isinstance(parse("pxn-2x4").strategies()["selection_strategy"], AllImprovements)
    assert parse("sequential").strategies() == {}


def test_a_policy_that_flash_refuses_is_told_as_flash_tells_it():
    with pytest.raises(UsageError, match="max_items=0"):
        parse("full/0")
