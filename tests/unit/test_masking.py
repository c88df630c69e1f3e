"""No form in which drivers, Spark and users write a secret gets past the masking."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import frame
from holdfast.masking import masked, masked_json

SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://app:hunter2@db:5432/trips",
        "postgresql://app:hunter2@a,app:hunter2@b/trips",
        "postgresql://:hunter2@db/trips",
        "postgresql://app:p@hunter2@db/trips",
        "postgresql://app:hunter2/x@db/trips",
        "https://user:hunter2@example.org/path?x=1",
        "host=db password=hunter2 dbname=trips",
        "host=db password = 'hunter2 with blanks' dbname=trips",
        r"password='it\'s hunter2'",
        "PGPASSWORD=hunter2 psql",
        r"host=h password=top\ hunter2 user=u",
        r"host=h password=top\'hunter2\,hunter2\ hunter2",
        "sslpassword=hunter2",
        "postgresql://db/trips?user=app&password=hunter2&sslmode=require",
        "{'host': 'db', 'password': 'hunter2'}",
        '{"password":"hunter2"}',
        '{"password": "hunter\\"2hunter2"}',
        json.dumps(json.dumps({"db.password": "hunter2"})),
        "Password: hunter2",
        "passwd=hunter2, next",
        "connect(password=hunter2)",
        "connect(password='hunter2', host='db')",
        "fs.s3a.access.key=hunter2",
        "fs.s3a.secret.key=hunter2",
        "AWS_SECRET_ACCESS_KEY=hunter2",
        "fs.azure.account.key.x.dfs.core.windows.net=hunter2",
        "api_key=hunter2",
        "token=hunter2",
        "Authorization: Bearer hunter2hunter2",
    ],
)
def test_a_secret_is_covered_in_every_usual_form(text):
    assert SECRET not in masked(text)
    assert "***" in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "epoch 42 of pipeline 'trips' is staged in sink 'trips_table'",
        "postgresql://db:5432/trips",
        "listening on http://localhost:4040 since noon",
        "lag 7, rows 1000 (250/s)",
        "mail to a@b.org",
        "the password is wrong",
    ],
)
def test_an_innocent_text_stays_as_it_is(text):
    assert masked(text) == text


def test_what_stands_around_a_secret_stays_readable():
    text = 'connection to host "db" failed: host=db password=hunter2 user=app'
    assert masked(text) == 'connection to host "db" failed: host=db password=*** user=app'


def test_a_blank_that_a_backslash_makes_part_of_a_password_is_covered_and_what_comes_behind_is_not():
    assert masked(r"host=h password=top\ secret user=u") == "host=h password=*** user=u"


def test_texts_deep_in_a_json_value_are_masked():
    answer = masked_json({"error": "password=hunter2", "sinks": [{"why": "postgresql://u:hunter2@h/d"}], "rows": 3})
    assert SECRET not in json.dumps(answer)
    assert answer["rows"] == 3


@pytest.mark.slow
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="'\"\\,;&)}]"), min_size=6))
def test_any_password_that_a_dsn_can_hold_is_covered(password):
    secret = "\x00" + password + "\x00"
    assert secret not in masked(f"host=h password={secret} dbname=d")
    assert secret not in masked(f"x postgresql://user:{secret}@host/db y")


@pytest.mark.slow
@given(st.text())
def test_masking_twice_changes_nothing_more(text):
    assert masked(masked(text)) == masked(text)


@pytest.mark.slow
@pytest.mark.timeout(60)  # a search that begins anew at each letter of such a text takes hours
@pytest.mark.parametrize(
    "part",
    [
        "x",
        ".",
        "password",
        "password='",
        'password="',
        "password  ",
        'password=\\"',
        "password=\\ ",
        "\\ ",
        "http://h:80/,",
        "://",
        "bearer ",
    ],
)
def test_a_message_may_quote_a_million_letters_without_a_blank(part):
    text = part * (1_000_000 // len(part))
    assert SECRET not in masked(f"a@b,{text} password=hunter2")


@pytest.mark.parametrize("value", ["hunter2", ["hunter2"], {"a": 1}, [], 7, None, [[1], "x"]])
def test_a_key_that_is_named_like_a_secret_leaves_json_what_it_is(value, capsys):
    frame.print_json({"token": value, "rows": [{"api_key": value}]})
    out = capsys.readouterr().out
    assert SECRET not in out
    answer = json.loads(out)
    assert set(answer) == {"token", "rows"}
    assert type(answer["token"]) is type(value)


def test_keys_of_an_answer_are_masked_as_well():
    assert SECRET not in json.dumps(masked_json({"postgresql://app:hunter2@db/x": 1}))
