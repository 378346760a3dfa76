//! warren-exec: runs a program inside a running container.
//!
//! ```text
//! warren-exec        with a socket as its standard input, for the messages of `plan.rs`
//! ```
//!
//! It starts a child in the container's cgroups, so that resource usage is charged to the container, and in its
//! namespaces, with its user, privileges and filters, and waits for it. No process of the container sees or traces one
//! of this program that has more rights than the container. The program has standard output and standard error of
//! `warren-exec`.
//!
//! When its parent closes the socket, the program and its process group are killed; processes that left the group
//! belong to the container, as after `docker exec`.
//!
//! A container must never get write access to a file of the node (CVE-2019-5736: an image whose program is
//! `/proc/self/exe`): so it refuses to run from a file that is not sealed memory. It is single-threaded
//! without dependencies. Start reading at `run`; `inside.rs` has the system calls.
#![allow(dead_code)] // The shared modules also have what only the agent or the logger needs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

mod cgroups;
mod child;
mod inside;
#[path = "../plan.rs"]
mod plan;
mod system;

use cgroups::ContainerCgroups;
use plan::{ExecFailure, ExecPlan, ExecReply};

/// Limit of a plan, which has an environment and filters.
const MAX_PLAN_BYTES: usize = 16 << 20;
/// Time for the parent to send the plan.
const PLAN_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the program could not be started.
type Refusal = (ExecFailure, String);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match &words[..] {
        ["--version"] => {
            println!("warren-exec 1");
            return ExitCode::SUCCESS;
        }
        [] if !inside::is_sealed() => Err(other("must be executed from sealed memory".to_owned())),
        [] => run(),
        _ => Err(other("must be called without arguments".to_owned())),
    };
    if let Err((failure, reason)) = done {
        reply(&ExecReply::Failed(failure, reason));
    }
    ExitCode::SUCCESS
}

fn other(reason: String) -> Refusal {
    (ExecFailure::Other, reason)
}

/// A parent that does not read it does not need it.
fn reply(reply: &ExecReply) {
    let _ = system::inherited_file(0).write_all(format!("{}\n", reply.to_line()).as_bytes());
}

fn run() -> Result<(), Refusal> {
    inside::make_undumpable().map_err(|error| other(format!("cannot become undumpable: {error}")))?;
    let plan = read_plan().ok_or_else(|| other("invalid plan on standard input".to_owned()))?;
    let ended = || (ExecFailure::Ended, "the container has ended".to_owned());
    let container = child::open_process(plan.pid).map_err(|_| ended())?;
    let cgroups = ContainerCgroups::of(&plan).ok_or_else(ended)?;
    // A process that joins a paused container stops as well, and cannot be killed before it resumes.
    if cgroups.is_paused() {
        return Err(other("the container is paused".to_owned()));
    }
    let input = open_input(&plan).map_err(|error| other(format!("cannot open its input: {error}")))?;
    copy_oom_score(&plan);
    let Some(child) = inside::spawn(&plan, &cgroups, container.as_fd(), input)? else { return Ok(()) };
    reply(&ExecReply::Started(child.pid()));
    if let Some(code) = child.wait() {
        reply(&ExecReply::Exited(code));
    }
    Ok(())
}

fn open_input(plan: &ExecPlan) -> std::io::Result<Option<File>> {
    match plan.input.is_empty() {
        true => Ok(None),
        false => File::open(OsStr::from_bytes(&plan.input)).map(Some),
    }
}

fn read_plan() -> Option<ExecPlan> {
    let end = Instant::now() + PLAN_TIMEOUT;
    let mut length = [0; 4];
    read_exact(&mut length, end)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_PLAN_BYTES {
        return None;
    }
    let mut body = vec![0; length];
    read_exact(&mut body, end)?;
    ExecPlan::decode(&body)
}

/// Fills `part` from the standard input.
fn read_exact(mut part: &mut [u8], end: Instant) -> Option<()> {
    // Without a buffer: what was read ahead would not be waited for.
    let mut input = system::inherited_file(0);
    while !part.is_empty() {
        let rest = end.saturating_duration_since(Instant::now());
        let is_ready = system::poll_readable([Some(0), None], Some(rest))[0];
        let count = match is_ready.then(|| input.read(part)) {
            None if Instant::now() < end => continue,
            Some(Ok(count)) if count > 0 => count,
            _ => return None,
        };
        part = &mut part[count..];
    }
    Some(())
}

/// Otherwise the OOM killer would rank it differently from its container.
fn copy_oom_score(plan: &ExecPlan) {
    if let Ok(score) = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", plan.pid)) {
        let _ = std::fs::write("/proc/self/oom_score_adj", score);
    }
}
