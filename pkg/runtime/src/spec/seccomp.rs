//! The system calls a container may make: what Docker's default profile allows with the default
//! capabilities.
//!
//! For the machine's own architecture only. libseccomp compiles the list at every start, and each further
//! architecture costs as much again; 32-bit programs on a 64-bit machine are therefore killed.

use oci_spec::runtime as oci;
use oci_spec::runtime::{LinuxSeccompAction as Action, LinuxSeccompOperator as Operator};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// `clone` flags that make namespaces: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
const NAMESPACE_FLAGS: u64 = 0x7E02_0000;
/// `personality` values that are harmless: Linux, 32-bit addresses, UNAME26 and both, and the question.
const PERSONALITIES: [u64; 5] = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Sockets to the hypervisor are not namespaced.
const AF_VSOCK: u64 = 40;

/// Allowed whatever the arguments, in groups of what they are about.
#[rustfmt::skip]
const FILES: &[&str] = &[
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
    "memfd_create", "name_to_handle_at", "cachestat", "chroot",
];
#[rustfmt::skip]
const EVENTS: &[&str] = &[
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2",
    "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "inotify_add_watch", "inotify_init",
    "inotify_init1", "inotify_rm_watch", "fanotify_mark", "poll", "ppoll", "pselect6", "select",
    "signalfd", "signalfd4", "timerfd_create", "timerfd_gettime", "timerfd_settime", "io_cancel",
    "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit",
];
#[rustfmt::skip]
const MEMORY: &[&str] = &[
    "brk", "madvise", "membarrier", "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect",
    "mremap", "msync", "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect",
    "remap_file_pages", "map_shadow_stack", "mseal", "memfd_secret", "process_mrelease",
];
#[rustfmt::skip]
const PROCESSES: &[&str] = &[
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
const CLOCKS_AND_IPC: &[&str] = &[
    "clock_adjtime", "clock_getres", "clock_gettime", "clock_nanosleep", "gettimeofday", "adjtimex",
    "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime", "mq_getsetattr",
    "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv",
    "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmdt", "shmget",
];
#[rustfmt::skip]
const NETWORK: &[&str] = &[
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen",
    "recvfrom", "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
    "socketpair",
];
/// Only on ARM machines; runc skips names that the architecture does not have.
const ARM: &[&str] = &["arm_fadvise64_64", "arm_sync_file_range", "breakpoint", "cacheflush", "set_tls"];

pub(super) fn profile() -> oci::LinuxSeccomp {
    let mut rules: Vec<oci::LinuxSyscall> = [FILES, EVENTS, MEMORY, PROCESSES, CLOCKS_AND_IPC, NETWORK]
        .into_iter()
        .map(|names| allow(names, None))
        .collect();
    if cfg!(target_arch = "aarch64") {
        rules.push(allow(ARM, None));
    }
    for personality in PERSONALITIES {
        rules.push(allow(&["personality"], Some(argument(personality, None, Operator::ScmpCmpEq))));
    }
    rules.push(allow(&["socket"], Some(argument(AF_VSOCK, None, Operator::ScmpCmpNe))));
    rules.push(allow(&["clone"], Some(argument(NAMESPACE_FLAGS, Some(0), Operator::ScmpCmpMaskedEq))));
    // Its flags lie in memory, which a filter cannot read. "Not implemented" makes programs fall back to
    // clone.
    let mut clone3 = oci::LinuxSyscall::default();
    clone3.set_names(vec!["clone3".to_owned()]).set_action(Action::ScmpActErrno).set_errno_ret(Some(ENOSYS));
    rules.push(clone3);
    let mut profile = oci::LinuxSeccomp::default();
    profile
        .set_default_action(Action::ScmpActErrno)
        .set_default_errno_ret(Some(EPERM))
        .set_architectures(architecture().map(|native| vec![native]))
        .set_syscalls(Some(rules));
    profile
}

fn architecture() -> Option<oci::Arch> {
    match std::env::consts::ARCH {
        "x86_64" => Some(oci::Arch::ScmpArchX86_64),
        "aarch64" => Some(oci::Arch::ScmpArchAarch64),
        // Without a list libseccomp takes the architecture it runs on.
        _ => None,
    }
}

fn allow(names: &[&str], argument: Option<oci::LinuxSeccompArg>) -> oci::LinuxSyscall {
    let mut rule = oci::LinuxSyscall::default();
    rule.set_names(names.iter().map(|name| (*name).to_owned()).collect())
        .set_action(Action::ScmpActAllow)
        .set_args(argument.map(|argument| vec![argument]));
    rule
}

/// A test on the call's first argument.
fn argument(value: u64, masked: Option<u64>, operator: Operator) -> oci::LinuxSeccompArg {
    let mut argument = oci::LinuxSeccompArgBuilder::default().index(0usize).value(value).op(operator);
    if let Some(masked) = masked {
        argument = argument.value_two(masked);
    }
    argument.build().expect("index, value and operator are set")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn allowed() -> Vec<String> {
        let rules = profile().syscalls().clone().unwrap();
        rules.iter().filter(|r| r.action() == Action::ScmpActAllow).flat_map(|r| r.names().clone()).collect()
    }

    #[test]
    fn what_reaches_out_of_a_container_is_not_allowed() {
        let allowed: BTreeSet<String> = allowed().into_iter().collect();
        for call in [
            "mount",
            "umount2",
            "unshare",
            "setns",
            "pivot_root",
            "bpf",
            "keyctl",
            "add_key",
            "kexec_load",
            "reboot",
            "init_module",
            "finit_module",
            "delete_module",
            "perf_event_open",
            "userfaultfd",
            "open_by_handle_at",
            "settimeofday",
            "swapon",
            "acct",
            "iopl",
            "ioperm",
            "io_uring_setup",
            "clone3",
            "syslog",
            "quotactl",
        ] {
            assert!(!allowed.contains(call), "{call}");
        }
    }

    #[test]
    fn no_call_is_listed_twice_but_personality() {
        let calls = allowed();
        let unique: BTreeSet<&String> = calls.iter().collect();
        assert_eq!(calls.len() - unique.len(), PERSONALITIES.len() - 1);
    }
}
