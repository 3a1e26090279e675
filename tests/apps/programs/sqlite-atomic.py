"""SQLite without a journal: what sqlite-atomic runs. Arguments: the program syncline, the image, its mount, the number of transactions."""
import json, multiprocessing, os, random, signal, sqlite3, subprocess, sys, time

SYNCLINE, IMAGE, MOUNT, COUNT = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
ACCOUNTS, START = 100, 1000


def stats():
    return json.loads(subprocess.run([SYNCLINE, "stats", MOUNT, "--json"], check=True, stdout=subprocess.PIPE).stdout)


def figures():
    told = stats()
    return {"commits": told["files"]["atomic_commits"], "aborts": told["files"]["atomic_aborts"], "flushes": told["store"]["flushes_issued"],
            "created": told["files"]["created"], "spilled": told["files"]["atomic_spilled_bytes"]}


def since(before):
    return {name: value - before[name] for name, value in figures().items()}


def connect(name):
    connection = sqlite3.connect(os.path.join(MOUNT, name), timeout=60, isolation_level=None)
    connection.execute("pragma synchronous=full")
    return connection


def sound(connection):
    assert connection.execute("pragma integrity_check").fetchone()[0] == "ok"


def no_journal_and_one_flush():
    for mode in ("delete", "truncate", "persist"):
        connection = connect(f"{mode}.db")
        # The first transaction of an empty database takes a journal, which this mode removes.
        connection.execute("create table t(i integer primary key, s text)")
        assert connection.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
        before = figures()
        for number in range(COUNT):
            connection.execute("insert into t values(?, hex(randomblob(100)))", (number,))
        cost = since(before)
        assert cost["created"] == 0, f"{mode}: {cost['created']} files were made"
        assert cost["commits"] == COUNT, cost
        assert COUNT <= cost["flushes"] <= COUNT * 1.02 + 2, f"{mode}: {cost['flushes']} flushes for {COUNT} transactions"
        assert not os.path.exists(os.path.join(MOUNT, f"{mode}.db-journal"))
        sound(connection)
        print(f"{mode}: {cost['flushes'] / COUNT:.3f} flushes a transaction, no file made")


def savepoints_and_rollbacks():
    connection = connect("savepoints.db")
    connection.execute("create table t(i integer primary key, s blob)")
    connection.execute("begin")
    connection.execute("insert into t values(1, zeroblob(50000))")
    connection.execute("savepoint one")
    connection.execute("insert into t values(2, zeroblob(50000))")
    connection.execute("rollback to one")
    connection.execute("insert into t values(3, zeroblob(50000))")
    connection.execute("release one")
    connection.execute("commit")
    connection.execute("begin")
    connection.execute("delete from t")
    connection.execute("rollback")
    assert [row[0] for row in connection.execute("select i from t order by i")] == [1, 3]
    sound(connection)


def larger_than_memory():
    """More than an atomic write has in memory goes to the device before the commit, and needs no journal. More pages than the page cache of
    SQLite holds take one."""
    connection = connect("large.db")
    connection.execute("create table t(i integer primary key, s blob)")
    connection.execute("pragma cache_size=-200000")
    for rows in (30, 90):
        before = figures()
        connection.execute("begin")
        connection.executemany("insert into t(s) values(?)", [(random.randbytes(1 << 20),) for _ in range(rows)])
        connection.execute("commit")
        cost = since(before)
        assert (cost["commits"], cost["created"]) == (1, 0), f"{rows} MiB: {cost}"
        assert (cost["spilled"] > 0) == (rows > 64), f"{rows} MiB: {cost}"
        assert connection.execute("select count(*) from t").fetchone()[0] == rows
        sound(connection)
        connection.execute("delete from t")
        connection.execute("vacuum")
    connection.execute("pragma cache_size=10")
    connection.executemany("insert into t(s) values(?)", [(random.randbytes(20000),) for _ in range(50)])
    sound(connection)
    connection.close()
    os.unlink(os.path.join(MOUNT, "large.db"))


def move(connection, chance, writer, number):
    one, other = chance.sample(range(ACCOUNTS), 2)
    connection.execute("begin immediate")
    connection.execute("update account set money = money - 7 where id = ?", (one,))
    connection.execute("update account set money = money + 7 where id = ?", (other,))
    connection.execute("insert into done values(?, ?, randomblob(3000))", (writer, number))
    connection.execute("commit")


def write(writer, count, acknowledged):
    connection, chance = connect("bank.db"), random.Random(writer)
    for number in range(acknowledged.value, count):
        move(connection, chance, writer, number)
        acknowledged.value = number + 1


def read(stop, seen):
    connection = connect("bank.db")
    while not stop.is_set():
        total = connection.execute("select sum(money) from account").fetchone()[0]
        assert total == ACCOUNTS * START, f"a reader saw the sum {total}"
        seen.value += 1


def several_processes_of_which_one_is_killed():
    connection = connect("bank.db")
    connection.execute("create table account(id integer primary key, money integer)")
    connection.execute("create table done(writer integer, number integer, s blob, primary key(writer, number))")
    connection.executemany("insert into account values(?, ?)", [(number, START) for number in range(ACCOUNTS)])
    connection.close()
    stop, seen = multiprocessing.Event(), multiprocessing.Value("q", 0)
    told = [multiprocessing.Value("q", 0) for _ in range(3)]
    reader = multiprocessing.Process(target=read, args=(stop, seen))
    writers = [multiprocessing.Process(target=write, args=(number, COUNT // 4, told[number])) for number in range(2)]
    for process in [reader, *writers]:
        process.start()
    kills = 0
    while any(process.is_alive() for process in writers):
        victim = multiprocessing.Process(target=write, args=(2, 1 << 30, told[2]))
        victim.start()
        time.sleep(random.uniform(0.05, 0.3))
        victim.kill()
        victim.join()
        kills += 1
        # The number that it had not been told of may be there.
        connection = connect("bank.db")
        last = connection.execute("select coalesce(max(number), -1) from done where writer = 2").fetchone()[0]
        assert told[2].value - 1 <= last <= told[2].value, (told[2].value, last)
        told[2].value = last + 1
        connection.close()
    stop.set()
    reader.join()
    assert reader.exitcode == 0 and all(process.exitcode == 0 for process in writers), "a process found something wrong"
    connection = connect("bank.db")
    assert connection.execute("select sum(money) from account").fetchone()[0] == ACCOUNTS * START
    assert connection.execute("select count(*) from done where writer < 2").fetchone()[0] == 2 * (COUNT // 4)
    sound(connection)
    print(f"{kills} writers killed, {seen.value} sums read, {figures()['aborts']} aborts")


def killed_daemon():
    connection = connect("daemon.db")
    connection.execute("create table t(i integer primary key, s blob)")
    for number in range(50):
        connection.execute("insert into t values(?, randomblob(20000))", (number,))
    os.kill(stats()["daemon"]["pid"], signal.SIGKILL)
    time.sleep(0.3)
    subprocess.run(["umount", "-l", MOUNT], check=True)
    subprocess.run([SYNCLINE, "check", IMAGE], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([SYNCLINE, "mount", IMAGE, MOUNT, "-o", "atomic_writes"], check=True)
    connection = connect("daemon.db")
    assert connection.execute("select count(*) from t").fetchone()[0] == 50
    sound(connection)


def full_disk():
    connection = connect("full.db")
    connection.execute("create table t(i integer primary key, s blob)")
    filler = os.path.join(MOUNT, "filler")
    with open(filler, "wb") as file:
        try:
            while True:
                file.write(b"x" * (1 << 20))
        except OSError:
            pass
    told, refused = 0, None
    for _ in range(2000):
        try:
            connection.execute("insert into t(s) values(randomblob(200000))")
            told += 1
        except sqlite3.OperationalError as error:
            refused = error
            break
    assert refused is not None and "full" in str(refused), refused
    assert connection.execute("select count(*) from t").fetchone()[0] == told
    sound(connection)
    os.unlink(filler)
    time.sleep(0.5)
    connection.execute("insert into t(s) values(randomblob(200000))")
    assert connection.execute("select count(*) from t").fetchone()[0] == told + 1
    sound(connection)


options = [name for (name,) in sqlite3.connect(":memory:").execute("pragma compile_options")]
assert "ENABLE_BATCH_ATOMIC_WRITE" in options, "this is not the library that was built"
for step in (no_journal_and_one_flush, savepoints_and_rollbacks, larger_than_memory, several_processes_of_which_one_is_killed, killed_daemon, full_disk):
    began = time.monotonic()
    step()
    print(f"{step.__name__}: {time.monotonic() - began:.1f} s", flush=True)
