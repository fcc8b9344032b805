"""ACE with one more argument, on the simulated server: no key, no GPU.

Needs the extras: pip install "flashevolve-plugins[ace,server]"
"""

from ace import ACE, ACEConfig, OpenAILLM, Sample, Task

from flashevolve_plugins import Flash
from flashevolve_plugins.benchmarks import PlaybookLandscape
from flashevolve_plugins.benchmarks.server import ServerSettings, SimulatedServer
from flashevolve_plugins.benchmarks.server.latency import LatencyModel

landscape = PlaybookLandscape(seed=0)


def samples(split, count):
    """Questions of one split, with the answers that the landscape holds right."""
    questions = [f"{split} question {number}: what does the filing say?" for number in range(count)]
    return [Sample(id=question, question=question, answer=landscape.truth(question)) for question in questions]


def main():
    """Let ACE write a playbook, and print what it is worth."""
    task = Task("rules", samples("train", 60), lambda answer, sample: answer == sample.answer)
    questions = [sample.question for sample in samples("test", 200)]
    settings = ServerSettings(playbook=landscape, latency=LatencyModel(time_scale=0.01))
    with SimulatedServer(settings) as server:
        llm = OpenAILLM("simulated", base_url=server.base_url, api_key="none")
        config = ACEConfig(epochs=1, reflector_max_rounds=1, auto_embedder=False)
        ace = ACE(llm, config=config, executor=Flash(max_concurrency=16))
        result = ace.adapt_offline(task)
    print(f"{len(result.history)} samples, {len(ace.playbook)} entries")
    texts = [bullet.content for bullet in ace.playbook]
    print(f"true score {landscape.true_score([], questions):.3f} -> {landscape.true_score(texts, questions):.3f}")


if __name__ == "__main__":
    main()
