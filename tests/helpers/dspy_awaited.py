"""The task's program with one predictor, to be awaited."""

import dspy


class Awaited(dspy.Module):
    """Has ``aforward`` alone.

    Args:
        meanwhile: awaited before the predictor, with the question.
    """

    def __init__(self, meanwhile=None):
        super().__init__()
        self.answer = dspy.Predict(dspy.Signature("question -> answer", "Answer."))
        self._meanwhile = meanwhile

    async def aforward(self, question):
        if self._meanwhile is not None:
            await self._meanwhile(question)
        return await self.answer.acall(question=question)
