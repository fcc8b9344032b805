"""What dspy and gepa read out of the server's answers."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from flashevolve_plugins.benchmarks import Landscape
from flashevolve_plugins.benchmarks.server import SimulatedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore")  # the hosts' own


@pytest.fixture(autouse=True)
def leftovers() -> Iterator[None]:
    """Collect the connections and loops that the hosts leave open where their warnings are ignored."""
    yield
    asyncio.set_event_loop(None)
    gc.collect()


def language_model(dspy: Any, server: SimulatedServer) -> Any:
    """Return a dspy.LM on the server."""
    return dspy.LM("openai/simulated", api_base=server.base_url, api_key="none", cache=False)


@pytest.mark.parametrize("adapter", ["ChatAdapter", "JSONAdapter"])
@pytest.mark.parametrize("signature", ["question -> answer", "question -> answer, sure: bool, parts: list[str]"])
def test_dspy_reads_the_answer_of_a_task(
    server: SimulatedServer, eager: Landscape, adapter: str, signature: str
) -> None:
    import dspy

    program = dspy.ChainOfThought(dspy.Signature(signature, "\n".join(rule.statement for rule in eager.book[:20])))
    scores = []
    with dspy.context(lm=language_model(dspy, server), adapter=getattr(dspy, adapter)()):
        for example in eager.examples("val", 8):
            answer = program(question=example.question)
            scores.append(eager.score(example.question, answer.answer))
            assert "[" not in answer.reasoning
    assert sum(scores) / len(scores) > 0.8  # every rule is stated, 0.95 is expected


def test_dspy_gepa_climbs_over_http(server: SimulatedServer, eager: Landscape) -> None:
    import dspy

    def metric(gold: Any, prediction: Any, *_: object) -> Any:
        score, feedback = eager.feedback(gold.question, prediction.answer)
        return dspy.Prediction(score=score, feedback=feedback)

    def examples(split: Any, count: int) -> list[Any]:
        found = eager.examples(split, count)
        return [dspy.Example(question=example.question).with_inputs("question") for example in found]

    model = language_model(dspy, server)
    optimizer = dspy.GEPA(
        metric=metric, max_metric_calls=150, reflection_lm=model, num_threads=4, track_stats=True, seed=1
    )
    with dspy.context(lm=model):
        best = optimizer.compile(
            dspy.Predict("question -> answer"), trainset=examples("train", 30), valset=examples("val", 20)
        )
    instruction = best.signature.instructions
    assert instruction.startswith("Given the fields `question`, produce the fields `answer`.\n[")
    assert eager.true_score(instruction) > eager.true_score("") + 0.05


def test_dspy_instruction_proposer_reads_an_improved_instruction(server: SimulatedServer, eager: Landscape) -> None:
    import dspy
    from dspy.teleprompt.gepa import instruction_proposal as proposals

    if not hasattr(proposals, "InstructionProposer"):
        pytest.skip("this dspy asks through gepa's own signature")
    current = f'Reply.\n\n"Quoted" and ```fenced```.\n{eager.book[0].statement}'
    question = eager.examples("train", 1)[0].question
    records = [{"Inputs": {"question": question}, "Generated Outputs": {}, "Feedback": eager.feedback(question, "")[1]}]
    for adapter in (None, dspy.ChatAdapter()):
        with dspy.context(lm=language_model(dspy, server)):
            proposer = proposals.InstructionProposer(adapter=adapter)
            new = proposer({"it": current}, {"it": records}, ["it"])["it"]
        assert new.startswith(current)
        assert eager.stated(new) > eager.stated(current)


def test_gepa_reads_an_improved_instruction(server: SimulatedServer, eager: Landscape) -> None:
    from gepa import lm
    from gepa.strategies.instruction_proposal import InstructionProposalSignature

    model = lm.LM("openai/simulated", api_base=server.base_url, api_key="none")
    current = f"Reply, with ```code``` where it helps.\n{eager.book[0].statement}"
    question = eager.examples("train", 1)[0].question
    for record in ({"Feedback": eager.feedback(question, "")[1]}, {"Feedback": "Couldn't parse."}):
        options = {"current_instruction_doc": current, "dataset_with_feedback": [record]}
        prompt = InstructionProposalSignature.prompt_renderer(options)
        new = InstructionProposalSignature.output_extractor(model(prompt))["new_instruction"]
        assert new.startswith(current)
        assert new != current
    assert eager.stated(new) == eager.stated(current)  # nothing was named, so nothing was learned
    plain = model([{"role": "system", "content": current}, {"role": "user", "content": question}])
    assert plain.startswith("The reply keeps")


def test_openai_client_reads_streams(server: SimulatedServer, eager: Landscape) -> None:
    import openai

    question = eager.examples("train", 1)[0].question
    with openai.OpenAI(base_url=server.base_url, api_key="none") as client:
        messages = [{"role": "user", "content": question}]
        options = {"include_usage": True}
        chunks = list(
            client.chat.completions.create(model="simulated", messages=messages, stream=True, stream_options=options)
        )
        with pytest.raises(openai.BadRequestError, match="temperature must be a number"):
            client.chat.completions.create(model="simulated", messages=messages, temperature=9)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks if chunk.choices).startswith("The reply keeps")
    assert chunks[-1].usage.completion_tokens > 0
