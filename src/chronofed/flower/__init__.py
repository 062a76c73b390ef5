"""Real clients on other machines, through Flower, which is imported only when it is needed."""
