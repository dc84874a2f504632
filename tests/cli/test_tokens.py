"""`penstock tokens`: the secret is shown once, alone in a pipe, and is nowhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import Queue
from penstock.access import Access, Token
from penstock.core.errors import Unauthorized
from penstock.core.registry import ALL_TENANTS


async def check(queue: Queue, secret: str) -> Token | None:
    access = Access(queue.store)
    try:
        return await access.check(secret)
    except Unauthorized:
        return None
    finally:
        await access.close()


class TestTokens:
    def test_a_pipe_gets_the_secret_alone_and_it_works(self, run: Any, ask: Any) -> None:
        done = run("tokens", "create", "shop", "--scope", "produce", "--scope", "work", "--expires-in", "90d")
        assert (done.exit_code, done.stderr, done.stdout.count("\n")) == (0, "", 1)
        token = ask(lambda queue: check(queue, done.stdout.strip()))
        assert (token.name, token.tenant, token.scopes) == ("shop", "default", ("produce", "work"))
        assert token.created_by.startswith("cli:")
        assert 89 < (token.expires_at - token.created_at).days <= 90

    def test_in_json_the_secret_is_with_the_token(self, told: Any, ask: Any) -> None:
        made = told("tokens", "create", "shop", "--scope", "read", "--rate", "100/s,burst=200", "-o", "json")
        token = ask(lambda queue: check(queue, made["secret"]))
        assert (token.id, token.rate.burst) == (made["id"], 200)

    def test_a_list_has_no_secrets(self, run: Any, told: Any) -> None:
        secret = run("tokens", "create", "shop", "--scope", "read").stdout.strip()
        [token] = told("tokens", "list")
        assert (token["name"], token["scopes"]) == ("shop", ["read"])
        for output in ("table", "wide", "json", "jsonl", "csv"):
            out = run("tokens", "list", "-o", output).stdout
            assert token["id"] in out
            assert secret not in out

    def test_rotated_both_work_for_a_while(self, run: Any, told: Any, ask: Any) -> None:
        old = told("tokens", "create", "shop", "--scope", "read", "-o", "json")
        new = run("tokens", "rotate", old["id"], "--overlap", "1h").stdout.strip()
        assert ask(lambda queue: check(queue, new)).name == "shop"
        replaced = ask(lambda queue: check(queue, old["secret"]))
        assert replaced.replaced_by == ask(lambda queue: check(queue, new)).id

    def test_rotated_without_overlap_only_the_new_one_works(self, run: Any, told: Any, ask: Any) -> None:
        old = told("tokens", "create", "shop", "--scope", "read", "-o", "json")
        new = told("tokens", "rotate", old["id"], "--overlap", "0", "-o", "json")
        assert ask(lambda queue: check(queue, old["secret"])) is None
        assert ask(lambda queue: check(queue, new["secret"])).id == new["id"]

    def test_revoked_it_is_gone_and_who_did_it_is_kept(self, run: Any, told: Any, ask: Any) -> None:
        made = told("tokens", "create", "shop", "--scope", "read", "-o", "json")
        done = run("tokens", "revoke", made["id"], "--reason", "leaked")
        assert done.stdout == f"{made['id']} (shop) is revoked\n"
        assert ask(lambda queue: check(queue, made["secret"])) is None
        assert told("tokens", "list") == []
        [last, *_] = ask(lambda queue: queue.store.audit("default", limit=10)).lines
        assert (last.change.verb, last.change.reason) == ("revoked", "leaked")
        assert last.change.actor.startswith("cli:")

    def test_tenants_and_the_service_have_each_their_own(self, run: Any, told: Any, ask: Any) -> None:
        service = run("tokens", "create", "root", "--scope", "admin", "--service").stdout.strip()
        run("tokens", "create", "shop", "--scope", "read", "--tenant", "shop")
        assert ask(lambda queue: check(queue, service)).tenant == ALL_TENANTS
        assert [token["name"] for token in told("tokens", "list", "--service")] == ["root"]
        assert [token["name"] for token in told("tokens", "list", "--tenant", "shop")] == ["shop"]
        assert told("tokens", "list") == []

    @pytest.mark.parametrize("verb", ["rotate", "revoke"])
    def test_one_that_is_not_there_is_3(self, run: Any, verb: str) -> None:
        done = run("tokens", verb, "tok_nonesuch")
        assert (done.exit_code, done.stdout) == (3, "")

    @pytest.mark.parametrize(
        "wrong",
        [
            ["shop"],
            ["shop", "--scope", "everything"],
            ["shop", "--scope", "read", "--expires-in", "soon"],
            ["shop", "--scope", "read", "--expires-in", "0"],
            ["shop", "--scope", "read", "--rate", "fast"],
            ["", "--scope", "read"],
        ],
        ids=json.dumps,
    )
    def test_wrong_usage_is_2_and_makes_none(self, run: Any, told: Any, wrong: list[str]) -> None:
        done = run("tokens", "create", *wrong)
        assert (done.exit_code, done.stdout) == (2, "")
        assert told("tokens", "list") == []
