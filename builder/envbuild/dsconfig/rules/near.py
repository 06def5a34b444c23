"""The known word that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable

# Below it two words are no longer a slip of one another.
_LIKE = 0.75


def near(word: str, known: Iterable[str]) -> str:
    """The nearest known word; empty where none is near."""
    if len(word) > 100:
        return ""
    # Imported where a word is wrong: most files have none.
    import difflib

    names = list(known)
    plain = {_plain(name): name for name in names}
    if _plain(word) in plain:
        return plain[_plain(word)]
    # The right words in another order: comm_overlap.
    turned = {tuple(sorted(_plain(name).split("_"))): name for name in names}
    if (parts := tuple(sorted(_plain(word).split("_")))) in turned:
        return turned[parts]
    found = difflib.get_close_matches(word, names, 1, _LIKE) or difflib.get_close_matches(
        _plain(word), list(plain), 1, _LIKE
    )
    return plain.get(_plain(found[0]), found[0]) if found else ""


def _plain(word: str) -> str:
    """Without what people leave out or add: ZeRO-3's prefix, dashes, capitals."""
    return word.lower().replace("-", "_").removeprefix("stage3_")
