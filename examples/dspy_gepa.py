"""dspy.GEPA with one more argument, on the simulated server: no key, no GPU.

Needs the extra: pip install "flashevolve-plugins[demo]"
"""

import dspy

from flashevolve_plugins import Flash
from flashevolve_plugins.benchmarks import Landscape
from flashevolve_plugins.benchmarks.server import ServerSettings, SimulatedServer
from flashevolve_plugins.benchmarks.server.latency import LatencyModel

landscape = Landscape(seed=0)


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    """Score an answer, and say which rules it broke."""
    score, feedback = landscape.feedback(gold.question, pred.answer)
    return dspy.Prediction(score=score, feedback=feedback)


def examples(split, count):
    """Examples of one split of the landscape."""
    return [dspy.Example(question=each.question).with_inputs("question") for each in landscape.examples(split, count)]


def main():
    """Optimize a one-predictor program and print what came out."""
    settings = ServerSettings(landscape=landscape, latency=LatencyModel(time_scale=0.01))
    with SimulatedServer(settings) as server:
        lm = dspy.LM("openai/simulated", api_base=server.base_url, api_key="none", cache=False)
        optimizer = dspy.GEPA(
            metric=metric, max_metric_calls=400, reflection_lm=lm, num_threads=16, track_stats=True, executor=Flash()
        )
        program = dspy.Predict(dspy.Signature("question -> answer", "Answer the question."))
        with dspy.context(lm=lm):
            best = optimizer.compile(program, trainset=examples("train", 60), valset=examples("val", 40))
    scores = best.detailed_results.val_aggregate_scores
    print(f"{len(scores)} candidates, validation score {scores[0]:.3f} -> {max(scores):.3f}")
    print(f"{best.detailed_results.total_metric_calls} metric calls")


if __name__ == "__main__":
    main()
