#!/usr/bin/env python3
"""Runs a program for which some system calls fail, as in a container's sandbox.

    without-uring.py ERRNO COMMAND...     io_uring_setup, io_uring_enter and io_uring_register answer ERRNO
"""
import ctypes, errno, os, platform, struct, sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
CALLS = (425, 426, 427)  # the same on all architectures

answer = getattr(errno, sys.argv[1])
program = [(LOAD, 0, 0, 0)]  # the number of the call is what seccomp_data begins with
for left, call in enumerate(reversed(CALLS)):
    program.insert(1, (EQUAL, left + 1, 0, call))
program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | answer)]
code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
filter_bytes = ctypes.create_string_buffer(code, len(code))


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


libc = ctypes.CDLL(None, use_errno=True)
what = Program(len(program), ctypes.addressof(filter_bytes))
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(what), 0, 0) != 0:
    sys.exit(f"no seccomp here: {os.strerror(ctypes.get_errno())}")
refused = libc.syscall(425, 1, None)
assert refused == -1 and ctypes.get_errno() == answer, "io_uring is not barred"
os.execvp(sys.argv[2], sys.argv[2:])
