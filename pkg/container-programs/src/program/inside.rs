//! The system calls that move a process into a container, which the standard library lacks.
//!
//! Sources: setns(2), capabilities(7), seccomp(2), prctl(2), memfd_create(2), clone(2); numbers from the kernel's
//! headers.
#![allow(unsafe_code)] // Foreign functions are unsafe to call; each call says why it may be made.

use std::convert::Infallible;
use std::ffi::{CString, c_char, c_int, c_long, c_short, c_uint, c_ulong, c_void};
use std::fs::File;
use std::io::{Error, Read, Result, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::plan::{CapabilityMasks, ExecPlan};

/// New mount, cgroup, UTS, IPC, PID and network namespaces: what runc gives a container.
const NAMESPACES: c_int = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x2000_0000 | 0x4000_0000;
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
const MFD_CLOEXEC: c_uint = 1;
const MFD_ALLOW_SEALING: c_uint = 2;
/// Since Linux 6.3: without it, a node with `vm.memfd_noexec` creates files that cannot be executed.
const MFD_EXEC: c_uint = 0x10;
const EINVAL: i32 = 22;
const F_ADD_SEALS: c_int = 1033;
/// No further seal, no shrinking, no growing, no writing.
const ALL_SEALS: c_int = 0xf;
const AT_EMPTY_PATH: c_int = 0x1000;
const CLOSE_RANGE_CLOEXEC: c_uint = 4;
const O_CLOEXEC: c_int = 0o2_000_000;
const POLLIN: c_short = 1;
const SIGKILL: c_int = 9;
const SIGPIPE: c_int = 13;
const SIG_DFL: usize = 0;
const EACCES: i32 = 13;
const ENOENT: i32 = 2;
const ENOTDIR: i32 = 20;
#[cfg(target_arch = "x86_64")]
mod number {
    pub const SECCOMP: i64 = 317;
    pub const CAPSET: i64 = 126;
    pub const EXECVEAT: i64 = 322;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const SECCOMP: i64 = 277;
    pub const CAPSET: i64 = 91;
    pub const EXECVEAT: i64 = 281;
}
/// Equal on all architectures.
const SYS_PIDFD_OPEN: c_long = 434;
const SYS_CLOSE_RANGE: c_long = 436;

#[repr(C)]
struct PollFd {
    fd: c_int,
    events: c_short,
    revents: c_short,
}

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
    fn fork() -> c_int;
    fn _exit(code: c_int) -> !;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn setsid() -> c_int;
    fn umask(mask: c_uint) -> c_uint;
    fn dup2(old: c_int, new: c_int) -> c_int;
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    fn poll(fds: *mut PollFd, count: c_ulong, timeout: c_int) -> c_int;
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
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
}

fn checked(result: impl Into<i64>) -> Result<c_int> {
    match result.into() {
        -1 => Err(Error::last_os_error()),
        good => Ok(c_int::try_from(good).unwrap_or(c_int::MAX)),
    }
}

/// Takes ownership of a file descriptor returned by a call.
fn owned(fd: c_int) -> OwnedFd {
    // SAFETY: the kernel just returned the descriptor, and it has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Re-executes this program from sealed memory, so that no container can change the file.
pub fn run_from_sealed_memory() -> Result<Infallible> {
    let name = c"warren-exec";
    // SAFETY: the name is a string that ends with NUL.
    let create =
        |flags| checked(unsafe { memfd_create(name.as_ptr(), MFD_CLOEXEC | MFD_ALLOW_SEALING | flags) });
    let memory = match create(MFD_EXEC) {
        // Older kernels do not support the flag.
        Err(error) if error.raw_os_error() == Some(EINVAL) => create(0),
        other => other,
    };
    let mut memory = File::from(owned(memory?));
    std::io::copy(&mut File::open("/proc/self/exe")?, &mut memory)?;
    // SAFETY: the file is open.
    checked(unsafe { fcntl(memory.as_raw_fd(), F_ADD_SEALS, ALL_SEALS) })?;
    let arguments = [name.as_ptr(), c"sealed".as_ptr(), std::ptr::null()];
    let environment: [*const c_char; 1] = [std::ptr::null()];
    // SAFETY: all lists and strings are terminated, and outlive the call, which does not return on success.
    let result = unsafe {
        syscall(
            number::EXECVEAT,
            memory.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            AT_EMPTY_PATH,
        )
    };
    match checked(result) {
        Ok(_) => Err(Error::other("a call returned that cannot")),
        Err(error) => Err(error),
    }
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

/// Opens a pidfd of a process.
pub fn open_process(pid: u32) -> Result<OwnedFd> {
    // SAFETY: it takes numbers only.
    checked(unsafe { syscall(SYS_PIDFD_OPEN, c_long::from(pid), 0 as c_long) }).map(owned)
}

/// Joins the namespaces of `process`; the PID namespace only for children.
pub fn join_namespaces(process: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the file is open, and this process has one thread.
    checked(unsafe { setns(process.as_raw_fd(), NAMESPACES) }).map(drop)
}

/// The program, as a child that leads a process group.
pub struct ExecChild {
    pid: c_int,
}

/// Why the child could not execute the program: the failed stage, and the errno.
struct ExecStartError {
    step: &'static str,
    errno: i32,
}

/// Stages sent by the child before it exits: the index in this list, then the errno.
const STEPS: [&str; 10] = [
    "cannot set its standard input and output",
    "cannot change to its directory",
    "cannot set its resource limits",
    "cannot install its seccomp filters",
    "cannot set its capabilities",
    "cannot set its groups",
    "cannot set its user",
    "cannot set no_new_privs",
    "no such program",
    "cannot be executed",
];

/// Starts the program of `plan` with `nothing` as its standard input. Returns after its exec.
pub fn spawn(plan: &ExecPlan, nothing: BorrowedFd<'_>) -> std::result::Result<ExecChild, String> {
    let mut ends = [-1; 2];
    // SAFETY: there is room for both numbers.
    checked(unsafe { pipe2(ends.as_mut_ptr(), O_CLOEXEC) }).map_err(|error| format!("pipe: {error}"))?;
    let (mut read, mut write) = (File::from(owned(ends[0])), File::from(owned(ends[1])));
    // SAFETY: this process has one thread, so the child is not restricted after the fork.
    let pid = checked(unsafe { fork() }).map_err(|error| format!("fork: {error}"))?;
    if pid == 0 {
        let ExecStartError { step: stage, errno } = exec_in_container(plan, nothing);
        let position = STEPS.iter().position(|known| *known == stage).unwrap_or(0) as u8;
        let _ = write.write_all(&[&[position][..], &errno.to_le_bytes()].concat());
        // SAFETY: exits the child without running exit handlers of the parent.
        unsafe { _exit(125) };
    }
    drop(write);
    let child = ExecChild { pid };
    let mut message = Vec::new();
    // The other end closes when the program is executed.
    let _ = read.read_to_end(&mut message);
    let Some((position, errno)) = message.split_first() else { return Ok(child) };
    child.reap();
    let stage = STEPS.get(usize::from(*position)).copied().unwrap_or("failed");
    let errno = errno.try_into().map_or(0, i32::from_le_bytes);
    let program = String::from_utf8_lossy(&plan.arguments[0]).into_owned();
    Err(match stage {
        "no such program" => format!("{stage} in the container: {program}"),
        "cannot be executed" => format!("{program} {stage}: {}", Error::from_raw_os_error(errno)),
        stage => format!("{stage}: {}", Error::from_raw_os_error(errno)),
    })
}

fn exec_in_container(plan: &ExecPlan, nothing: BorrowedFd<'_>) -> ExecStartError {
    match apply_plan_and_exec(plan, nothing) {
        Ok(never) => match never {},
        Err(refusal) => refusal,
    }
}

fn step_result<T>(stage: usize, result: Result<T>) -> std::result::Result<T, ExecStartError> {
    let errno = |error: Error| error.raw_os_error().unwrap_or(0);
    result.map_err(|error| ExecStartError { step: STEPS[stage], errno: errno(error) })
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::from_raw_os_error(22))
}

/// Ordered so that each step still has the privileges that it needs.
fn apply_plan_and_exec(
    plan: &ExecPlan,
    nothing: BorrowedFd<'_>,
) -> std::result::Result<Infallible, ExecStartError> {
    // SAFETY: they take numbers of files that are open, and numbers.
    step_result(0, unsafe {
        setsid();
        umask(0o022);
        signal(SIGPIPE, SIG_DFL);
        checked(dup2(nothing.as_raw_fd(), 0)).and_then(|_| checked(dup2(1, 2)))
    })?;
    let directory = step_result(1, c_string(&plan.directory))?;
    // SAFETY: the path ends with NUL.
    step_result(1, checked(unsafe { chdir(directory.as_ptr()) }))?;
    for (resource, soft, hard) in &plan.rlimits {
        let limit = Limit { soft: *soft, hard: *hard };
        // SAFETY: the limit outlives the call.
        step_result(2, checked(unsafe { setrlimit(*resource, &raw const limit) }))?;
    }
    // Without no_new_privs, installing a filter needs privileges that are dropped below.
    if !plan.no_new_privileges {
        step_result(3, install_filters(plan))?;
    }
    step_result(4, drop_bounding_set(plan.capabilities.bounding))?;
    // SAFETY: the list outlives the call; the others take numbers.
    unsafe {
        step_result(5, checked(setgroups(plan.groups.len(), plan.groups.as_ptr())))?;
        step_result(
            4,
            checked(prctl(PR_SET_KEEPCAPS, 1 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong)),
        )?;
        step_result(5, checked(setresgid(plan.gid, plan.gid, plan.gid)))?;
        step_result(6, checked(setresuid(plan.uid, plan.uid, plan.uid)))?;
    }
    step_result(4, set_capabilities(&plan.capabilities))?;
    // SAFETY: they take numbers only. Changing the user clears the first, so it comes after that.
    unsafe {
        step_result(
            0,
            checked(prctl(PR_SET_PDEATHSIG, SIGKILL as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong)),
        )?;
        if plan.no_new_privileges {
            step_result(
                7,
                checked(prctl(PR_SET_NO_NEW_PRIVS, 1 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong)),
            )?;
        }
    }
    if plan.no_new_privileges {
        step_result(3, install_filters(plan))?;
    }
    Err(exec_program(plan))
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
            Err(error) if error.raw_os_error() == Some(22) => break,
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
        let length = u16::try_from(instructions.len() / 8).map_err(|_| Error::from_raw_os_error(22))?;
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
    let (Ok(arguments), Ok(environment)) = (strings(&plan.arguments), strings(&plan.environment)) else {
        return ExecStartError { step: STEPS[9], errno: 22 };
    };
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
            other => return ExecStartError { step: STEPS[9], errno: other },
        }
    }
    ExecStartError { step: STEPS[if worst == ENOENT { 8 } else { 9 }], errno: worst }
}

impl ExecChild {
    /// Waits for its exit: its status, or 128 and the number of the signal that ended it. `None`: it was
    /// killed at the timeout, or because the parent closed the standard input.
    pub fn wait(self, within: Duration) -> Option<i32> {
        let end = Instant::now() + within;
        let process = open_process(self.pid.cast_unsigned()).ok();
        let process = process.as_ref().map_or(-1, |process| process.as_fd().as_raw_fd());
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            // Rounded up, so that it does not wake just before the deadline.
            let millis = c_int::try_from(rest.as_millis().saturating_add(1)).unwrap_or(c_int::MAX);
            let mut polled = [
                PollFd { fd: process, events: POLLIN, revents: 0 },
                PollFd { fd: 0, events: POLLIN, revents: 0 },
            ];
            // SAFETY: pointer and count describe `polled`, which outlives the call.
            let ready = unsafe { poll(polled.as_mut_ptr(), polled.len() as c_ulong, millis) };
            if ready > 0 && polled[0].revents != 0 {
                return Some(self.reap());
            }
            if rest.is_zero() || (ready > 0 && polled[1].revents != 0) {
                // SAFETY: it takes numbers only. The child leads this group and was not reaped, so the
                // number is not reused.
                unsafe { kill(-self.pid, SIGKILL) };
                self.reap();
                return None;
            }
        }
    }

    fn reap(&self) -> i32 {
        let mut status = 0;
        // SAFETY: there is room for the status.
        while let Err(error) = checked(unsafe { waitpid(self.pid, &raw mut status, 0) }) {
            if error.kind() != std::io::ErrorKind::Interrupted {
                return 255;
            }
        }
        match status & 0x7f {
            0 => (status >> 8) & 0xff,
            signal => 128 + signal,
        }
    }
}
