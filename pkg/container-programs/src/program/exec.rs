//! warren-exec: runs a program inside a running container, for a health check.
//!
//! ```text
//! warren-exec sealed        with a plan on its standard input: see `plan.rs`
//! ```
//!
//! It joins the container's cgroups, so that resource usage is charged to the container, then its
//! namespaces, starts a child there with the container's user, privileges and filters, and waits for it.
//! The program's output goes to standard output; the result is one line on standard error.
//!
//! At the timeout, or when its parent closes the standard input, the program and its process group are
//! killed; processes that left the group belong to the container, as after `docker exec`.
//!
//! A container must never get write access to a file of the node (CVE-2019-5736: an image whose program is
//! `/proc/self/exe`): so it first re-executes itself from a copy in sealed memory. It is single-threaded
//! without dependencies. Start reading at `run`; `inside.rs` has the system calls.
#![allow(dead_code)] // The shared module also has what only the agent needs.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

mod inside;
#[path = "../plan.rs"]
mod plan;

use plan::{ExecOutcome, ExecPlan};

/// Limit of a plan, which has an environment and filters.
const MAX_PLAN_BYTES: usize = 16 << 20;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answer = match &words[..] {
        ["--version"] => {
            println!("warren-exec 1");
            return ExitCode::SUCCESS;
        }
        [] => match inside::run_from_sealed_memory() {
            Ok(never) => match never {},
            Err(why) => ExecOutcome::Failed(format!("cannot run from sealed memory: {why}")),
        },
        ["sealed"] => run().unwrap_or_else(ExecOutcome::Failed),
        _ => ExecOutcome::Failed("must be called without arguments".to_owned()),
    };
    // A parent that does not read the result does not need it.
    let _ = writeln!(std::io::stderr(), "{}", answer.to_line());
    ExitCode::SUCCESS
}

fn run() -> Result<ExecOutcome, String> {
    inside::make_undumpable().map_err(|error| format!("cannot become undumpable: {error}"))?;
    let plan = read_plan().ok_or("invalid plan on standard input")?;
    let container = inside::open_process(plan.pid).map_err(|_| "the container has ended".to_owned())?;
    let cgroups = cgroup_files(&plan)?;
    // A process that joins a paused container stops as well, and cannot be killed before it resumes.
    if cgroups.iter().any(|cgroup| is_paused(cgroup)) {
        return Err("the container is paused".to_owned());
    }
    copy_oom_score(&plan);
    for cgroup in cgroups {
        let joined = OpenOptions::new().write(true).open(&cgroup).and_then(|mut file| file.write_all(b"0"));
        joined.map_err(|error| format!("cannot join {}: {error}", cgroup.display()))?;
    }
    let nothing = File::open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
    inside::join_namespaces(container.as_fd())
        .map_err(|error| format!("cannot enter the container: {error}"))?;
    let child = inside::spawn(&plan, nothing.as_fd())?;
    match child.wait(Duration::from_millis(plan.timeout_ms)) {
        Some(code) => Ok(ExecOutcome::Exited(code)),
        None => Ok(ExecOutcome::TimedOut),
    }
}

fn read_plan() -> Option<ExecPlan> {
    let mut input = std::io::stdin().lock();
    let mut length = [0; 4];
    input.read_exact(&mut length).ok()?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_PLAN_BYTES {
        return None;
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).ok()?;
    ExecPlan::decode(&body)
}

/// The `cgroup.procs` files of its cgroups. The pid may have been reused by a process outside the
/// container: then the pidfd opened before refers to that process, which is not entered.
fn cgroup_files(plan: &ExecPlan) -> Result<Vec<PathBuf>, String> {
    let path = format!("/proc/{}/cgroup", plan.pid);
    let text = std::fs::read_to_string(&path).map_err(|_| "the container has ended".to_owned())?;
    let is_unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let mut files = Vec::new();
    let mut is_its = false;
    for line in text.lines() {
        // "4:cpu,cpuacct:/path", "1:name=systemd:/path", "0::/path"
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        if !path.ends_with(&plan.cgroup) {
            continue;
        }
        is_its = true;
        let hierarchy = match controllers {
            "" if is_unified => String::new(),
            "" => "/unified".to_owned(),
            named => format!("/{}", named.strip_prefix("name=").unwrap_or(named)),
        };
        files.push(PathBuf::from(format!("/sys/fs/cgroup{hierarchy}{path}/cgroup.procs")));
    }
    // A hierarchy that is not mounted has no limits.
    files.retain(|file| file.exists());
    if is_its { Ok(files) } else { Err("the container has ended".to_owned()) }
}

/// Reads the freezer state next to the joined file: `freezer.state` of version 1, `cgroup.events` of
/// version 2.
fn is_paused(cgroup: &Path) -> bool {
    let says = |name: &str, paused: &[&str]| {
        std::fs::read_to_string(cgroup.with_file_name(name))
            .is_ok_and(|text| text.lines().any(|line| paused.contains(&line)))
    };
    says("freezer.state", &["FROZEN", "FREEZING"]) || says("cgroup.events", &["frozen 1"])
}

/// Otherwise the OOM killer would rank it differently from its container.
fn copy_oom_score(plan: &ExecPlan) {
    if let Ok(score) = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", plan.pid)) {
        let _ = std::fs::write("/proc/self/oom_score_adj", score);
    }
}
