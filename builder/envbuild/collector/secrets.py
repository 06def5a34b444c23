"""What looks like a secret: the one place that knows, for all that is written down and read by others.

``profiler/recorder.py``, which runs where nothing else of envbuild is, has the same ``NAME``; a test holds the two
together. ``judge/secrets.py`` looks for what an image gives away, by the issuers' exact forms, and hides nothing.
"""

import re
from typing import Any, List, Match, Pattern, Sequence

SECRET = "***"

# Names of variables, options and keys whose values are nobody else's. What tokenizes is none.
NAME = re.compile(
    r"(?i)token(?!i[sz])|passw|passphrase|passcode|secret|credential|bearer|cookie|webhook"
    r"|(?:api|access|private|signing|encryption)[_.-]?key"
    r"|(?<![a-z])(?:auth|authorization|pwd|pass|pat|sig|signature|session|jwt|sas|dsn|creds?)(?![a-z])"
    r"|(?<![a-z])keys?(?:[_.-]?(?:id|file))?(?:[_.-]?\d+)?\Z|(?<![a-z])username\Z"
)
# Sections of a ds_config that lead to somebody's account or folder, by any name that DeepSpeed has had for them
# (deepspeed/monitor/config.py; ``trackio`` is Hugging Face's).
MONITORS = ("monitor_config", "comet", "wandb", "tensorboard", "csv_monitor", "trackio")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# --max-tokens 4096: how many there are is told.
_COUNTED, _COUNT = re.compile(r"(?i)token"), re.compile(r"[\d.,]{1,12}(?:e\d{1,2})?[kKmMgG]?\Z")
_NOTHING = frozenset(("", "none", "null", "true", "false", "auto", SECRET))

# Here and below, what stands before a match keeps a search of a long value from being tried at each of its letters.
# A password that nobody has quoted may hold an @, or a slash; a port before a path is none.
_URL = re.compile(
    r"((?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,30}://)"
    r"(?:[^/\s'\"@:]*:(?!\d+/)[^\s'\"]*(?=@[\w.-]+(?:[/:\s]|\Z))|[^/\s'\"]+)@"
)
# token=x, --api-key='x', "password": "x"
_PARAMETER = re.compile(
    r"(?i)((?<![\w-])-{0,2}(?:[\w-]{0,60}[_-])?"
    r"(?:token|password|passwd|pwd|secret|api[_-]?key|access[_-]?key|auth|signature|sig|credential)s?"
    r"(?:=['\"]?|['\"]\s?:\s?['\"]))([^&;|\s'\"]+)"
)
# What programs say: password: hunter22, HF_TOKEN = "...". Words and small numbers behind a colon are sentences.
_SAID = re.compile(
    r"(?i)((?<![\w-])[\w-]{0,60}(?:token|password|passwd|secret|api[_-]?key|access[_-]?key)[\w-]{0,60}['\"]?\s?"
    r"[=:]\s?['\"]?)(?!None\b|null\b|\d{1,4}\b|\W)([^\s'\",;&]{6,})"
)
_BASIC = re.compile(r"(\bBasic )(?=[\w+/]{0,200}[\d=])[\w+/]{12,}={0,2}")
# Tokens that the large services issue, and what stands behind the word that says how somebody shows who they are.
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{20,}|"
    r"A[KS]IA[A-Z0-9]{16}|xox[abprs]-[\w-]{10,}|pypi-[\w-]{20,}|npm_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,}|"
    r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)|"
    r"(?i:\bbearer\s+|\bauthorization\W{1,4}basic\s+)[\w.~+/-]{8,}=*"
)

# A quoted text: also one within another, and one that was cut off. A word of a shell's is made of such, and of letters.
_QUOTED = re.compile(r"(?s)\\'.*?\\'|\\\".*?\\\"|'[^']*(?:'|\Z)|\"(?:\\.|[^\"\\])*(?:\"|\Z)")
_BARE = re.compile(r"(?s)(?:\\[^'\"]|[^\s;&|<>()'\"\\])+")
_QUOTE = re.compile(r"\\?['\"]")
# Of a header it is the rest of its line or quote.
_REST = re.compile(r"[^'\"\n\\]+")
# NAME=value and --name=value; --name value; "name": value and Name: value.
_SET = re.compile(r"(?<![\w.-])-{0,2}([A-Za-z_][\w.-]{0,99})=")
_OPTION = re.compile(r"(?<![\w.-])--?([A-Za-z][\w.-]{0,99})[ \t]+(?!--?[A-Za-z])")
_MEMBER = re.compile(r"(?<![\w.-])([A-Za-z_][\w.-]{0,99})\\?['\"]?\s{0,9}:\s{0,9}")
_USER = re.compile(r"(?:\A|(?<=\s))(?:-u|--user)[ \t=]+['\"]?[^\s:'\"]+:(?!\d+(?:\s|\Z))")
_OPTION_WORD = re.compile(r"--?([A-Za-z][\w.-]{0,99})\Z")
_SET_WORD = re.compile(r"(?s)(-{0,2}[A-Za-z_][\w.-]{0,99})=(.*)\Z")
_NEXT_OPTION = re.compile(r"(?s)--[A-Za-z][\w.-]*(?:=.*)?\Z|-[A-Za-z]\Z")
_PAIR = re.compile(r"(\"((?:\\.|[^\"\\]){1,99})\"\s{0,9}:\s{0,9}(?:\[\s{0,9})?)\"((?:\\.|[^\"\\])*)")
_USERS = ("-u", "--user")


def named(name: str, value: str = "x") -> bool:
    """Whether a value of this name is nobody else's: ``HF_TOKEN``, ``--api-key``, ``accessKey``."""
    name = _CAMEL.sub("_", name)
    if value.lower() in _NOTHING or not NAME.search(name):
        return False
    return not (_COUNT.match(value) and not NAME.search(_COUNTED.sub("", name)))


def text(words: str) -> str:
    """A text without the secrets in it."""
    words = _URL.sub(r"\1" + SECRET + "@", words)
    words = _PARAMETER.sub(_parameter, words)
    return _SHAPES.sub(SECRET, words)


def line(words: str) -> str:
    """A line of a log without them: there a colon stands between name and value, and sentences have colons, too."""
    words = _URL.sub(r"\1" + SECRET + "@", words)
    words = _SAID.sub(r"\1" + SECRET, words)
    return _BASIC.sub(r"\1" + SECRET, _SHAPES.sub(SECRET, words))


def script(words: str) -> str:
    """A piece of a shell's without them, whatever it is quoted with."""
    for pattern in (_SET, _OPTION, _MEMBER, _USER):
        words = _behind(pattern, words)
    return text(words)


def command(words: Sequence[str]) -> List[str]:
    """The words of a command line without them: behind an option or a ``=``, in a URL, in a header, in a script."""
    found: List[str] = []
    option = ""
    for word in words:
        before, option = option, ""
        setting = _SET_WORD.match(word)
        if before and not _NEXT_OPTION.match(word):
            found.append(_told(before, word))
        elif setting and named(setting.group(1), setting.group(2)):
            found.append(setting.group(1) + "=" + SECRET)
        else:
            if _OPTION_WORD.match(word) and (named(word) or word in _USERS or (word == "-p" and _asks(found))):
                option = word
            found.append(script(word))
    return found


def blackened(words: str) -> str:
    """A line of a JSON file without them, and as long: what stands behind them stays in its column."""

    def hidden(found: Match[str]) -> str:
        value = found.group(3)
        return found.group(1) + '"' + (SECRET[0] * len(value) if named(found.group(2), value) else value)

    return _PAIR.sub(hidden, words)


def config(value: Any) -> Any:
    """A ds_config without them, and without monitors, of whatever depth: what is one is left out, with its name."""
    if isinstance(value, dict):
        return {name: config(each) for name, each in value.items() if not kept_back(str(name), each)}
    if isinstance(value, (list, tuple)):
        return [config(each) for each in value]
    return text(value) if isinstance(value, str) else value


def kept_back(name: str, value: Any) -> bool:
    """Whether a setting of a ds_config is left out."""
    if name in MONITORS:
        return True
    if value is None or isinstance(value, bool):
        return False
    # A section of tokens is one of how many there are.
    return named(name, "1" if isinstance(value, (dict, list, tuple)) else str(value))


def _parameter(found: Match[str]) -> str:
    return str(found.group(1)) + (SECRET if found.group(2).lower() not in _NOTHING else str(found.group(2)))


def _asks(words: Sequence[str]) -> bool:
    """Whether ``-p`` is a password here."""
    return any(word.rpartition("/")[2] in ("sshpass", "login") for word in words)


def _told(option: str, word: str) -> str:
    if option in _USERS:
        user, colon, password = word.partition(":")
        return user + colon + SECRET if colon and not password.isdigit() else script(word)
    return SECRET if option == "-p" or named(option, word) else word


def _behind(pattern: Pattern[str], words: str) -> str:
    """Hide what stands behind each name that asks for it; what stands behind another one is looked at, too."""
    found: List[str] = []
    at = 0
    match = pattern.search(words)
    while match:
        found.append(words[at : match.end()])
        at = match.end()
        if pattern is _USER or NAME.search(_CAMEL.sub("_", match.group(1))):
            whole = words[at : _end(words, at, _REST if pattern is _MEMBER else _BARE)]
            if whole and (pattern is _USER or named(match.group(1), whole.strip("'\"\\ ,{}[]"))):
                quote = whole[0] if whole[0] in "'\"" and whole[-1] == whole[0] and len(whole) > 1 else ""
                found.append(quote + SECRET + quote)
                at += len(whole)
        match = pattern.search(words, at)
    return "".join([*found, words[at:]])


def _end(words: str, at: int, bare: Pattern[str]) -> int:
    """Where a value ends that begins here: a quote behind letters is the end of what began before, or goes on."""
    begin = at
    while True:
        quote = _QUOTE.match(words, at)
        if quote and (at == begin or words.count(quote.group(), 0, begin) % 2 == 0):
            piece = _QUOTED.match(words, at)
        else:
            piece = None if quote else bare.match(words, at)
        if piece is None or piece.end() == at:
            return at
        at = piece.end()
        if bare is _REST:
            return at
