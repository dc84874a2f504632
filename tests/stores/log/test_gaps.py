"""A number that was taken and is gone: nobody fills it, nobody answers beyond it, and what is known stays readable."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from penstock.core.commands import Filter
from penstock.core.job import NewJob
from penstock.queue import Queue
from penstock.stores.log.backings import Found, numbered
from penstock.stores.log.backings.memory import MemoryObjects
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.backings.packed import Evidence, Marks, filler, pack
from penstock.stores.log.compacting import compactor
from penstock.stores.log.errors import LogCorrupt, LogGap, OutcomeUnknown, StorageGone, Truncated
from penstock.stores.log.log import Source
from penstock.stores.log.snapshots import Snapshots
from penstock.stores.log.state import Parts, State
from penstock.stores.log.store import LogStore
from penstock.stores.wakeups.memory import MemoryWakeups

SHARD = "s00"


def key(number: int) -> str:
    return f"{SHARD}/log/{number:020d}"


class Bucket:
    """Objects, and machines that have a tape each; their clocks show what they are set to."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.seconds = 0.0

    def tape(self, make: Callable[..., ObjectTape] = ObjectTape) -> ObjectTape:
        return make(self.objects, SHARD, clocks=lambda: (self.seconds,))

    async def filled(self, entries: int) -> ObjectTape:
        tape = self.tape()
        for number in range(1, entries + 1):
            assert await tape.append(b"%d" % number) == number
        return tape

    async def remove(self, *numbers: int) -> None:
        await self.objects.delete([key(number) for number in numbers])

    async def numbers(self) -> list[int]:
        return [int(found.key[-20:]) for found in await self.objects.list(f"{SHARD}/log")]

    async def publish(self, watermark: int, snapshot: int) -> None:
        manifest = msgspec.json.encode({"watermark": watermark, "snapshot": {"number": snapshot}})
        held = await self.objects.read(f"{SHARD}/manifest")
        await self.objects.replace(f"{SHARD}/manifest", manifest, held and held[1])

    def store(self) -> LogStore:
        """A process on the log, with snapshots."""

        async def load(wakeups: MemoryWakeups) -> State:
            parts = Parts()
            await Snapshots(self.objects, SHARD).load(parts)
            return State(parts, wakeups)

        async def leave_open() -> None:
            pass

        async def open() -> Source:
            return Source(self.tape(), self.objects.now, load, leave_open)

        return LogStore(open)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


class WithoutEvidence(ObjectTape):
    """Takes whatever is absent for a hole, as a log does whose entries say nothing of others."""

    async def _check_not_removed(self, number: int) -> None:
        pass


async def is_gap(tape: ObjectTape, missing: int, present: int) -> None:
    for attempt in (lambda: tape.read(missing - 1), tape.last, lambda: tape.append(b"more")):
        with pytest.raises(LogGap, match=f"no entry {missing}, though it has {present};") as raised:
            await attempt()
        assert (raised.value.facts["missing"], raised.value.facts["present"]) == (missing, present)


class TestWhoComesAnew:
    @pytest.mark.parametrize("removed", [[1], [5], [2, 3, 4], [5, 7], [1, 2, 3, 4, 5, 6, 7, 8]])
    async def test_reports_it_writes_nothing_and_goes_on_when_it_is_back(
        self, bucket: Bucket, removed: list[int]
    ) -> None:
        await bucket.filled(9)
        copies = [(n, await bucket.objects.get(key(n))) for n in removed]
        await bucket.remove(*removed)
        left, tape = await bucket.numbers(), bucket.tape()
        await is_gap(tape, removed[0], 9)
        assert await bucket.numbers() == left
        for number, data in copies:
            await bucket.objects.create(key(number), data or b"")
        assert await tape.append(b"10") == 10
        assert [data for _, data in await tape.read(0)] == [b"%d" % n for n in range(1, 11)]

    async def test_would_fill_it_without_the_evidence(self, bucket: Bucket) -> None:
        await bucket.filled(9)
        await bucket.remove(5)
        assert await bucket.tape(WithoutEvidence).append(b"10") == 10
        assert await bucket.objects.get(key(5)) == filler(5), (
            "an acknowledged entry is lost, and nobody knows"
        )

    async def test_below_the_snapshot_needs_it_not(self, bucket: Bucket) -> None:
        await bucket.filled(9)
        await bucket.publish(0, 7)
        await bucket.remove(5)
        tape = bucket.tape()
        assert await tape.append(b"10") == 10
        assert len(await tape.read(7)) == 3
        with pytest.raises(Truncated, match="begins at 8"):
            await tape.read(3)

    async def test_fills_what_a_writer_left_that_was_killed(self, bucket: Bucket) -> None:
        await bucket.filled(3)
        await bucket.objects.create(key(6), pack(b"stranger", 1, b"six", Marks(3)))
        tape = bucket.tape()
        assert await tape.append(b"seven") == 7
        assert await tape.read(3) == [(4, b""), (5, b""), (6, b"six"), (7, b"seven")]

    async def test_does_not_take_it_for_a_gap_that_the_watermark_moved_meanwhile(self) -> None:
        place = Bucket()

        class Moving(MemoryObjects):
            moves = False

            async def list(self, prefix: str, *, after: str = "", most: int | None = None) -> list[Found]:
                found = await super().list(prefix, after=after, most=most)
                if self.moves:
                    self.moves = False
                    await place.publish(4, 6)
                    await place.remove(1, 2, 3, 4)
                return found

        objects = Moving()
        place.objects = objects
        await place.filled(9)
        await place.remove(1, 2)  # as far as a compactor has come that has published nothing yet
        objects.moves = True
        tape = place.tape()
        assert await tape.last() == 9
        assert await tape.append(b"10") == 10


class TestWhoFollows:
    async def test_has_read_past_it_and_goes_on(self, bucket: Bucket) -> None:
        writer = await bucket.filled(9)
        await bucket.remove(5)
        assert await writer.append(b"10") == 10
        assert await writer.read(9) == [(10, b"10")]

    async def test_stands_before_it_and_stops(self, bucket: Bucket) -> None:
        reader = bucket.tape()
        await bucket.filled(3)
        assert len(await reader.read(0)) == 3
        writer = bucket.tape()
        for number in range(4, 10):
            await writer.append(b"%d" % number)
        await bucket.remove(4)
        bucket.seconds += numbered.LOOK_ABOVE_SECONDS + 1
        await is_gap(reader, 4, 9)

    async def test_looks_before_it_writes_if_it_has_not_for_long(self, bucket: Bucket) -> None:
        producer = await bucket.filled(3)
        other = bucket.tape()
        for number in range(4, 8):
            await other.append(b"%d" % number)
        await bucket.remove(4)
        bucket.seconds += numbered.LOOK_ABOVE_SECONDS + 1
        with pytest.raises(LogGap, match="no entry 4, though it has 7"):
            await producer.append(b"mine")
        assert await bucket.objects.get(key(4)) is None

    async def test_is_sent_to_a_snapshot_that_has_it(self, bucket: Bucket) -> None:
        """One of more than a process has read: those entries were there, and nothing is lost."""
        reader = await bucket.filled(3)
        other = bucket.tape()
        for number in range(4, 8):
            await other.append(b"%d" % number)
        await bucket.remove(4, 5, 6, 7)
        await bucket.publish(2, 7)
        bucket.seconds += numbered.RETENTION_SECONDS  # it asks for the manifest again
        with pytest.raises(Truncated, match="begins at 8"):
            await reader.read(3)
        assert await reader.append(b"8") == 8

    async def test_is_cut_off_rather_than_at_a_gap_if_that_was_due(self, bucket: Bucket) -> None:
        reader = await bucket.filled(3)
        other = bucket.tape()
        for number in range(4, 8):
            await other.append(b"%d" % number)
        await bucket.publish(5, 7)
        await bucket.remove(1, 2, 3, 4, 5)
        bucket.seconds += numbered.LOOK_ABOVE_SECONDS + 1
        with pytest.raises(Truncated, match="begins at 8"):
            await reader.read(3)

    async def test_sees_an_entry_in_the_place_of_another(self, bucket: Bucket) -> None:
        """Nothing tells who comes anew that the newest were removed; those who had them see it at the next entry."""
        writer = await bucket.filled(5)
        await bucket.remove(4, 5)
        assert await bucket.tape().append(b"other") == 4
        assert await writer.append(b"six") == 6
        with pytest.raises(LogGap, match="no entry 5, though it has 6"):
            await bucket.tape().read(0)

    async def test_sees_it_too_when_others_have_filled_all_it_had(self, bucket: Bucket) -> None:
        writer = await bucket.filled(5)
        await bucket.remove(4, 5)
        other = bucket.tape()
        for number in (4, 5, 6):
            assert await other.append(b"other") == number
        with pytest.raises(
            LogCorrupt, match="0005: it, or one right before it, is not what entry 6 was written behind"
        ):
            await writer.read(5)

    async def test_would_not_see_that_without_the_marks(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Evidence, "contradicts", lambda self, entry: False)
        writer = await bucket.filled(5)
        await bucket.remove(4, 5)
        other = bucket.tape()
        for _ in (4, 5, 6):
            await other.append(b"other")
        assert await writer.read(5) == [(6, b"other")], "two processes now hold two logs"

    async def test_removed_while_it_was_writing_above_leaves_that_open(self, bucket: Bucket) -> None:
        class Removing(MemoryObjects):
            async def create(self, key_: str, data: bytes) -> bool:
                won = await super().create(key_, data)
                if key_ == key(9):
                    await self.delete([key(7)])
                return won

        bucket.objects = Removing()
        tape = await bucket.filled(6)
        other = bucket.tape()
        assert await other.append(b"7") == 7
        await bucket.objects.create(key(8), pack(b"stranger", 1, b"8", Marks(7)))
        tape._highest = 8  # as one who has lost 7 and 8 and not read them yet
        with pytest.raises(OutcomeUnknown, match="no entry 7, though it has 8"):
            await tape.append(b"9")
        assert await bucket.numbers() == [1, 2, 3, 4, 5, 6, 8, 9], "nobody filled it"
        with pytest.raises(LogGap, match="no entry 7"):
            await tape.append(b"10")
        assert await bucket.numbers() == [1, 2, 3, 4, 5, 6, 8, 9]


class TestAPlaceThatWasEmptied:
    """What is written behind entries that are gone nobody reads who comes anew: it would be lost with who wrote it."""

    @pytest.mark.parametrize("entries", [1, 20])
    @pytest.mark.parametrize("looks", [True, False])
    async def test_is_told_and_not_gone_on_with(self, bucket: Bucket, entries: int, looks: bool) -> None:
        tape = await bucket.filled(entries)
        await bucket.remove(*range(1, entries + 1))
        bucket.seconds += numbered.LOOK_ABOVE_SECONDS + 1
        for _ in range(2):
            with pytest.raises(StorageGone, match=f"its entries up to {entries} have been removed"):
                await (tape.read(entries) if looks else tape.append(b"lost"))
        assert await bucket.numbers() == []

    async def test_is_told_to_a_writer_that_never_rests(self, bucket: Bucket) -> None:
        tape = await bucket.filled(20)

        async def go_on() -> None:
            for _ in range(1000):
                await bucket.remove(*await bucket.numbers())
                bucket.seconds += 1
                await tape.append(b"lost")

        with pytest.raises(StorageGone):
            await go_on()

    async def test_is_gone_on_with_when_it_is_back(self, bucket: Bucket) -> None:
        tape = await bucket.filled(3)
        kept = {key(number): await bucket.objects.get(key(number)) for number in range(1, 4)}
        await bucket.remove(1, 2, 3)
        bucket.seconds += numbered.LOOK_ABOVE_SECONDS + 1
        with pytest.raises(StorageGone):
            await tape.last()
        for name, data in kept.items():
            await bucket.objects.create(name, data or b"")
        assert await tape.append(b"4") == 4

    async def test_is_none_if_a_snapshot_has_all_of_it(self, bucket: Bucket) -> None:
        tape = await bucket.filled(20)
        await bucket.publish(20, 20)
        await bucket.remove(*range(1, 21))
        bucket.seconds += numbered.LOOK_ABOVE_SECONDS + 1
        assert await tape.append(b"21") == 21


class TestAManifestThatWasLost:
    @pytest.mark.parametrize("older", [0, 3])
    async def test_is_told_though_all_entries_were_due_to_go(self, bucket: Bucket, older: int) -> None:
        """As in a queue at rest for longer than entries stay: with none left, the log would be begun anew."""
        tape = await bucket.filled(9)
        await bucket.publish(9, 9)
        await tape.truncate(9)
        assert await bucket.numbers() == [9]
        await bucket.publish(older, older)
        with pytest.raises(LogGap, match=f"no entry {older + 1}, though it has 9"):
            await bucket.tape().append(b"10")

    async def test_does_not_matter_if_the_older_one_is_only_one_entry_behind(self, bucket: Bucket) -> None:
        tape = await bucket.filled(9)
        await bucket.publish(9, 9)
        await tape.truncate(9)
        await bucket.publish(8, 8)
        assert await bucket.tape().read(8) == [(9, b"9")]


class TestTheStore:
    async def _enqueue(self, store: LogStore, jobs: int) -> list[str]:
        return [(await Queue(store).enqueue("a")).id for _ in range(jobs)]

    async def test_of_a_process_that_had_it_answers_and_that_of_a_new_one_refuses(
        self, bucket: Bucket
    ) -> None:
        old = bucket.store()
        ids = await self._enqueue(old, 6)
        await bucket.remove(3)
        page = await old.find("default", Filter(), after=None, limit=10)
        assert {job.id for job in page.jobs} == set(ids)
        assert (await Queue(old).get(ids[2])).id == ids[2]
        new = bucket.store()
        for _ in range(2):
            with pytest.raises(LogGap, match="no entry 3, though it has 6"):
                await new.queues("default")
            with pytest.raises(LogGap, match="no entry 3"):
                await new.enqueue("default", [NewJob(ids[0], "a")])  # type: ignore[arg-type]
        assert await bucket.numbers() == [1, 2, 4, 5, 6]

    async def test_is_whole_again_with_a_snapshot_of_who_had_it(self, bucket: Bucket) -> None:
        """The compactor had read it. Its snapshot has what the entry did."""
        old, behind = bucket.store(), bucket.store()
        ids = await self._enqueue(old, 2)
        assert len(await behind.queues("default")) == 1
        ids += await self._enqueue(old, 4)
        compacting = compactor(bucket.tape(), bucket.objects, SHARD)
        await compacting.follow()
        await bucket.remove(3)
        bucket.seconds += numbered.LOOK_ABOVE_SECONDS + 1
        with pytest.raises(LogGap, match="no entry 3"):
            await behind.queues("default")
        assert (await compacting.compact()).number == 6
        for store in (behind, bucket.store()):
            page = await store.find("default", Filter(), after=None, limit=10)
            assert {job.id for job in page.jobs} == set(ids)
        ids += await self._enqueue(behind, 1)
        assert (await Queue(old).get(ids[-1])).id == ids[-1]

    async def test_is_not_compacted_by_one_who_comes_anew(self, bucket: Bucket) -> None:
        await self._enqueue(bucket.store(), 6)
        await bucket.remove(3)
        with pytest.raises(LogGap, match="no entry 3"):
            await compactor(bucket.tape(), bucket.objects, SHARD).compact()
        assert await bucket.objects.get(f"{SHARD}/manifest") is None
        assert await bucket.numbers() == [1, 2, 4, 5, 6]


class TestLayout:
    async def test_of_before_the_first_release_is_refused_and_not_guessed(self, bucket: Bucket) -> None:
        """Format 1 had a shorter head."""
        await bucket.objects.create(key(1), b"PSE\x01" + bytes(8) + bytes(8) + bytes(4) + b"data")
        tape = bucket.tape()
        with pytest.raises(LogCorrupt, match="in format 1, which no released version wrote"):
            await tape.read(0)
        with pytest.raises(LogCorrupt, match="in format 1"):
            await bucket.store().queues("default")
