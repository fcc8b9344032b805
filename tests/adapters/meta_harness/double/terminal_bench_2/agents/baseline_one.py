SCORE = 0.2


class AgentHarness:
    pass
