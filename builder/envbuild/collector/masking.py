"""Takes out of a whole document what is private: who and where, and every secret. Paths still fit together after it."""

import base64
import os
import re
import zlib

from .secrets import SECRET, named
from .secrets import text as without_secrets

# Words that may be a name and mean something else too: replaced everywhere, they would make the document say nonsense.
_COMMON = frozenset(
    """envbuild root user users admin nobody default ubuntu debian centos rhel rocky alma fedora suse arch alpine amazon
    localhost localdomain local home host hosts gpu cpu cuda nvidia python python3 conda anaconda miniconda mamba torch
    pytorch deepspeed lib lib64 bin usr opt etc var tmp srv mnt data dev proc sys run include share site packages work
    workspace project projects src code test tests train model models build docker podman runner jovyan vagrant app
    linux kernel system venv cache true false none version name path file""".split()  # noqa: SIM905
)
_HOME = r"/(?:home\d*|Users|users|homes)/"
_USER = r"[^/.\s:;,'\"=\0][^/\s:;,'\"=\0]*"  # /home/.cache is nobody's
# A name with blanks in it, as Windows has them: only where a whole path says where it ends.
_BLANKS = re.compile(_HOME + r"([^/:;\0\n]{0,64} [^/:;\0\n]{0,64})(?=[/:;]|\Z)")
_PROXY = re.compile(r"(?i)\A(?:https?|all|ftp|no)_proxy\Z|_proxy\Z")
_PLACE_NAME = re.compile(
    r"(?i)(?:ADDR|ADDRESS|_HOST|HOSTNAME|_IP|NODELIST|ENDPOINT|_UR[IL]\d*|COMM_ID|_STORAGE|RDZV\w*)\Z"
)
_LOOPBACK = re.compile(r"\A(?:localhost|127(?:\.\d+){3}|::1|0\.0\.0\.0|::)\Z")
_IP = re.compile(
    r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}(?![\w:])"
)
_HEX = "[0-9a-fA-F]"
_UUID = re.compile(r"\b((?:GPU|MIG)-)((?:GPU-)?{0}{{8}}-{0}{{4}}-{0}{{4}}-{0}{{4}}-{0}{{12}})".format(_HEX))
_SHORTEST = 3
_MASKED = re.compile(r"(?:USER|HOST|ADDRESS)\d*\Z")


class Mask:
    """What stands for what; the same name is masked the same way wherever it stands."""

    def __init__(self, document, users=(), hosts=()):
        """Learn the names.

        Args:
            document: What is to be masked; user names are found in its paths, addresses in its variables.
            users: Names of users that are known.
            hosts: Names of hosts that are known.
        """
        self._seen = {}
        texts = list(_strings(document))
        libraries = document.get("libraries") if isinstance(document, dict) else None
        if isinstance(libraries, dict):
            texts += (_cache(libraries.get("cache")) or "").split("\0")
        names = [name for name in users if name]
        environment = document.get("environment") if isinstance(document, dict) else None
        interpreter = document.get("interpreter") if isinstance(document, dict) else None
        names += [found.group(1) for text in _strings([environment, interpreter]) for found in _BLANKS.finditer(text)]
        self._homes = _homes(names)
        names += [found.group(2) for text in texts for found in self._homes.finditer(text)]
        # The first is whose home $HOME is; root is no secret, and keeps its place, so that nobody else gets it.
        self._users = _numbered("USER", [name for name in names if not _MASKED.match(name)])
        self._users.pop("root", None)
        addresses = []
        for name, value in sorted((environment or {}).items()) if isinstance(environment, dict) else ():
            if isinstance(value, str) and _PLACE_NAME.search(name):
                addresses += [each for each in _IP.findall(value) if not _LOOPBACK.match(each)]
                if re.match(r"(?i)(?:MASTER_ADDR|\w*HOSTNAME)\Z", name) and not _IP.search(value):
                    hosts = (*tuple(hosts), value)
        self._words = _numbered("ADDRESS", addresses)
        known = [host for host in hosts if host and not _LOOPBACK.match(host) and not _MASKED.match(host)]
        short = _numbered("HOST", [host.partition(".")[0] for host in known])
        # Whole, and without its domain, it is the same host.
        for host in known:
            for form in (host, host.partition(".")[0]):
                if _is_word(form):
                    self._words.setdefault(form, short[host.partition(".")[0]])
        self._pattern = _pattern(self._words, r"(?<![A-Za-z0-9_]){}(?![A-Za-z0-9_])")
        # A user may be called like a package or a program: the name counts in paths (/scratch/alice) and addresses.
        self._names = {name: mask for name, mask in self._users.items() if _is_word(name)}
        self._places = _pattern(self._names, r"(?<=[/~]){0}(?![A-Za-z0-9_])|(?<![A-Za-z0-9_]){0}(?=@)")

    def text(self, text):
        """One string without what is private."""
        text = without_secrets(legible(text))
        text = _UUID.sub(self._uuid, text)
        text = self._homes.sub(lambda found: found.group(1) + self._users.get(found.group(2), found.group(2)), text)
        if self._places:
            text = self._places.sub(lambda found: self._names[found.group(0)], text)
        return self._pattern.sub(lambda found: self._words[found.group(0)], text) if self._pattern else text

    def value(self, name, value):
        """The value of an environment variable."""
        if named(name, value):
            return SECRET
        if _PROXY.search(name):
            return SECRET if value else value
        return self.text(value)

    def apply(self, node):
        """A whole document: every string in it, the keys of its objects too."""
        if isinstance(node, str):
            return self.text(node)
        if isinstance(node, dict):
            return {self.text(str(key)): self._member(key, value) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [self.apply(item) for item in node]
        return node

    def _member(self, key, value):
        if key == "schema":
            return value
        if key == "environment" and isinstance(value, dict):
            return {
                legible(str(name)): self.value(str(name), each) if isinstance(each, str) else each
                for name, each in value.items()
            }
        if key == "cache" and isinstance(value, str):
            return self._loader_cache(value)
        return self.apply(value)

    def _loader_cache(self, text):
        """ld.so.cache: its strings are found by their offsets, so what is put in must not be longer.

        A home folder in it is rare. Where one is, a mask that is shorter is followed by the rest of the path and then
        by zeros; one that would be longer cannot be put in, and the cache is left out.
        """
        decoded = _cache(text)
        if decoded is None:
            return None
        parts = decoded.split("\0")
        for number, part in enumerate(parts):
            masked = self.text(part) if "/" in part and part.isprintable() else part
            if len(masked) > len(part):
                return None
            parts[number] = masked + "\0" * (len(part) - len(masked))
        masked = "\0".join(parts)
        if masked == decoded:
            return text
        return base64.b64encode(zlib.compress(masked.encode("latin-1"), 9)).decode("ascii")

    def _uuid(self, found):
        number = self._seen.setdefault(found.group(2), len(self._seen) + 1)
        return "{}UUID{}".format(found.group(1), number)


def legible(text):
    """A text that can be written as UTF-8: file names come with surrogates for bytes that the locale does not know."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
    return data.decode("utf-8", "replace")


def _numbered(mask, names):
    """A mask for each name: USER, USER2, ..."""
    found = {}
    for name in dict.fromkeys(names):
        found[name] = mask if not found else "{}{}".format(mask, len(found) + 1)
    return found


def _cache(text):
    """A loader's cache as text, a character for each byte; None where it is none."""
    try:
        return zlib.decompress(base64.b64decode(text)).decode("latin-1")
    except (ValueError, TypeError, zlib.error):
        return None


def _strings(node):
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield str(key)
            for text in _strings(value):
                yield text
    elif isinstance(node, (list, tuple)):
        for item in node:
            for text in _strings(item):
                yield text


def _homes(names):
    """Home folders as the part before a user's name, and the name: one that is known has whatever is in it."""
    odd = sorted((name for name in set(names) if not re.match(_USER + r"\Z", name)), key=len, reverse=True)
    return re.compile("({})({})".format(_HOME, "|".join([*(re.escape(name) + r"(?![\w.-])" for name in odd), _USER])))


def _pattern(words, form):
    """Any of the words, the longest first, in a form that says what may stand around it; None without words."""
    parts = sorted(words, key=len, reverse=True)
    return re.compile(form.format("(?:{})".format("|".join(map(re.escape, parts))))) if parts else None


def _is_word(name):
    return len(name) >= _SHORTEST and name.lower() not in _COMMON and not name.isdigit()


def users(environ):
    """Names of this process's user, as far as they can be known; the one that the home folder has comes first."""
    # /u/alice, /cluster/alice: of a folder at the root nobody knows that it is called like somebody, but root's.
    home = environ.get("HOME", "").rstrip("/")
    own = os.path.basename(home)
    known = home == "/root" or re.search(_HOME + r"[^/]+\Z", home)
    found = [own] if known or (home.count("/") > 1 and _is_word(own)) else []
    found += [environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")]
    try:
        import pwd

        found.append(pwd.getpwuid(os.getuid()).pw_name)
    except (ImportError, KeyError):
        pass
    # CORP\alice and alice@corp.com are alice, too: her home may be /home/CORP/alice.
    found += [part for name in found for part in re.split(r"[\\@]", name) if part != name]
    return [name for name in found if name]


def hosts(environ):
    """Names of this host."""
    return [os.uname().nodename, environ.get("HOSTNAME", ""), environ.get("SLURMD_NODENAME", "")]
