"""A dictionary that writes down which keys it is asked for."""


class Recorder(dict):
    """A dictionary that remembers what it was asked for.

    Attributes:
        asked: Keys with the default that went with the question; MISSING where none did.
        whole: It was asked for all that it holds.
        listed: It was asked for all its keys.
        kept: It became a part of the configuration as it is.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = {}
        self.whole = False
        self.listed = False
        self.kept = False

    def note(self, key, default=None, told=False):
        if isinstance(key, str) and (key not in self.asked or (told and not self.asked[key][0])):
            self.asked[key] = (told, default)

    def get(self, key, default=None):
        self.note(key, default, True)
        return super().get(key, default)

    def __contains__(self, key):
        self.note(key)
        return super().__contains__(key)

    def __getitem__(self, key):
        self.note(key)
        return super().__getitem__(key)

    def pop(self, key, *default):
        self.note(key, *default, bool(default))
        return super().pop(key, *default)

    def keys(self):
        return Keys(self)

    def items(self):
        self.whole = True
        return super().items()

    def __iter__(self):
        self.whole = True
        return super().__iter__()

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def copy(self):
        return self


class Keys(list):
    def __init__(self, owner):
        super().__init__(dict.keys(owner))
        self.owner = owner

    def __contains__(self, key):
        return key in self.owner

    def __iter__(self):
        self.owner.listed = True
        return super().__iter__()
