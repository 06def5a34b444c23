"""Nothing private leaves the machine, whatever it is called and wherever it stands; and paths still fit together."""

from __future__ import annotations

import base64
import json
import string
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.collector import masking
from envbuild.collector.masking import SECRET, Mask

UUID = "1d0a3f2e-0b1c-4d5e-8f90-123456789abc"


def masked(document: Any, users: tuple[str, ...] = (), hosts: tuple[str, ...] = ()) -> Any:
    return Mask(document, users, hosts).apply(document)


NAMES = st.text(string.ascii_lowercase + string.digits + "-_.", min_size=5, max_size=14).filter(
    lambda name: name.strip("-_.0123456789") == name
)
WORDS = st.text(string.ascii_letters + string.digits + " /:.=_-é\ud800\n", max_size=40)


@given(user=NAMES, host=NAMES, before=WORDS, after=WORDS)
def test_a_name_is_nowhere_left(user: str, host: str, before: str, after: str) -> None:
    user, host = f"zq{user}", f"xw{host}"
    places = [
        f"{before} /home/{user}/x",
        f"/scratch/{user}/env:{after}",
        f"{user}@{host}:{after}",
        f"{before} {host}.corp.net",
    ]
    document = {
        "interpreter": {"executable": f"/home/{user}/venv/bin/python", "path": places},
        "libraries": {
            "paths": {f"/home/{user}/a.so": f"/data/{user}/a.so.1"},
            "files": {f"/data/{user}/a.so.1": {"n": 1}},
        },
    }
    found = masked(document, (user,), (f"{host}.corp.net",))
    text = json.dumps(found)
    assert user not in text and host not in text
    # What is a value in one place is the same key in another.
    (real,) = found["libraries"]["paths"].values()
    assert found["libraries"]["files"] == {real: {"n": 1}}
    # It can be written, and read back, whatever bytes a path was made of.
    assert json.loads(text.encode("utf-8")) == found
    assert masked(found, (user,), (host,)) == found


SCALARS = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_document_keeps_its_shape(document: Any) -> None:
    found = masked({"errors": document}, ("alice",), ("node17",))["errors"]
    assert type(found) is type(document) and json.dumps(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://alice:pa55@pypi.corp/simple", f"https://{SECRET}@pypi.corp/simple"),
        ("--index-url=https://tok3n@host/x https://files/y", f"--index-url=https://{SECRET}@host/x https://files/y"),
        ("https://host/x?a=1&access_token=abc&b=2", f"https://host/x?a=1&access_token={SECRET}&b=2"),
        # What nobody has quoted: an @ and a slash in a password; but a version behind a path is no password.
        ("https://bo:pa@55@corp/x, https://bo:pa/5@corp", f"https://{SECRET}@corp/x, https://{SECRET}@corp"),
        ("https://bo:p@a/5@corp:80/x", f"https://{SECRET}@corp:80/x"),
        ("git+https://git.corp:8443/team/x@v1.2.0", "git+https://git.corp:8443/team/x@v1.2.0"),
        ("--password=abc --port=1", f"--password={SECRET} --port=1"),
        ("x|bearer-token=abc|x=1 (key, api_key=a)", f"x|bearer-token={SECRET}|x=1 (key, api_key={SECRET}"),
        ("login(token='abc', hf_token = 1)", f"login(token='{SECRET}', hf_token = 1)"),
        ('{"user": "x", "api_key": "abc", "auth": null}', f'{{"user": "x", "api_key": "{SECRET}", "auth": null}}'),
        ("Authorization: Basic YWxpY2U6cGE1NQ==", SECRET),
        ("hf_abcdefghijklmnopqrstuvwxyz", SECRET),
        ("Authorization: Bearer abcdefghijkl.mno", f"Authorization: {SECRET}"),
        ("ghp_0123456789012345678901234567890123456 AKIAABCDEFGHIJKLMNOP", f"{SECRET} {SECRET}"),
        (f"GPU-{UUID},MIG-{UUID},GPU-{UUID.replace('1d', '2d')}", "GPU-UUID1,MIG-UUID1,GPU-UUID2"),
        # None of these is private.
        ("/root/.cache/torch_extensions", "/root/.cache/torch_extensions"),
        ("/job/home/.cache/torch_extensions", "/job/home/.cache/torch_extensions"),
        ("libcublas.so.12.4.5.8 535.104.05 12.2.0-14+deb12u1", "libcublas.so.12.4.5.8 535.104.05 12.2.0-14+deb12u1"),
        ("Requires-Dist: tokenizers>=0.21; key=value", "Requires-Dist: tokenizers>=0.21; key=value"),
        ("_ZN3c1017get_default_dtypeEv", "_ZN3c1017get_default_dtypeEv"),
        ("Basic functions of authorization", "Basic functions of authorization"),
        ("/opt/conda/lib/secretstorage --token", "/opt/conda/lib/secretstorage --token"),
    ],
)  # fmt: skip
def test_secrets_have_many_shapes(text: str, expected: str) -> None:
    assert masked({"says": text}) == {"says": expected}


def test_variables_are_masked_by_their_names_too() -> None:
    environment = {
        "HF_TOKEN": "x", "PIP_PASSWORD": "y", "CUDA_KEY": "", "https_proxy": "http://proxy.corp:3128",
        "NO_PROXY": "10.0.0.0/8",
        "MASTER_ADDR": "10.11.12.13", "MASTER_PORT": "29500", "NCCL_SOCKET_IFNAME": "eth0", "TORCH_HOST": "127.0.0.1",
        "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": f"GPU-{UUID}", "PYTHONHASHSEED": "0",
        "UV_INDEX_CORP_USERNAME": "svc-build", "HF_TOKEN_2": "x", "NCCL_COMM_ID": "10.11.12.13:4567",
        "PMIX_SERVER_URI2": "prte.0;tcp4://10.11.12.13:4000",
        "DS_RDZV_ENDPOINT": "fe80:0:0:1::2", "LD_LIBRARY_PATH": "/home/carol/lib:/usr/home/dave/lib",
    }  # fmt: skip
    found = masked({"environment": environment, "errors": ["cannot reach 10.11.12.13:29500", "/home/dave/x"]})
    assert found["environment"] | {"DS_RDZV_ENDPOINT": ""} == {
        "HF_TOKEN": SECRET, "PIP_PASSWORD": SECRET, "CUDA_KEY": "", "https_proxy": SECRET, "NO_PROXY": SECRET,
        "MASTER_ADDR": "ADDRESS", "MASTER_PORT": "29500", "NCCL_SOCKET_IFNAME": "eth0", "TORCH_HOST": "127.0.0.1",
        "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "GPU-UUID1", "PYTHONHASHSEED": "0",
        "UV_INDEX_CORP_USERNAME": SECRET, "HF_TOKEN_2": SECRET, "NCCL_COMM_ID": "ADDRESS:4567",
        "PMIX_SERVER_URI2": "prte.0;tcp4://ADDRESS:4000",
        "DS_RDZV_ENDPOINT": "", "LD_LIBRARY_PATH": "/home/USER/lib:/usr/home/USER2/lib",
    }  # fmt: skip
    assert found["errors"] == ["cannot reach ADDRESS:29500", "/home/USER2/x"]


def test_names_with_blanks_domains_and_homes_elsewhere() -> None:
    path = "/usr/bin:/mnt/c/Users/Anna Lena Muster/AppData/Local/bin:/home2/berta/bin"
    found = masked({"environment": {"PATH": path}, "errors": ["no /mnt/c/Users/Anna Lena Muster/x and no /home/you"]})
    assert found["environment"]["PATH"] == "/usr/bin:/mnt/c/Users/USER/AppData/Local/bin:/home2/USER2/bin"
    assert found["errors"] == ["no /mnt/c/Users/USER/x and no /home/USER3"]
    # A home that is not below /home, and a domain's user.
    assert masking.users({"HOME": "/cluster/carla/", "USER": "CORP\\doris"})[:2] == ["carla", "CORP\\doris"]
    assert "doris" in masking.users({"USER": "CORP\\doris"}) and "emil" in masking.users({"USER": "emil@corp.net"})
    assert {"x", "app"}.isdisjoint(masking.users({"HOME": "/x"}) + masking.users({"HOME": "/opt/app"}))


def test_the_first_user_is_whose_home_it_is() -> None:
    """A command for /home/USER says $HOME: nobody else's home may be called so."""
    paths = {"interpreter": {"path": ["/home/berta/x", "/home/anna/x"]}}
    assert masked(paths, ("anna",))["interpreter"]["path"] == ["/home/USER2/x", "/home/USER/x"]
    assert masked(paths, ("root",))["interpreter"]["path"] == ["/home/USER2/x", "/home/USER3/x"]
    assert [masking.users({"HOME": home})[0] for home in ("/root", "/home/ubuntu")] == ["root", "ubuntu"]


def test_a_search_for_names_ends_whatever_stands_there() -> None:
    """Values that make a careless pattern look again and again: each is a second, or the time-out."""
    for text in ("/home/" + " " * 30_000 + "\0", "x://" + "a:" * 15_000, "token-" * 5_000, "/home/a" * 5_000 + " "):
        assert masked({"environment": {"X": text}})


def test_names_of_variables_are_text_too() -> None:
    assert json.dumps(masked({"environment": {"HF_\udcff": "1"}})).encode("utf-8").decode() and list(
        masked({"environment": {"HF_\udcff": "1"}})["environment"]
    ) == ["HF_\ufffd"]


@pytest.mark.parametrize("name", ["torch", "envbuild", "ubuntu", "numpy", "lib", "gpu", "root"])
def test_a_user_or_a_host_with_a_common_name_changes_nothing_else(name: str) -> None:
    document = {
        "schema": "envbuild.collection/1", "machine": {"distribution": {"id": "ubuntu"}},
        "interpreter": {"packages": [{"name": "torch"}, {"name": "numpy"}],
                        "path": ["/opt/lib/torch/lib", f"/home/{name}/x"]},
    }  # fmt: skip
    found = masked(document, (name,), (name,) if name != "numpy" else ())
    assert found["schema"] == document["schema"] and found["machine"] == document["machine"]
    assert found["interpreter"]["packages"] == document["interpreter"]["packages"]  # type: ignore[index]
    mask = "root" if name == "root" else "USER"
    assert found["interpreter"]["path"] == ["/opt/lib/torch/lib", f"/home/{mask}/x"]


def test_a_loader_cache_keeps_its_offsets() -> None:
    plain = b"glibc-ld.so.cache1.1\0\x01\x00libx.so\0/home/christopher/lib/libx.so\0liby.so\0/usr/lib/liby.so\0\xff\xfe"
    packed = base64.b64encode(zlib.compress(plain)).decode()
    found = masked({"libraries": {"cache": packed}}, ("christopher",))["libraries"]["cache"]
    data = zlib.decompress(base64.b64decode(found))
    assert len(data) == len(plain) and b"christopher" not in data and data.index(b"liby") == plain.index(b"liby")
    assert b"/home/USER/lib/libx.so\0" in data
    untouched = base64.b64encode(zlib.compress(plain.replace(b"/home/christopher", b"/opt"))).decode()
    assert masked({"libraries": {"cache": untouched}})["libraries"]["cache"] == untouched
    # The mask would be longer than the name, and every offset behind it wrong.
    short = base64.b64encode(zlib.compress(plain.replace(b"christopher", b"bo"))).decode()
    assert masked({"libraries": {"cache": short}}, ("bo",))["libraries"]["cache"] is None
    assert masked({"libraries": {"cache": "no base64"}})["libraries"]["cache"] is None
