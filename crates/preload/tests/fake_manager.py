#!/usr/bin/env python3
"""A manager process for testing the preload library: it answers the whole protocol without paging.

    fake_manager.py --library SO [--log JSON] [--fault] [--die-after N] -- PROGRAM ARGS…

Files named *.dat get an active slot, *.raw a slot that never becomes active; all others pass
through. The content of a mapped file lives in one memfd, filled when the file is first mapped, so
that shared mappings are coherent without userfaultfd being read. With --fault, mappings are
registered and each page is brought in by a fault, in forked children too. Every request is checked; what
is wrong is printed and makes the exit code 99. The log has a count of every operation.
"""
import argparse, array, collections, errno, fcntl, json, mmap, os, pathlib, re, secrets, select
import socket, struct, subprocess, sys, threading

REQUEST, REPLY = struct.Struct("=IIQQQQQQ"), struct.Struct("=iIQQQQ")
OPS = ("hello userfault probe opened - map_prepare map_commit protect sync flush read "
       "change_begin change_end advise exec note raw_word refresh "
       "heap_map heap_commit heap_grow fork inherit make_room overwrites frames "
       "take_over userfault_device open_pages heap_give_back await_dead leash").split()
HAS_TEXT, NO_REPLY = {"exec", "note"}, {"note"}
FULL, PAGE = 2**64 - 1, 4096
SLOTS, SLOT_BYTES = 4096, 32
EACCES, EPERM = 13, 1
MAP_TYPE, MAP_SHARED = 0xf, 1
WIRE = pathlib.Path(__file__).resolve().parents[2] / "wire/src/lib.rs"
VERSION = int(re.search(r"pub const VERSION: u32 = (\d+);", WIRE.read_text())[1])

parser = argparse.ArgumentParser()
parser.add_argument("--library", required=True)
parser.add_argument("--log")
parser.add_argument("--die-after", type=int, default=0, help="stop answering, as a dead manager, after this many requests")
parser.add_argument("--fault", action="store_true", help="serve mappings by userfaultfd")
parser.add_argument("--under", help="files in this directory are active too")
parser.add_argument("--refuse", choices=OPS, help="answer this operation with ENOMEM")
parser.add_argument("command", nargs="+")
args = parser.parse_args()

lock = threading.RLock()
ended = threading.Condition(lock)
counts, problems, executed, notes = collections.Counter(), [], [], []
slots, by_file = [], {}
tickets, next_ticket = {}, [1]
mappings = []            # (pid, address, length, slot)
words = []
table_fd = os.memfd_create("slots")
os.ftruncate(table_fd, SLOTS * SLOT_BYTES)
table = mmap.mmap(table_fd, SLOTS * SLOT_BYTES)
probe_fd = os.memfd_create("probe")
os.ftruncate(probe_fd, PAGE)


class Slot:
    def __init__(self, index, path, fd):
        self.index, self.path = index, path
        # Reopened: a lock on the program's open file description must not be kept by us.
        try:
            self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        except OSError:
            self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        self.memfd = None

    def size(self):
        return os.fstat(self.fd).st_size

    def fit(self):
        if self.memfd is None:
            self.memfd = os.memfd_create(os.path.basename(self.path))
            self.pull(0, self.size())
        have, want = os.fstat(self.memfd).st_size, -(-self.size() // PAGE) * PAGE
        if have < want:
            os.ftruncate(self.memfd, want)

    def pull(self, offset, length):
        """From the file into the memfd."""
        end = min(offset + length, self.size())
        want = -(-self.size() // PAGE) * PAGE
        if os.fstat(self.memfd).st_size < want:
            os.ftruncate(self.memfd, want)
        while offset < end:
            data = os.pread(self.fd, min(1 << 20, end - offset), offset)
            if not data:
                break
            offset += os.pwrite(self.memfd, data, offset)

    def push(self):
        """From the memfd into the file, if it differs: nothing else may be written there."""
        if self.memfd is None:
            return
        size, offset = self.size(), 0
        while offset < size:
            data = os.pread(self.memfd, min(1 << 20, size - offset), offset)
            if not data:
                break
            if os.pread(self.fd, len(data), offset) != data:
                os.pwrite(self.fd, data, offset)
            offset += len(data)


def problem(text):
    problems.append(text)
    print("fake manager:", text, file=sys.stderr, flush=True)


def extent(slot, offset, length):
    first = slot.size() if offset == FULL else offset
    return first, FULL if offset == FULL or length == FULL else first + length


def memory(pid, write=False):
    return os.open(f"/proc/{pid}/mem", os.O_RDWR if write else os.O_RDONLY)


def give(pid, slot, offset, length, address):
    """Copies content into a process: a status and the bytes."""
    length = min(length, max(0, slot.size() - offset), 300_000)
    data = b""
    if length:
        data = os.pread(slot.fd if slot.memfd is None else slot.memfd, length, offset)
    target = memory(pid, True)
    try:
        return 0, os.pwrite(target, data, address) if data else 0
    except (OSError, OverflowError):
        return -14, 0
    finally:
        os.close(target)


def answer(pid, op, a, b, c, d, e, f, text, fd, who):
    """The reply's (status, r0, r1, descriptor), and r2 if it is not 0."""
    if op == "hello":
        secret = SECRET.to_bytes(16, "big")
        want = (VERSION, int.from_bytes(secret[:8], "big"), int.from_bytes(secret[8:], "big"))
        if (a, b, c) != want:
            problem("hello: wrong version or secret")
            return -EPERM, 0, 0, -1
        counts["hello_forked"] += e
        if not os.path.exists(f"/proc/{pid}/task/{d}"):
            problem(f"hello: thread {d} is not of process {pid}")
        return 0, SLOTS, 0, table_fd
    if op == "probe":
        return 0, 0, 0, probe_fd
    if op == "userfault":
        if fd is None or "userfaultfd" not in os.readlink(f"/proc/self/fd/{fd}"):
            problem("userfault: no userfaultfd came along")
        if a % PAGE or not a or not b:
            problem("userfault: bad probe page or features")
        words.append(fd)
        if args.fault:
            userfaults[pid] = fd
            probes[fd] = a
            register(fd, a, PAGE)
            threading.Thread(target=serve_faults, args=(fd, a), daemon=True).start()
        return 0, 0, 0, -1
    if op == "leash":
        leashes[pid] = socket.socketpair()
        return 0, 0, 0, leashes[pid][0].fileno()
    if op == "raw_word":
        word = os.memfd_create("word")
        os.ftruncate(word, PAGE)
        words.append(word)
        counts["words"] += 1
        raw_words.append(mmap.mmap(word, PAGE))
        return 0, 0, 0, word
    if op == "opened":
        if fd is None:
            problem("opened: no descriptor came along")
            return -EPERM, 0, 0, -1
        status = os.fstat(fd)
        path = os.readlink(f"/proc/self/fd/{fd}")
        name = path.removesuffix(" (deleted)")
        key = (status.st_dev, status.st_ino)
        try:
            inside = bool(args.under) and name.startswith(os.path.join(args.under, ""))
            if not inside and not name.endswith((".dat", ".raw")):
                return 0, 0, 0, -1
            if key not in by_file:
                by_file[key] = len(slots)
                slots.append(Slot(len(slots), path, fd))
                if inside or name.endswith(".dat"):
                    table[by_file[key] * SLOT_BYTES] = 1
            slot = by_file[key]
            if not d or not table[slot * SLOT_BYTES]:
                return 0, slot + 1, 0, -1
            status, done = give(pid, slots[slot], c, d, e)
            return 0, slot + 1, 0, -1, 0 if status else done + 1
        finally:
            os.close(fd)
    if op in ("make_room", "overwrites", "await_dead"):
        return 0, 0, 0, -1
    if op in ("protect", "sync", "advise"):
        mine = [m for m in mappings if m[1] < a + b and a < m[1] + m[2]]
        if op == "sync":
            for m in mine:
                slots[m[3]].push()
        if op == "protect" and c & 2 and any(m[4] for m in mine if m[0] == pid):
            return -EACCES, 0, 0, -1
        return 0, int(op == "advise" and bool(mine)), 0, -1
    if op == "exec":
        executed.append(text.decode())
        return 0, 0, 0, -1
    if op == "note":
        notes.append(text.decode())
        return 0, 0, 0, -1
    if op == "flush" and a == FULL:
        for slot in slots:
            slot.push()
        return 0, 0, 0, -1
    if a >= len(slots):
        problem(f"{op}: no slot {a}")
        return -EPERM, 0, 0, -1
    slot = slots[a]
    if op == "refresh":
        pass
    elif op == "flush":
        slot.push()
    elif op == "map_prepare":
        if not table[a * SLOT_BYTES]:
            return 0, 0, 0, -1
        slot.fit()
        return 0, 1, 1 if e & MAP_TYPE in (1, 3) else 2, slot.memfd
    elif op == "map_commit":
        if d % PAGE:
            problem("map_commit: address is not of a page")
        with open(f"/proc/{pid}/maps") as maps:
            line = next((l for l in maps if l.startswith(f"{d:x}-") or
                         int(l.split("-")[0], 16) <= d < int(l.split("-")[1].split()[0], 16)), "")
        if "memfd:" not in line or " ---" not in line:
            problem(f"map_commit: not mapped without access: {line}")
        mappings.append((pid, d, -(-c // PAGE) * PAGE, a, False))
        if args.fault:
            if pid not in userfaults:
                problem(f"map_commit: whose memory is it? {pid} never told")
                return -EPERM, 0, 0, -1
            register(userfaults[pid], d, -(-c // PAGE) * PAGE)
    elif op == "read":
        if not table[a * SLOT_BYTES]:
            problem("read: slot is not active")
        status, done = give(pid, slot, b, c, d)
        return status, done, 0, -1
    elif op == "change_begin":
        if not table[a * SLOT_BYTES]:
            problem("change_begin: slot is not active")
        first, last = extent(slot, b, c)
        ended.wait_for(lambda: not any(t[0] == a and t[6] < last and first < t[7]
                                       for t in tickets.values()))
        ticket = next_ticket[0]
        next_ticket[0] += 1
        managed = d != 0 and any(m[1] < d + c and d < m[1] + m[2] for m in mappings)
        tickets[ticket] = (a, b, c, d, e, who, *extent(slot, b, c))
        if e == 2:
            slot.push()
        return 0, ticket, int(managed), -1
    elif op == "change_end":
        begun = tickets.pop(b, None)
        if begun is None or begun[0] != a:
            problem(f"change_end: ticket {b} is not open")
            return -EPERM, 0, 0, -1
        _, start, length, buffer, kind, *_ = begun
        ended.notify_all()
        if kind == 0 and start != FULL and d and not (start <= c and c + d <= start + length):
            problem("change_end: outside of what was announced")
        if slot.memfd is not None and d:
            if kind == 1:
                size = slot.size()
                os.ftruncate(slot.memfd, size)
                os.ftruncate(slot.memfd, -(-size // PAGE) * PAGE)
            elif e:
                source = memory(pid)
                data = os.pread(source, d, e)
                os.close(source)
                if os.pread(slot.fd, d, c) != data:
                    problem("change_end: the bytes named are not the bytes written")
                slot.fit()
                os.pwrite(slot.memfd, data, c)
            else:
                slot.fit()
                slot.pull(c, min(d, max(0, slot.size() - c)))
    else:
        problem(f"unexpected {op}")
    return 0, 0, 0, -1


userfaults, probes, leashes = {}, {}, {}


def register(fd, address, length):
    fcntl.ioctl(fd, 0xc020aa00, struct.pack("=QQQQ", address, length, 1 | 4, 0))


def resolve(fd, address, missing):
    """Brings one page in: zeros where the memfd has a hole, else what it has."""
    address &= -PAGE
    while True:
        try:
            fcntl.ioctl(fd, 0xc020aa04 if missing else 0xc020aa07,
                        struct.pack("=QQQQ", address, PAGE, 0, 0))
            return
        except OSError as error:
            if error.errno == errno.EEXIST:
                fcntl.ioctl(fd, 0x8010aa02, struct.pack("=QQ", address, PAGE))
                return
            if error.errno in (errno.ESRCH, errno.ENOENT):
                return
            if error.errno != errno.EAGAIN:
                problem(f"fault at {address:x}: {error!r}")
                return


def serve_faults(fd, probe):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while True:
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll()):
            return
        try:
            data = os.read(fd, 32)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                continue
            return
        if not data:
            return
        event, = struct.unpack("=B", data[:1])
        if event == 0x12:
            kind, address, thread = struct.unpack("=QQI", data[8:28])
            counts["faults"] += 1
            if address & -PAGE == probe and thread:
                status = open(f"/proc/{thread}/status").read()
                process = int(status.split("Tgid:")[1].split()[0])
                userfaults[process] = fd
            resolve(fd, address, not kind & 4)
        elif event == 0x13:
            child = struct.unpack("=I", data[8:12])[0]
            counts["forks"] += 1
            threading.Thread(target=serve_faults, args=(child, probe), daemon=True).start()


def serve(connection):
    pid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    greeted = False
    with connection:
        while True:
            try:
                data, control, _, _ = connection.recvmsg(2048, 64, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                break
            if not data:
                break
            fd = None
            for level, kind, payload in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fd = array.array("i", payload[:4])[0]
            number, reserved, *arguments = REQUEST.unpack(data[:REQUEST.size])
            op, text = OPS[number - 1], data[REQUEST.size:]
            with lock:
                counts[op] += 1
                if args.die_after and sum(counts.values()) > args.die_after:
                    die()
                    return
                if not greeted and op != "hello" or reserved:
                    problem(f"{op}: before hello, or reserved is not zero")
                greeted = True
                if text and (op not in HAS_TEXT or arguments[0] != len(text)):
                    problem(f"{op}: unexpected text")
                try:
                    refused = op == args.refuse
                    status, r0, r1, along, *r2 = (-12, 0, 0, -1) if refused else answer(
                        pid, op, *arguments, text, fd, connection)
                except Exception as error:
                    import traceback
                    traceback.print_exc()
                    problem(f"{op}: {error!r}")
                    status, r0, r1, along, *r2 = -5, 0, 0, -1
                if op not in NO_REPLY:
                    reply = REPLY.pack(status, 0, r0, r1, *(r2 or [0]), 0)
                    try:
                        if along >= 0:
                            socket.send_fds(connection, [reply], [along])
                        else:
                            connection.send(reply)
                    except OSError:
                        break
    with lock:
        for ticket, begun in list(tickets.items()) if not args.die_after else []:
            if begun[5] is connection:
                problem(f"connection lost with a change open on slot {begun[0]}")


def die():
    """To the program it is as if this process were killed."""
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in connections:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


connections = []
raw_words = []
SECRET = secrets.randbits(128)
NAME = f"pagekeeper-fake-{os.getpid()}"
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\0" + NAME)
listener.listen(128)


def listen():
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connections.append(connection)
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


threading.Thread(target=listen, daemon=True).start()
environment = dict(os.environ, PAGEKEEPER_SOCKET=f"{NAME}:{SECRET:032x}", LD_PRELOAD=args.library)
try:
    code = subprocess.run(args.command, env=environment).returncode
except KeyboardInterrupt:
    code = 130
with lock:
    for slot in slots:
        slot.push()
    for word in raw_words if not args.die_after else []:
        if int.from_bytes(word[:4], "little"):
            problem("a process left plain system calls counted")
    if args.log:
        with open(args.log, "w") as log:
            json.dump({"counts": counts, "executed": executed, "notes": notes,
                       "problems": problems}, log, indent=1)
sys.stdout.flush()
os._exit(99 if problems else code if code >= 0 else 128 - code)
