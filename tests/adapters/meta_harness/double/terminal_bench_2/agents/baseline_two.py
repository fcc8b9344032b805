SCORE = 0.3


class AgentHarness:
    pass
