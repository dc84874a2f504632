"""A lake in a bucket: `s3://`, `gs://`, `abfss://`.

The manifest is replaced under a condition: only who names the version that is there may put another in its place. All
other objects are written once, under names that nobody else has.

Spark writes and reads the files by itself where its Hadoop knows the bucket. Where it does not, a folder of this machine
stands in for it: what Spark has written there is sent, and what it is to read is fetched. Files never change, so what was
once fetched stays right.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

from penstock.core.errors import InvalidInput, PenstockError
from penstock.lake.caching import cache_folder
from penstock.lake.folders import beneath, by_folder, is_data, parent, table_of

SCHEMES = {"s3": ("s3", "s3a"), "s3a": ("s3a", "s3"), "gs": ("gs",), "abfss": ("abfss",), "abfs": ("abfs",)}
"""What a bucket's URL begins with, and how Hadoop may call the same."""
AT_ONCE = 8
MOST_TRIES = 5
FIRST_PAUSE_SECONDS = 0.1

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class BucketUnfit(PenstockError):
    """The bucket's service puts objects in place of others though it was told not to. Use another service for the lake."""

    code = "lake_bucket_unfit"

    def __init__(self, place: str, found: str) -> None:
        super().__init__(
            f"the service behind {place} does not keep to conditions: {found}. Two drivers would both commit; keep the lake "
            "in a bucket of a service that does (Amazon S3, Google Cloud Storage, Azure), or on a disk",
            place=place,
            found=found,
        )


def _told(act: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Have a method raise what its storage's errors mean: that it is refused, gone, or not to be reached."""

    @wraps(act)
    def told(*given: Given.args, **options: Given.kwargs) -> Answer:
        from obstore.exceptions import BaseError

        from penstock.stores.log.backings.refusals import is_of_bucket, known_secrets, refusal

        try:
            return act(*given, **options)
        except (BaseError, FileNotFoundError) as error:
            if isinstance(error, FileNotFoundError) and not is_of_bucket(error):
                raise  # one file is missing, not the storage
            storage = given[0]
            assert isinstance(storage, ObjectStorage)
            raise refusal(f"the lake in {storage.path('')}", error, known_secrets()) from None

    return told


class ObjectStorage:
    """A bucket, or what is under a prefix of it: `abfss://container@account.dfs.core.windows.net/prefix` on Azure.

    Credentials and endpoint are the environment's: AWS_…, GOOGLE_… (GOOGLE_BASE_URL), AZURE_… (AZURE_STORAGE_ENDPOINT).
    """

    def __init__(self, url: str, mirror: Path | None = None) -> None:
        self._url = url.rstrip("/")
        scheme, _, rest = self._url.partition("://")
        self.roots: Sequence[str] = tuple(f"{one}://{rest}" for one in SCHEMES[scheme])
        self._mirror = (
            mirror or cache_folder() / f"lake-{hashlib.sha256(self._url.encode()).hexdigest()[:16]}"
        )
        self._process = os.getpid()
        self._store = self._opened(None)
        # What became of a request that got no answer is for us to find out: one sent twice would refuse itself.
        self._once = self._opened({"max_retries": 0})
        self._is_fit = False
        self._known: dict[str, Mapping[str, int]] = {}
        """Folder → its files and how large they are, which never changes once it was looked at."""

    # ── The manifest ──────────────────────────────────────────────────────────────────────────────

    @_told
    def swap(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        self._check_fitness()
        made: bytes | None = None
        pause = FIRST_PAUSE_SECONDS
        for left in reversed(range(MOST_TRIES)):
            found, version = self._versioned(name)
            if made is not None and found == made:
                return  # it was ours, and only the answer was lost
            made = change(found)
            try:
                obstore.put(self._once, name, made, mode=version or "create", use_multipart=False)
                return
            except (AlreadyExistsError, PreconditionError):
                if not left:
                    raise
            except BaseError:
                # Nobody knows: it may be there, or come yet. Then the next try is refused, and finds it.
                if not left:
                    raise
                time.sleep(pause)  # Google lets one object be written once a second
                pause *= 2

    @_told
    def read(self, name: str) -> bytes | None:
        return self._versioned(name)[0]

    @_told
    def version(self, name: str) -> object:
        import obstore

        try:
            found = obstore.head(self._here(), name)
        except FileNotFoundError:
            return None  # or the bucket is not there: an answer to HEAD does not tell
        return found.get("e_tag"), found.get("version"), found["last_modified"]

    def _versioned(self, name: str) -> tuple[bytes | None, Any]:
        import obstore

        from penstock.stores.log.backings.refusals import is_of_bucket

        try:
            found = obstore.get(self._here(), name)
        except FileNotFoundError as error:
            if is_of_bucket(error):
                raise  # that says nothing about the object
            return None, None
        return bytes(found.bytes()), _version(found.meta)

    def _check_fitness(self) -> None:
        """Refuse a service that does not refuse: many that speak S3 take a condition for an ornament."""
        if self._is_fit:
            return
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        name = f"probe-{uuid4().hex}"
        first = obstore.put(self._here(), name, b"0", use_multipart=False)
        try:
            obstore.put(self._here(), name, b"1", use_multipart=False)
            # A version that was there: one that is made up is not even sent to Google, whose are numbers.
            tries: tuple[tuple[Any, str], ...] = (
                ("create", "an object that was there was created"),
                (_version(first), "another version than the one named was replaced"),
            )
            for mode, said in tries:
                try:
                    obstore.put(self._once, name, b"2", mode=mode, use_multipart=False)
                except (AlreadyExistsError, PreconditionError):
                    continue
                raise BucketUnfit(self._url, said)
        finally:
            self._delete([name])
        self._is_fit = True

    # ── Folders ───────────────────────────────────────────────────────────────────────────────────

    @_told
    def folders(self, name: str) -> list[str]:
        import obstore

        found = obstore.list_with_delimiter(self._here(), f"{name}/")
        return sorted(str(one).rstrip("/").rpartition("/")[2] for one in found["common_prefixes"])

    @_told
    def files(self, name: str) -> list[str]:
        return sorted(path for path, _, _ in self._listed(name) if is_data(path) and parent(path) == name)

    @_told
    def filled(self, folders: Iterable[str]) -> set[str]:
        asked: dict[str, set[str]] = defaultdict(set)
        for folder in folders:
            asked[table_of(folder)].add(folder)

        def look(some: set[str]) -> set[str]:
            within = os.path.commonpath(some)
            return some & {parent(path) for path, _, _ in self._listed(within) if is_data(path)}

        # Table by table: to ask for each of some hundreds would take longer than the run, and to list all the lake as well.
        return set[str]().union(*self._each(look, list(asked.values())))

    @_told
    def beneath(self, name: str) -> Iterable[tuple[str, datetime]]:
        return [(path, when) for path, _, when in self._listed(name)]

    @_told
    def remove(self, name: str) -> None:
        self._delete([path for path, _, _ in self._listed(name)])
        self._forget(name)

    def tidy(self, kept: Iterable[str], before: datetime) -> None:
        wanted = set(kept)
        for folder, when in by_folder(beneath(self._mirror, "")).items():
            if folder not in wanted and when <= before:
                self._forget(folder)

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        shutil.rmtree(self._mirror / name, ignore_errors=True)

    def _delete(self, paths: Sequence[str]) -> None:
        import obstore

        try:
            if paths:
                obstore.delete(self._here(), paths)
        except FileNotFoundError:
            # Of S3 alone one may ask that again. Another is at it, or only the answer was lost.
            for path in paths:
                with suppress(FileNotFoundError):
                    obstore.delete(self._store, path)

    def path(self, name: str) -> str:
        return f"{self._url}/{name}" if name else self._url

    def _listed(self, name: str) -> Iterator[tuple[str, int, datetime]]:
        import obstore

        for some in obstore.list(self._here(), f"{name}/" if name else None):
            for one in some:
                yield one["path"], one["size"], one["last_modified"]

    # ── By way of this machine ────────────────────────────────────────────────────────────────────

    def entries(self) -> list[str]:
        return []  # below a prefix there is only what was put there

    def draft(self, name: str) -> str:
        return str(self._mirror / name)

    @_told
    def sync(self, name: str) -> None:
        import obstore

        store, folder = self._here(), self._mirror / name
        files = [file for file in folder.rglob("*.parquet") if is_data(file.name)]
        self._each(lambda file: obstore.put(store, file.relative_to(self._mirror).as_posix(), file), files)

    @_told
    def fetched(self, folders: Sequence[str]) -> list[str]:
        unknown = [folder for folder in folders if folder not in self._known]
        for folder, files in zip(unknown, self._each(self._files_of, unknown), strict=True):
            if files:  # what holds nothing may be on its way
                self._known[folder] = files
        # What was here may have gone since: it lies where people and their programs clear up.
        missing = [
            path
            for folder in folders
            for path, size in self._known.get(folder, {}).items()
            if _size(self._mirror / path) != size
        ]
        self._each(self._fetch, missing)
        return [str(self._mirror / folder) for folder in folders]

    def _files_of(self, folder: str) -> Mapping[str, int]:
        return {path: size for path, size, _ in self._listed(folder) if is_data(path)}

    def _fetch(self, path: str) -> None:
        import obstore

        target = self._mirror / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{uuid4().hex}")
        with draft.open("wb") as file:
            for chunk in obstore.get(self._store, path):
                file.write(chunk)
        draft.replace(target)

    def _each(self, act: Callable[[Any], Answer], many: Sequence[Any]) -> list[Answer]:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(act, many))

    # ── The client ────────────────────────────────────────────────────────────────────────────────

    def _opened(self, retry: Any) -> Any:
        try:
            from obstore.store import from_url
        except ModuleNotFoundError:
            raise InvalidInput(
                "lake", 'be a path, unless pip install "penstock[object]" was run', self._url
            ) from None
        from obstore.exceptions import BaseError

        from penstock.stores.log.backings.refusals import known_secrets, shown
        from penstock.stores.log.errors import StorageRefused

        try:
            return from_url(self._url, retry_config=retry)
        except BaseError as error:  # of an account that is not named, a key file that is none
            raise StorageRefused(f"the lake in {self._url}", shown(str(error), known_secrets())) from None

    def _here(self) -> Any:
        """The client. It has threads of its own, which a forked process does not inherit: there it would hang."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"the lake in {self._url} was opened before this process was forked; open it anew"
            )
        return self._store


def _version(told: Any) -> dict[str, Any]:
    """What a service compares. A None among it would be refused."""
    return {key: told[key] for key in ("e_tag", "version") if told.get(key) is not None}


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
