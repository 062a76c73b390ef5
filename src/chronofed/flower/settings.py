"""How a server treats clients that are slow, fail or lie."""

from chronofed.config import Config, Count, Natural, Positive


class Federation(Config):
    """How long clients are waited for, and what is believed of them.

    Attributes:
        quorum: Answers that a round needs; 0 for more than half of the clients asked.
        deadline: Seconds after which a round does without those who have not answered.
        muster: Seconds that the first round waits for clients that no node stands for yet; later rounds go on
            without them as soon as a quorum has answered, and ask them when they are there.
        patience: Seconds after which a round without a quorum ends the run, which can be continued.
        retries: How often a client that failed is asked again in the same round.
        poll: Seconds between two looks for answers.
        largest: Most megabytes of an answer.
    """

    quorum: Natural = 0
    deadline: Positive = 600.0
    muster: Positive = 60.0
    patience: Positive = 86400.0
    retries: Natural = 1
    poll: Positive = 0.2
    largest: Count = 1024

    def needed(self, asked: int) -> int:
        """Answers that a round with so many clients needs."""
        return min(self.quorum, asked) if self.quorum else asked // 2 + 1
