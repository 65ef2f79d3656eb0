"""A word count, as it is written for Pulsar: counters in the state of the function, which outlives it."""

from typing import Any

from pulsar import Context, Function


class WordCountFunction(Function):  # type: ignore[misc]
    """Counts the words of all lines."""

    def process(self, input: Any, context: Context) -> str:
        """Return the words of a line, each with how often it has come so far."""
        words = str(input).split()
        for word in words:
            context.incr_counter(word, 1)
        return " ".join(f"{word}={context.get_counter(word)}" for word in dict.fromkeys(words))
