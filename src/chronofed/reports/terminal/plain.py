"""Text for terminals that show ASCII alone."""

import unicodedata

_WORDS = {
    "±": "+-",
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "…": "...",
    "×": "x",
    "·": "|",
    "━": "-",
}


def as_ascii(text: str) -> str:
    """Replace what ASCII does not have by what reads the same.

    >>> as_ascii("75.0 ± 1.2"), as_ascii("Köln"), as_ascii("東京")
    ('75.0 +- 1.2', 'Koln', '??')
    """
    replaced = "".join(_WORDS.get(c, c) for c in text)
    decomposed = unicodedata.normalize("NFKD", replaced)
    bare = "".join(c for c in decomposed if not unicodedata.combining(c))
    return bare.encode("ascii", "replace").decode()
