"""Values of options that several commands read."""

from chronofed.errors import SpecError


def seeds_of(text: str) -> list[int]:
    """Different seeds, as in ``0,1,2``.

    Raises:
        SpecError: If it is something else.
    """
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"--seeds: expected numbers such as 0,1,2, not {text!r}") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise SpecError(f"--seeds: expected different numbers from 0, not {text!r}")
    return seeds
