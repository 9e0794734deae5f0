//! The lists of system calls, by name.
//!
//! **Rule:** a list says what is allowed; what is on none of them is answered as if the kernel did not have it. `clone3` is on
//! no list: its arguments cannot be looked at, and the C library falls back to `clone`, whose can. `execveat` is on no list
//! either: it executes a file that has no name, and the C library falls back to `execve`, which needs one.

/// What etcd 3.4 to 3.6 was seen to need, and what the Go runtime or the C library may fall back to.
#[rustfmt::skip]
pub const ETCD: &[&str] = &[
    "accept4", "access", "arch_prctl", "bind", "brk", "clock_gettime", "clock_nanosleep", "clone", "close", "connect",
    "dup3", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_wait", "eventfd2", "execve", "exit", "exit_group",
    "faccessat", "faccessat2", "fadvise64", "fallocate", "fchmod", "fchmodat", "fchownat", "fcntl", "fdatasync",
    "flock", "fstat", "fsync", "ftruncate", "futex", "getcwd", "getdents64", "getegid", "geteuid", "getgid",
    "getpeername", "getpid", "getppid", "getrandom", "getrlimit", "getsockname", "getsockopt", "gettid",
    "gettimeofday", "getuid", "ioctl", "kill", "listen", "lseek", "madvise", "mincore", "mkdirat", "mlockall", "mmap",
    "mprotect", "mremap", "msync", "munlockall", "munmap", "nanosleep", "newfstatat", "openat", "pipe2", "poll",
    "ppoll", "prctl", "pread64", "prlimit64", "pwrite64", "read", "readlink", "readlinkat", "readv", "recvfrom",
    "recvmsg", "renameat", "renameat2", "restart_syscall", "rseq", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
    "sched_getaffinity", "sched_yield", "sendfile", "sendmmsg", "sendmsg", "sendto", "set_robust_list",
    "set_tid_address", "setsockopt", "shutdown", "sigaltstack", "socket", "statfs", "statx", "sysinfo", "tgkill",
    "timer_create", "timer_delete", "timer_settime", "umask", "uname", "unlinkat", "write", "writev",
];

/// What programs usually need: all that is left without the dangerous and the forgotten.
#[rustfmt::skip]
pub const DEFAULT: &[&str] = &[
    "accept", "accept4", "access", "alarm", "arch_prctl", "bind", "brk", "capget", "capset", "chdir", "chmod",
    "chown", "clock_getres", "clock_gettime", "clock_nanosleep", "clone", "close", "close_range", "connect",
    "copy_file_range", "creat", "dup", "dup2", "dup3", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait",
    "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2", "execve", "exit", "exit_group", "faccessat",
    "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchown", "fchownat", "fcntl",
    "fdatasync", "fgetxattr", "flistxattr", "flock", "fork", "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync",
    "ftruncate", "futex", "futex_waitv", "futimesat", "get_mempolicy", "get_robust_list", "getcpu", "getcwd",
    "getdents", "getdents64", "getegid", "geteuid", "getgid", "getgroups", "getitimer", "getpeername", "getpgid",
    "getpgrp", "getpid", "getppid", "getpriority", "getrandom", "getresgid", "getresuid", "getrlimit", "getrusage",
    "getsid", "getsockname", "getsockopt", "gettid", "gettimeofday", "getuid", "getxattr", "inotify_add_watch",
    "inotify_init", "inotify_init1", "inotify_rm_watch", "io_cancel", "io_destroy", "io_getevents",
    "io_setup", "io_submit", "ioctl", "ioprio_get", "ioprio_set", "kill", "lchown", "lgetxattr", "link", "linkat",
    "listen", "listxattr", "llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "madvise", "membarrier",
    "memfd_create", "mincore", "mkdir", "mkdirat", "mlock", "mlock2", "mlockall", "mmap", "mprotect", "mq_getsetattr",
    "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "mremap", "msgctl", "msgget", "msgrcv",
    "msgsnd", "msync", "munlock", "munlockall", "munmap", "nanosleep", "newfstatat", "open", "openat", "openat2",
    "pause", "pidfd_open", "pidfd_send_signal", "pipe", "pipe2", "pkey_alloc", "pkey_free", "pkey_mprotect", "poll",
    "ppoll", "prctl", "pread64", "preadv", "preadv2", "prlimit64", "pselect6", "pwrite64", "pwritev", "pwritev2",
    "read", "readahead", "readlink", "readlinkat", "readv", "recvfrom", "recvmmsg", "recvmsg", "removexattr",
    "rename", "renameat", "renameat2", "restart_syscall", "rmdir", "rseq", "rt_sigaction", "rt_sigpending",
    "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo",
    "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam",
    "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setattr", "sched_setparam",
    "sched_setscheduler", "sched_yield", "select", "semctl", "semget", "semop", "semtimedop", "sendfile", "sendmmsg",
    "sendmsg", "sendto", "set_robust_list", "set_tid_address", "setfsgid", "setfsuid", "setgid", "setgroups",
    "setitimer", "setpgid", "setpriority", "setregid", "setresgid", "setresuid", "setreuid", "setrlimit", "setsid",
    "setsockopt", "setuid", "setxattr", "shmat", "shmctl", "shmdt", "shmget", "shutdown", "sigaltstack", "signalfd",
    "signalfd4", "socket", "socketpair", "splice", "stat", "statfs", "statx", "symlink", "symlinkat", "sync",
    "sync_file_range", "syncfs", "sysinfo", "tee", "tgkill", "time", "timer_create", "timer_delete",
    "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime",
    "times", "tkill", "truncate", "umask", "uname", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vfork",
    "vmsplice", "wait4", "waitid", "write", "writev",
];

/// What is on no list, and may be allowed by its name.
#[rustfmt::skip]
pub const MORE: &[&str] = &[
    "execveat", "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "mbind", "personality",
    "remap_file_pages", "seccomp", "set_mempolicy",
];

/// What is never allowed, and answered with "not permitted": it reaches the kernel, other processes or the machine.
#[rustfmt::skip]
pub const DANGEROUS: &[&str] = &[
    "acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "create_module",
    "delete_module", "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module",
    "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load",
    "kexec_load", "keyctl", "lookup_dcookie", "memfd_secret", "migrate_pages", "mknod", "mknodat", "mount",
    "mount_setattr", "move_mount", "move_pages", "name_to_handle_at", "open_by_handle_at", "open_tree",
    "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise", "process_mrelease", "process_vm_readv",
    "process_vm_writev", "ptrace", "quotactl", "quotactl_fd", "reboot", "request_key", "setdomainname", "sethostname",
    "setns", "settimeofday", "swapoff", "swapon", "syslog", "umount2", "unshare", "userfaultfd", "vhangup",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_sorted_and_nothing_dangerous_is_allowed() {
        for list in [ETCD, DEFAULT, MORE, DANGEROUS] {
            assert!(list.windows(2).all(|pair| pair[0] < pair[1]));
        }
        assert!(MORE.iter().all(|name| !DEFAULT.contains(name)));
        for list in [ETCD, DEFAULT, MORE] {
            assert!(list.iter().all(|name| !DANGEROUS.contains(name) && *name != "clone3"));
        }
        assert!(ETCD.iter().all(|name| DEFAULT.contains(name)));
        assert!(ETCD.len() <= 110, "{}", ETCD.len());
    }
}
