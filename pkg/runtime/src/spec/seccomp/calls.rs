//! The lists of system calls. Source: what Docker's documentation and its default profile name.

use oci_spec::runtime::Capability as Cap;

/// Allowed whatever the arguments, in groups of what they are about.
#[rustfmt::skip]
pub(super) const FILES: &[&str] = &[
    "access", "chdir", "chmod", "chown", "close", "close_range", "copy_file_range", "creat", "dup",
    "dup2", "dup3", "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat",
    "fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync", "fgetxattr", "flistxattr", "flock",
    "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync", "ftruncate", "futimesat", "getcwd",
    "getdents", "getdents64", "getxattr", "ioctl", "lchown", "lgetxattr", "link", "linkat", "listxattr",
    "llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "mkdir", "mkdirat", "mknod", "mknodat",
    "newfstatat", "open", "openat", "openat2", "pipe", "pipe2", "pread64", "preadv", "preadv2",
    "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv",
    "removexattr", "rename", "renameat", "renameat2", "rmdir", "sendfile", "setxattr", "splice", "stat",
    "statfs", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs", "tee", "truncate",
    "umask", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vmsplice", "write", "writev",
    "memfd_create", "name_to_handle_at", "cachestat",
];
#[rustfmt::skip]
pub(super) const EVENTS: &[&str] = &[
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2",
    "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "inotify_add_watch", "inotify_init",
    "inotify_init1", "inotify_rm_watch", "fanotify_mark", "poll", "ppoll", "pselect6", "select",
    "signalfd", "signalfd4", "timerfd_create", "timerfd_gettime", "timerfd_settime", "io_cancel",
    "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit",
];
#[rustfmt::skip]
pub(super) const MEMORY: &[&str] = &[
    "brk", "madvise", "membarrier", "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect",
    "mremap", "msync", "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect",
    "remap_file_pages", "map_shadow_stack", "mseal", "memfd_secret", "process_mrelease",
];
#[rustfmt::skip]
pub(super) const PROCESSES: &[&str] = &[
    "arch_prctl", "alarm", "capget", "capset", "execve", "execveat", "exit", "exit_group", "fork",
    "futex", "futex_requeue", "futex_wait", "futex_waitv", "futex_wake", "get_robust_list",
    "get_thread_area", "getcpu", "getegid", "geteuid", "getgid", "getgroups", "getitimer", "getpgid",
    "getpgrp", "getpid", "getppid", "getpriority", "getrandom", "getresgid", "getresuid", "getrlimit",
    "getrusage", "getsid", "gettid", "getuid", "ioprio_get", "ioprio_set", "kill", "landlock_add_rule",
    "landlock_create_ruleset", "landlock_restrict_self", "modify_ldt", "nanosleep", "pause",
    "pidfd_getfd", "pidfd_open", "pidfd_send_signal", "prctl", "prlimit64", "process_vm_readv",
    "process_vm_writev", "ptrace", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending",
    "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait",
    "rt_tgsigqueueinfo", "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity",
    "sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity",
    "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp", "set_robust_list",
    "set_thread_area", "set_tid_address", "setfsgid", "setfsuid", "setgid", "setgroups", "setitimer",
    "setpgid", "setpriority", "setregid", "setresgid", "setresuid", "setreuid", "setrlimit", "setsid",
    "setuid", "sigaltstack", "sysinfo", "tgkill", "time", "times", "tkill", "uname", "vfork", "wait4",
    "waitid",
];
#[rustfmt::skip]
pub(super) const CLOCKS_AND_IPC: &[&str] = &[
    "clock_adjtime", "clock_getres", "clock_gettime", "clock_nanosleep", "gettimeofday", "adjtimex",
    "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime", "mq_getsetattr",
    "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv",
    "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmdt", "shmget",
];
#[rustfmt::skip]
pub(super) const NETWORK: &[&str] = &[
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen",
    "recvfrom", "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
    "socketpair",
];
/// Only on ARM machines; runc skips names that the architecture does not have.
pub(super) const ARM: &[&str] =
    &["arm_fadvise64_64", "arm_sync_file_range", "breakpoint", "cacheflush", "set_tls"];

/// Only of 32-bit programs; runc skips names that none of the architectures have.
#[rustfmt::skip]
pub(super) const ONLY_32_BIT: &[&str] = &[
    "_llseek", "_newselect", "chown32", "clock_adjtime64", "clock_getres_time64", "clock_gettime64",
    "clock_nanosleep_time64", "fadvise64_64", "fchown32", "fcntl64", "fstat64", "fstatat64", "fstatfs64",
    "ftruncate64", "futex_time64", "getegid32", "geteuid32", "getgid32", "getgroups32", "getresgid32",
    "getresuid32", "getuid32", "io_pgetevents_time64", "ipc", "lchown32", "lstat64", "mmap2",
    "mq_timedreceive_time64", "mq_timedsend_time64", "nice", "oldstat", "ppoll_time64", "pselect6_time64",
    "recv", "recvmmsg_time64", "rt_sigtimedwait_time64", "sched_rr_get_interval_time64",
    "semtimedop_time64", "send", "sendfile64", "setfsgid32", "setfsuid32", "setgid32", "setgroups32",
    "setregid32", "setresgid32", "setresuid32", "setreuid32", "setuid32", "sigaction", "signal",
    "sigpending", "sigprocmask", "sigreturn", "sigsuspend", "socketcall", "stat64", "statfs64",
    "sync_file_range2", "timer_gettime64", "timer_settime64", "timerfd_gettime64", "timerfd_settime64",
    "truncate64", "ugetrlimit", "utimensat_time64", "waitpid",
];

/// Allowed to whom the capability beside them is given: it is what the call itself asks for.
#[rustfmt::skip]
pub(super) const BY_CAPABILITY: &[(Cap, &[&str])] = &[
    (Cap::SysAdmin, &[
        "bpf", "clone", "clone3", "fanotify_init", "fsconfig", "fsmount", "fsopen", "fspick", "listmount",
        "lookup_dcookie", "mount", "mount_setattr", "move_mount", "open_tree", "perf_event_open", "quotactl",
        "quotactl_fd", "setdomainname", "sethostname", "setns", "statmount", "syslog", "umount", "umount2",
        "unshare",
    ]),
    (Cap::Bpf, &["bpf"]),
    (Cap::DacReadSearch, &["open_by_handle_at"]),
    (Cap::Perfmon, &["perf_event_open"]),
    (Cap::SysBoot, &["reboot"]),
    (Cap::SysChroot, &["chroot"]),
    (Cap::SysModule, &["delete_module", "finit_module", "init_module"]),
    (Cap::SysNice, &["get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"]),
    (Cap::SysPacct, &["acct"]),
    (Cap::SysPtrace, &["kcmp", "process_madvise"]),
    (Cap::SysRawio, &["ioperm", "iopl"]),
    (Cap::SysTime, &["clock_settime", "clock_settime64", "settimeofday", "stime"]),
    (Cap::SysTtyConfig, &["vhangup"]),
    (Cap::Syslog, &["syslog"]),
];
