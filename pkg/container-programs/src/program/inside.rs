//! The system calls that move a process into a container, which the standard library lacks.
//!
//! Sources: setns(2), capabilities(7), seccomp(2), prctl(2), F_GET_SEALS(2const), clone(2); numbers from the kernel's
//! headers.
#![allow(unsafe_code)] // Foreign functions are unsafe to call; each call says why it may be made.

use std::ffi::{CString, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Result, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::cgroups::ContainerCgroups;
use crate::child::{ExecChild, checked, is_child, owned};
use crate::plan::{CapabilityMasks, ExecFailure, ExecPlan};
use crate::system::poll_readable;

/// New mount, cgroup, UTS, IPC, PID and network namespaces: what runc gives a container.
const NAMESPACES: c_int = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x2000_0000 | 0x4000_0000;
/// A new user namespace, which not every container has: joining the own one is an error.
const USER_NAMESPACE: c_int = 0x1000_0000;
const PR_SET_PDEATHSIG: c_int = 1;
const PR_SET_DUMPABLE: c_int = 4;
const PR_SET_KEEPCAPS: c_int = 8;
const PR_CAPBSET_DROP: c_int = 24;
const PR_SET_NO_NEW_PRIVS: c_int = 38;
const PR_CAP_AMBIENT: c_int = 47;
const PR_CAP_AMBIENT_RAISE: c_ulong = 2;
const PR_CAP_AMBIENT_CLEAR_ALL: c_ulong = 4;
const SECCOMP_SET_MODE_FILTER: c_uint = 1;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
const EINVAL: i32 = 22;
const F_GET_SEALS: c_int = 1034;
/// No further seal, no shrinking, no growing, no writing.
const ALL_SEALS: c_int = 0xf;
const CLOSE_RANGE_CLOEXEC: c_uint = 4;
const CLONE_PARENT: c_ulong = 0x8000;
const CLONE_PARENT_SETTID: c_ulong = 0x0010_0000;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED_ANONYMOUS: c_int = 0x21;
const KEYCTL_JOIN_SESSION_KEYRING: c_long = 1;
const O_CLOEXEC: c_int = 0o2_000_000;
const O_NOCTTY: c_int = 0o400;
const O_NONBLOCK: c_int = 0o4000;
#[cfg(target_arch = "x86_64")]
const O_NOFOLLOW: c_int = 0o400_000;
#[cfg(target_arch = "aarch64")]
const O_NOFOLLOW: c_int = 0o100_000;
const F_SETFD: c_int = 2;
const F_SETFL: c_int = 4;
/// Limit of what is read of a container's `/etc/passwd`.
const MAX_PASSWD_BYTES: u64 = 1 << 20;
/// Major number 1, minor number 3.
const NULL_DEVICE: u64 = 0x103;
const SIGKILL: c_int = 9;
/// The highest signal number of the kernel.
const LAST_SIGNAL: c_int = 64;
const SIGCHLD: c_int = 17;
const SIG_DFL: usize = 0;
const EACCES: i32 = 13;
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const ENXIO: i32 = 6;
const ENOSYS: i32 = 38;
const ENOTDIR: i32 = 20;
#[cfg(target_arch = "x86_64")]
mod number {
    pub const SECCOMP: i64 = 317;
    pub const CAPSET: i64 = 126;
    pub const CLONE: i64 = 56;
    pub const KEYCTL: i64 = 250;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const SECCOMP: i64 = 277;
    pub const CAPSET: i64 = 91;
    pub const CLONE: i64 = 220;
    pub const KEYCTL: i64 = 219;
}
/// Equal on all architectures.
const SYS_CLOSE_RANGE: c_long = 436;

#[repr(C)]
struct Limit {
    soft: u64,
    hard: u64,
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

#[repr(C)]
struct CapabilityHalf {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

#[repr(C)]
struct FilterProgram {
    /// Number of instructions, eight bytes each.
    length: u16,
    instructions: *const c_void,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn prctl(option: c_int, ...) -> c_int;
    fn setns(fd: c_int, kinds: c_int) -> c_int;
    fn getpid() -> c_int;
    fn getppid() -> c_int;
    fn close(fd: c_int) -> c_int;
    fn _exit(code: c_int) -> !;
    fn signal(number: c_int, handler: usize) -> usize;
    fn setsid() -> c_int;
    fn umask(mask: c_uint) -> c_uint;
    fn dup2(old: c_int, new: c_int) -> c_int;
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    fn chdir(path: *const c_char) -> c_int;
    fn setrlimit(resource: c_uint, limit: *const Limit) -> c_int;
    fn setgroups(count: usize, groups: *const u32) -> c_int;
    fn setresgid(real: u32, effective: u32, saved: u32) -> c_int;
    fn setresuid(real: u32, effective: u32, saved: u32) -> c_int;
    fn execve(
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
    fn mmap(
        address: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
}

/// Whether nobody can change the file of this program.
pub fn is_sealed() -> bool {
    let Ok(program) = File::open("/proc/self/exe") else { return false };
    // SAFETY: the file is open. For one that has no seals the call fails.
    let seals = checked(unsafe { fcntl(program.as_raw_fd(), F_GET_SEALS) });
    seals.is_ok_and(|seals| seals & ALL_SEALS == ALL_SEALS)
}

/// Prevents access to this process from the container, and inheritance of its files.
pub fn make_undumpable() -> Result<()> {
    // SAFETY: both calls take numbers only.
    unsafe {
        checked(prctl(PR_SET_DUMPABLE, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong))?;
        checked(syscall(SYS_CLOSE_RANGE, 3 as c_uint, c_uint::MAX, CLOSE_RANGE_CLOEXEC))?;
    }
    Ok(())
}

/// Joins the namespaces of `process`; the PID namespace only for children. With a user namespace, this process then has
/// all privileges in it, and none outside.
fn join_namespaces(plan: &ExecPlan, process: BorrowedFd<'_>) -> Result<()> {
    let user = if plan.first_id.is_some() { USER_NAMESPACE } else { 0 };
    // SAFETY: the file is open, and this process has one thread.
    checked(unsafe { setns(process.as_raw_fd(), NAMESPACES | user) }).map(drop)
}

/// Why the child could not execute the program: the failed stage, and the errno.
struct ExecStartError {
    step: u8,
    errno: i32,
}

/// Stages sent by a child before it exits: the index in this list, then the errno.
const STEPS: [&str; 13] = [
    "cannot set its standard input and output",
    "cannot change to its directory",
    "cannot set its resource limits",
    "cannot install its seccomp filters",
    "cannot set its capabilities",
    "cannot set its groups",
    "cannot set its user",
    "cannot set no_new_privs",
    "cannot execute its program",
    "cannot enter the container",
    "cannot create a session keyring",
    "cannot create its process",
    "cannot set its AppArmor profile",
];
const CHDIR: u8 = 1;
const EXEC: u8 = 8;
/// Sent instead of a stage by the program's process, before it executes the program.
const READY: u8 = u8::MAX;

/// Starts the program of `plan` in the cgroups and namespaces of `container`. Returns after its exec; `None`: it was
/// killed, because the parent closed the socket.
///
/// A process in the PID namespace can be traced by a container with CAP_SYS_PTRACE, whether it is dumpable or not. So
/// a first child, which stays outside of that namespace, takes on the user, the privileges and the filters of the
/// container, and closes all files. It then creates the process of the program, as a child of this one. The kernel
/// notes its pid in memory that both share, so that it is known also if the first child is killed right after that.
pub fn spawn(
    plan: &ExecPlan,
    cgroups: &ContainerCgroups,
    container: BorrowedFd<'_>,
    input: Option<File>,
) -> std::result::Result<Option<ExecChild>, (ExecFailure, String)> {
    let other = |reason| (ExecFailure::Other, reason);
    let mut ends = [-1; 2];
    // SAFETY: there is room for both numbers.
    checked(unsafe { pipe2(ends.as_mut_ptr(), O_CLOEXEC) })
        .map_err(|error| other(format!("pipe: {error}")))?;
    let (mut read, write) = (File::from(owned(ends[0])), File::from(owned(ends[1])));
    let created = shared_pid().map_err(|error| other(format!("mmap: {error}")))?;
    // SAFETY: it takes nothing.
    let parent = unsafe { getpid() };
    let first = cgroups.fork().map_err(other)?;
    if first == 0 {
        let applied = apply_plan(plan, container, input.as_ref(), &write);
        let pid = applied.and_then(|()| create_process(parent, created));
        match pid {
            Ok(0) => exec_in_container(plan, &write),
            // SAFETY: exits the child without running exit handlers of the parent.
            Ok(_) => unsafe { _exit(0) },
            Err(error) => report(&write, &error),
        }
    }
    drop((write, input));
    let (mut is_ready, mut failure, mut is_abandoned) = (false, None, false);
    let mut message = [0; 5];
    // That the process is ready, and an error.
    for _ in 0..2 {
        let mut ready = [false; 2];
        while ready == [false; 2] {
            ready = poll_readable([Some(read.as_raw_fd()), Some(0)], None);
        }
        is_abandoned = !ready[0];
        // The end: both children have exited or executed the program.
        if is_abandoned || read.read_exact(&mut message).is_err() {
            break;
        }
        let [step, number @ ..] = message;
        let number = i32::from_le_bytes(number);
        match step {
            READY => is_ready = true,
            step => failure = Some((step, number)),
        }
    }
    ExecChild::new(first).kill();
    let pid = created.load(Ordering::Relaxed);
    // A container that traces the second child could write any number.
    let child = (pid != first && is_child(pid)).then(|| ExecChild::new(pid));
    if !is_abandoned && is_ready && failure.is_none() {
        return child.map(Some).ok_or_else(|| other("its process was not created".to_owned()));
    }
    child.iter().for_each(ExecChild::kill);
    if is_abandoned {
        return Ok(None);
    }
    let Some((step, errno)) = failure else {
        return Err(other("its process ended before it executed the program".to_owned()));
    };
    let error = Error::from_raw_os_error(errno);
    Err(match step {
        CHDIR => (ExecFailure::Directory, error.to_string()),
        EXEC if errno != ENOENT => (ExecFailure::Command, error.to_string()),
        EXEC if plan.arguments[0].contains(&b'/') => {
            (ExecFailure::Command, "no such file or directory".to_owned())
        }
        EXEC => (ExecFailure::Command, "executable file not found in $PATH".to_owned()),
        step => {
            let step = STEPS.get(usize::from(step)).copied().unwrap_or("failed");
            other(format!("{step}: {error}"))
        }
    })
}

/// Memory that this process shares with its children: 0, and then the pid of the program's process.
fn shared_pid() -> Result<&'static AtomicI32> {
    // SAFETY: the kernel chooses the place.
    let page = unsafe {
        mmap(std::ptr::null_mut(), size_of::<AtomicI32>(), PROT_READ_WRITE, MAP_SHARED_ANONYMOUS, -1, 0)
    };
    // Failure is the address -1.
    if page.addr() == usize::MAX {
        return Err(Error::last_os_error());
    }
    // SAFETY: it is zero, aligned, and never unmapped.
    Ok(unsafe { &*page.cast::<AtomicI32>() })
}

fn send(mut status: &File, word: u8, number: i32) -> Result<()> {
    let mut message = [word; 5];
    message[1..].copy_from_slice(&number.to_le_bytes());
    status.write_all(&message)
}

/// Says why the program cannot be executed, and exits.
fn report(status: &File, error: &ExecStartError) -> ! {
    let _ = send(status, error.step, error.errno);
    // SAFETY: exits the child without running exit handlers of the parent.
    unsafe { _exit(125) };
}

fn step_result<T>(step: u8, result: Result<T>) -> std::result::Result<T, ExecStartError> {
    result.map_err(|error| ExecStartError { step, errno: error.raw_os_error().unwrap_or(0) })
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::from_raw_os_error(EINVAL))
}

const NONE: c_ulong = 0;

/// Enters the container, except for its PID namespace, and takes on everything of the plan. Ordered so that each step
/// still has the privileges that it needs.
fn apply_plan(
    plan: &ExecPlan,
    container: BorrowedFd<'_>,
    input: Option<&File>,
    status: &File,
) -> std::result::Result<(), ExecStartError> {
    // SAFETY: it takes numbers and no name.
    match checked(unsafe { syscall(number::KEYCTL, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<c_char>()) })
    {
        // A kernel without keys.
        Err(error) if error.raw_os_error() == Some(ENOSYS) => {}
        joined => drop(step_result(10, joined)?),
    }
    // SAFETY: they take numbers of files that are open, and numbers.
    step_result(0, unsafe {
        umask(0o022);
        // The program's process begins in this one's process group, and could signal `warren-exec` in its own.
        setsid();
        // What the agent ignores, as SIGHUP under nohup, would be ignored by the program. Two cannot be changed.
        for number in 1..=LAST_SIGNAL {
            signal(number, SIG_DFL);
        }
        input.map_or(Ok(0), |input| checked(dup2(input.as_raw_fd(), 0)))
    })?;
    // In the /proc of the host.
    step_result(12, set_next_profile(&plan.apparmor_profile))?;
    // Both need privileges that a user namespace takes.
    own_pipes(plan.first_id.unwrap_or(0).saturating_add(plan.uid));
    for (resource, soft, hard) in &plan.rlimits {
        let limit = Limit { soft: *soft, hard: *hard };
        // SAFETY: the limit outlives the call.
        step_result(2, checked(unsafe { setrlimit(*resource, &raw const limit) }))?;
    }
    step_result(9, join_namespaces(plan, container))?;
    let kept = status.as_raw_fd().cast_unsigned();
    // SAFETY: they take numbers of files that are open. No file that is closed is used below.
    step_result(0, unsafe {
        checked(syscall(SYS_CLOSE_RANGE, kept + 1, c_uint::MAX, 0 as c_uint))
            .and_then(|_| if kept > 3 { checked(syscall(SYS_CLOSE_RANGE, 3, kept - 1, 0)) } else { Ok(0) })
    })?;
    let directory = step_result(CHDIR, c_string(&plan.directory))?;
    // SAFETY: the path ends with NUL.
    step_result(CHDIR, checked(unsafe { chdir(directory.as_ptr()) }))?;
    // Without no_new_privs, installing a filter needs privileges that are dropped below.
    if !plan.no_new_privileges {
        step_result(3, install_filters(plan))?;
    }
    step_result(4, drop_bounding_set(plan.capabilities.bounding))?;
    // SAFETY: the list outlives the call; the others take numbers.
    unsafe {
        step_result(5, checked(setgroups(plan.groups.len(), plan.groups.as_ptr())))?;
        step_result(4, checked(prctl(PR_SET_KEEPCAPS, 1 as c_ulong, NONE, NONE, NONE)))?;
        step_result(5, checked(setresgid(plan.gid, plan.gid, plan.gid)))?;
        step_result(6, checked(setresuid(plan.uid, plan.uid, plan.uid)))?;
    }
    step_result(4, set_capabilities(&plan.capabilities))?;
    if input.is_none() {
        step_result(0, open_null_input())?;
    }
    // SAFETY: they take numbers only. A change of the user sets the first and clears the second.
    unsafe {
        step_result(0, checked(prctl(PR_SET_DUMPABLE, NONE, NONE, NONE, NONE)))?;
        step_result(0, checked(prctl(PR_SET_PDEATHSIG, SIGKILL as c_ulong, NONE, NONE, NONE)))?;
        if plan.no_new_privileges {
            step_result(7, checked(prctl(PR_SET_NO_NEW_PRIVS, 1 as c_ulong, NONE, NONE, NONE)))?;
        }
    }
    if plan.no_new_privileges {
        step_result(3, install_filters(plan))?;
    }
    Ok(())
}

/// Sets the AppArmor profile for the next program that this process, or one that it creates, executes.
fn set_next_profile(profile: &[u8]) -> Result<()> {
    if profile.is_empty() {
        return Ok(());
    }
    let open = |path: &str| OpenOptions::new().write(true).open(path);
    let mut file = match open("/proc/self/attr/apparmor/exec") {
        // Before Linux 5.8.
        Err(error) if error.raw_os_error() == Some(ENOENT) => open("/proc/self/attr/exec")?,
        opened => opened?,
    };
    // The kernel takes what one call writes.
    file.write_all(&[b"exec ", profile].concat())
}

/// Gives the pipes of the program to its user, who could not open `/dev/stdout` otherwise. What fails does not matter
/// to most programs.
fn own_pipes(uid: u32) {
    for fd in 0..3 {
        // SAFETY: the file stays open, and is not owned by the value.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        if file.metadata().is_ok_and(|found| found.file_type().is_fifo()) {
            let _ = fchown(&*file, Some(uid), None);
        }
    }
}

/// Replaces the standard input by the container's null device: a change of the host's would be one of the host's file.
fn open_null_input() -> Result<()> {
    // SAFETY: the standard library does not own this file.
    unsafe { close(0) };
    let null =
        OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK | O_NOCTTY).open("/dev/null")?;
    let found = null.metadata()?;
    if null.as_raw_fd() != 0 || !found.file_type().is_char_device() || found.rdev() != NULL_DEVICE {
        return Err(Error::from_raw_os_error(ENXIO));
    }
    let null = null.into_raw_fd();
    // SAFETY: the file is open; it becomes blocking and is inherited by the program.
    checked(unsafe { fcntl(null, F_SETFL, 0) }).and_then(|_| checked(unsafe { fcntl(null, F_SETFD, 0) }))?;
    Ok(())
}

/// Creates a process in the PID namespace, as a child of `parent`, the parent of this process, and notes its pid in
/// `created`. Returns 0 in it.
fn create_process(parent: c_int, created: &AtomicI32) -> std::result::Result<c_int, ExecStartError> {
    // The kernel does not note it in memory that it must map first, if this process is being killed.
    created.store(0, Ordering::Relaxed);
    // SAFETY: this process has one thread, so the child is not restricted; without a stack it continues here. The
    // kernel writes one number to the place of the third argument.
    unsafe {
        if getppid() != parent {
            return Err(ExecStartError { step: 11, errno: ESRCH });
        }
        let flags = CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD as c_ulong;
        step_result(11, checked(syscall(number::CLONE, flags, NONE, created.as_ptr(), NONE, NONE)))
    }
}

/// Runs in the new process: executes the program, or sends why that failed and exits.
fn exec_in_container(plan: &ExecPlan, status: &File) -> ! {
    // SAFETY: they take numbers only.
    let prepared = step_result(0, unsafe {
        // It must not stay in the group of the first child, which is killed.
        checked(setsid()).and_then(|_| checked(prctl(PR_SET_PDEATHSIG, SIGKILL as c_ulong, NONE, NONE, NONE)))
    });
    // If `warren-exec` ended before that, nobody reads this, and SIGPIPE ends this process as well.
    let prepared = prepared.and_then(|_| step_result(0, send(status, READY, 0)));
    report(status, &prepared.map_or_else(|error| error, |()| exec_program(plan)))
}

/// Drops all other capabilities from the bounding set.
fn drop_bounding_set(kept: u64) -> Result<()> {
    for capability in 0..64 as c_ulong {
        if kept & (1 << capability) != 0 {
            continue;
        }
        // SAFETY: it takes numbers only.
        let dropped = unsafe { prctl(PR_CAPBSET_DROP, capability, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) };
        match checked(dropped) {
            // The kernel has no capability with this or a higher number.
            Err(error) if error.raw_os_error() == Some(EINVAL) => break,
            other => other?,
        };
    }
    Ok(())
}

fn set_capabilities(sets: &CapabilityMasks) -> Result<()> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let half = |shift: u32| CapabilityHalf {
        effective: (sets.effective >> shift) as u32,
        permitted: (sets.permitted >> shift) as u32,
        inheritable: (sets.inheritable >> shift) as u32,
    };
    let halves = [half(0), half(32)];
    // SAFETY: both outlive the calls, and this version has two halves.
    unsafe {
        checked(syscall(number::CAPSET, &raw const header, halves.as_ptr()))?;
        let none = 0 as c_ulong;
        checked(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, none, none, none))?;
        for capability in (0..64 as c_ulong).filter(|bit| sets.ambient & (1 << bit) != 0) {
            checked(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, none, none))?;
        }
    }
    Ok(())
}

fn install_filters(plan: &ExecPlan) -> Result<()> {
    for instructions in &plan.seccomp_filters {
        let length = u16::try_from(instructions.len() / 8).map_err(|_| Error::from_raw_os_error(EINVAL))?;
        let program = FilterProgram { length, instructions: instructions.as_ptr().cast() };
        // SAFETY: program and instructions outlive the call, and the length matches.
        checked(unsafe {
            syscall(number::SECCOMP, SECCOMP_SET_MODE_FILTER, 0 as c_uint, &raw const program)
        })?;
    }
    Ok(())
}

/// Executes the program, searched in the PATH of the container's environment.
fn exec_program(plan: &ExecPlan) -> ExecStartError {
    let strings = |list: &[Vec<u8>]| list.iter().map(|item| c_string(item)).collect::<Result<Vec<_>>>();
    let (Ok(arguments), Ok(mut environment)) = (strings(&plan.arguments), strings(&plan.environment)) else {
        return ExecStartError { step: EXEC, errno: EINVAL };
    };
    if !plan.environment.iter().any(|variable| variable.starts_with(b"HOME=")) {
        environment.extend(c_string(&[b"HOME=", &home_directory(plan.uid)[..]].concat()));
    }
    let pointers = |list: &[CString]| -> Vec<*const c_char> {
        list.iter().map(|item| item.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argument_list, environment_list) = (pointers(&arguments), pointers(&environment));
    let name = &plan.arguments[0];
    let path = plan
        .environment
        .iter()
        .find_map(|variable| variable.strip_prefix(b"PATH="))
        .unwrap_or(b"/bin:/usr/bin");
    let candidates: Vec<Vec<u8>> = match name.contains(&b'/') {
        true => vec![name.clone()],
        false => path.split(|byte| *byte == b':').map(|dir| [dir, b"/", name].concat()).collect(),
    };
    let mut worst = ENOENT;
    for candidate in candidates {
        let Ok(candidate) = c_string(&candidate) else { continue };
        // SAFETY: all lists and strings are terminated, and outlive the call.
        unsafe { execve(candidate.as_ptr(), argument_list.as_ptr(), environment_list.as_ptr()) };
        match Error::last_os_error().raw_os_error().unwrap_or(0) {
            ENOENT | ENOTDIR => {}
            EACCES => worst = EACCES,
            other => return ExecStartError { step: EXEC, errno: other },
        }
    }
    ExecStartError { step: EXEC, errno: worst }
}

/// The home directory of a user in the container's `/etc/passwd`; without an entry `/`, as runc sets it.
fn home_directory(uid: u32) -> Vec<u8> {
    let mut text = Vec::new();
    // It may be a named pipe, or without end.
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK | O_NOCTTY).open("/etc/passwd");
    if let Ok(file) = opened
        && file.metadata().is_ok_and(|found| found.is_file())
    {
        let _ = file.take(MAX_PASSWD_BYTES).read_to_end(&mut text);
    }
    let entries = text.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':'));
    let directory = entries.into_iter().find_map(|mut fields| {
        let found = std::str::from_utf8(fields.nth(2)?).ok()?.parse::<u32>().ok()?;
        (found == uid).then(|| fields.nth(2))?
    });
    directory.filter(|directory| !directory.is_empty()).unwrap_or(b"/").to_vec()
}
