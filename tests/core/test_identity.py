from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_collab.core.identity import (
    derived_id,
    is_path,
    local_path,
    redact,
    reduce_url,
    without_secret,
)

SECRET = "s3cr3t"
# What may stand before the `@` without ending the authority; `@` itself is legal there for git.
USERINFO = st.text("abcXYZ019-._~!$&'()*+,;=:@%\"[]|\\", max_size=12)
PATHS = st.from_regex(r"[A-Za-z0-9_.-]{1,8}(/[A-Za-z0-9_.-]{1,8}){0,3}", fullmatch=True)
HOSTS = st.from_regex(r"[a-z][a-z0-9]{0,8}\.(example|org)", fullmatch=True)


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/owner/repo",
        "https://github.com/owner/repo/",
        "https://github.com/owner/repo///",
        "https://github.com/owner/repo.git",
        "https://github.com/owner/repo.git/",
        "http://github.com/owner/repo.git",
        "HTTPS://GitHub.COM/owner/repo.git",
        "https://www.github.com/owner/repo",
        "https://github.com/Owner/Repo",
        "https://github.com:443/owner/repo",
        "http://github.com:80/owner/repo",
        "https://github.com//owner//repo.git",
        "https://github.com/owner/repo?service=git-upload-pack",
        "https://github.com/owner/repo.git?token=s3cr3t",
        "https://github.com/%6Fwner/re%70o",
        "https://github.com/owner%2Frepo",
        "https://me@github.com/owner/repo",
        "https://s3cr3t@github.com/owner/repo.git",
        "https://me:s3cr3t@github.com/owner/repo",
        "https://x-access-token:s3cr3t@github.com/owner/repo.git",
        "https://me:s3@cr3t@github.com/owner/repo",
        "git://github.com/owner/repo.git",
        "git://github.com:9418/owner/repo.git",
        "ssh://git@github.com/owner/repo.git",
        "ssh://git@github.com:22/owner/repo.git",
        "ssh://github.com/owner/repo",
        "git+ssh://git@github.com/owner/repo.git",
        "ssh://git@ssh.github.com:443/owner/repo.git",
        "ssh://git@ssh.github.com/owner/repo.git",
        "git@ssh.github.com:owner/repo.git",
        "git@github.com:owner/repo.git",
        "git@github.com:owner/repo",
        "git@github.com:/owner/repo.git",
        "git@github.com:owner/repo.git/",
        "git@GITHUB.com:Owner/Repo.git",
        "github.com:owner/repo",
        "git@www.github.com:owner/repo",
        "[github.com]:owner/repo.git",
    ],
)
def test_every_spelling_of_one_url_gives_one_id(url: str) -> None:
    assert reduce_url(url) == "github.com/owner/repo"
    assert derived_id(url) == derived_id("https://github.com/owner/repo")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ssh://git@altssh.gitlab.com:443/g/sub/repo.git", "https://gitlab.com/G/Sub/Repo"),
        ("git@altssh.gitlab.com:g/repo", "git@gitlab.com:g/repo.git"),
        ("git@bitbucket.org:Team/Repo.git", "https://me@bitbucket.org/team/repo"),
        ("git@codeberg.org:A/B.git", "https://codeberg.org/a/b"),
        ("ssh://git@git.example:22/Team/r.git", "git@git.example:Team/r"),
        ("ssh://git@[2001:db8::1]/srv/r.git", "git@[2001:db8::1]:srv/r.git"),
        ("ssh://git.example/a%20b.git", "ssh://git.example/a b"),
        ("file:///srv/git/r.git", "/srv/git/r"),
        ("file:///srv/git/a%20b/", "/srv/git/a b"),
        ("/srv/git/r.git/", "/srv/git/r"),
    ],
)
def test_the_spellings_of_other_hosts_agree_too(one: str, other: str) -> None:
    assert reduce_url(one) == reduce_url(other)
    assert derived_id(one) == derived_id(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://github.com/a/b", "https://github.com/a/c"),
        ("https://github.com/a/b", "https://gitlab.com/a/b"),
        ("https://git.example/A/b", "https://git.example/a/b"),
        ("https://git.example/a/b", "https://git.example/a/b.git.git"),
        ("https://git.example/a/b", "https://git.example:8443/a/b"),
        ("ssh://git.example:2222/a/b", "ssh://git.example:2223/a/b"),
        ("https://api.github.com/a/b", "https://github.com/a/b"),
        ("/srv/a", "/srv/A"),
        ("/srv/a", "https://srv/a"),
    ],
)
def test_different_repositories_have_different_ids(one: str, other: str) -> None:
    assert derived_id(one) != derived_id(other)


@pytest.mark.parametrize(
    ("url", "reduced"),
    [
        ("ssh://git@git.example:2222/a/b.git", "git.example:2222/a/b"),
        ("https://git.example:8443/a/b", "git.example:8443/a/b"),
        ("http://git.example:8080/a/b?x=1", "git.example:8080/a/b"),
        ("git://git.example:9419/a/b", "git.example:9419/a/b"),
    ],
)
def test_a_port_that_is_not_a_default_one_is_kept(url: str, reduced: str) -> None:
    assert reduce_url(url) == reduced


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("/srv/git/r.git", True),
        ("../r", True),
        ("r", True),
        ("./odd:name", True),
        ("dir/odd:name", True),
        ("file:///srv/r", True),
        ("FILE:///srv/r", True),
        ("host:r", False),
        ("host:/srv/r", False),
        ("git@host:a/b", False),
        ("https://host/a", False),
        ("[::1]:r", False),
    ],
)
def test_a_path_is_told_from_a_host_as_git_does_it(url: str, is_one: bool) -> None:
    assert is_path(url) is is_one


def test_a_local_path_is_the_path_itself_or_the_one_in_a_file_url() -> None:
    assert local_path("/srv/a%20b") == "/srv/a%20b"
    assert local_path("file:///srv/a%20b") == "/srv/a b"
    assert reduce_url("/") == "/"


def test_an_id_is_twelve_hex_digits_also_of_a_path_that_is_not_unicode() -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", derived_id("git@host:a"))
    assert re.fullmatch(r"[0-9a-f]{12}", derived_id("/srv/caf\udce9.git"))


@pytest.mark.parametrize("url", [":a", "https://[bad/x", "[bad:x", "https://host:port/x", "ssh://"])
def test_a_url_that_git_would_refuse_is_reduced_all_the_same(url: str) -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", derived_id(url))
    assert isinstance(without_secret(url), str)


@given(
    scheme=st.sampled_from(["https", "http", "ssh", "git"]),
    before=USERINFO,
    after=USERINFO,
    host=HOSTS,
    path=PATHS,
    has_query=st.booleans(),
)
def test_no_secret_of_a_url_survives(
    scheme: str, before: str, after: str, host: str, path: str, has_query: bool
) -> None:
    url = f"{scheme}://{before}{SECRET}{after}@{host}/{path}"
    for shown in (reduce_url(url), without_secret(url), redact(url), redact(f"fatal: '{url}': no")):
        assert SECRET not in shown
        assert host in shown
    if has_query:
        url = f"{scheme}://{host}/{path}?private_token={SECRET}"
        assert SECRET not in reduce_url(url) + without_secret(url)


@given(user=st.text("abcxyz:.-_", max_size=8), host=HOSTS, path=PATHS)
def test_the_user_of_an_scp_address_is_not_part_of_what_it_is(
    user: str, host: str, path: str
) -> None:
    assert reduce_url(f"{user}{SECRET}@{host}:{path}") == reduce_url(f"{host}:{path}")


@given(text=st.text("ab c:/@.\n'\"", max_size=40))
def test_words_without_a_url_are_left_as_they_are(text: str) -> None:
    if "://" not in text:
        assert redact(text) == text


def test_every_url_in_a_tools_words_loses_its_user() -> None:
    words = "remote: https://a:b@h/x and ssh://git@i/y\nhint: mail me@h"
    assert redact(words) == "remote: https://h/x and ssh://i/y\nhint: mail me@h"


@given(host=HOSTS, path=PATHS, port=st.none() | st.integers(1, 65535))
def test_reducing_gives_the_same_for_each_scheme(host: str, path: str, port: int | None) -> None:
    at = host if port is None else f"{host}:{port}"
    assert len({reduce_url(f"{s}://{at}/{path}") for s in ("https", "http", "ssh", "git")}) == 1
