//! warren-exec: runs a program inside a container that runs already, for a check.
//!
//! ```text
//! warren-exec sealed        with a plan on its standard input: see `plan.rs`
//! ```
//!
//! It joins the container's cgroups, so that what the program uses is the container's, then its namespaces, starts a
//! child there with the container's user, rights and filters, and waits for it. What the program writes comes out of
//! the standard output; what came of it is said in one line on the standard error.
//!
//! When its time is over, or when whoever started this closes the standard input, the program and its process group are
//! killed; what had left the group is the container's own, as after `docker exec`.
//!
//! A container must never get hold of a file that the node runs (CVE-2019-5736: an image whose program is
//! `/proc/self/exe`): so the first thing done is to run again from a copy in sealed memory. It is one thread without
//! dependencies. Start reading at `run`; `inside.rs` has the system calls.
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

use plan::{Answer, Plan};

/// A plan has an environment and filters; more than this is not one.
const LARGEST_PLAN: usize = 16 << 20;

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
            Err(why) => Answer::Failed(format!("cannot run from sealed memory: {why}")),
        },
        ["sealed"] => run().unwrap_or_else(Answer::Failed),
        _ => Answer::Failed("must be called without arguments".to_owned()),
    };
    // Whoever does not read it does not want it.
    let _ = writeln!(std::io::stderr(), "{}", answer.to_line());
    ExitCode::SUCCESS
}

fn run() -> Result<Answer, String> {
    inside::hide().map_err(|error| format!("cannot hide from the container: {error}"))?;
    let plan = read_plan().ok_or("was told nothing that makes sense")?;
    let container = inside::open_process(plan.pid).map_err(|_| "the container has ended".to_owned())?;
    let cgroups = cgroups(&plan)?;
    // Whoever joins a paused container stops as well, and cannot even be killed before that goes on.
    if cgroups.iter().any(|cgroup| is_paused(cgroup)) {
        return Err("the container is paused".to_owned());
    }
    take_its_oom_score(&plan);
    for cgroup in cgroups {
        let joined = OpenOptions::new().write(true).open(&cgroup).and_then(|mut file| file.write_all(b"0"));
        joined.map_err(|error| format!("cannot join {}: {error}", cgroup.display()))?;
    }
    let nothing = File::open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
    inside::enter(container.as_fd()).map_err(|error| format!("cannot enter the container: {error}"))?;
    let child = inside::start(&plan, nothing.as_fd())?;
    match child.wait(Duration::from_millis(plan.timeout_ms)) {
        Some(code) => Ok(Answer::Exited(code)),
        None => Ok(Answer::Late),
    }
}

fn read_plan() -> Option<Plan> {
    let mut input = std::io::stdin().lock();
    let mut length = [0; 4];
    input.read_exact(&mut length).ok()?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LARGEST_PLAN {
        return None;
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).ok()?;
    Plan::decode(&body)
}

/// The files by which its cgroups are joined. The process id may be another process's by now, whose cgroups are not the
/// container's: what was opened before is that process then, and is not entered.
fn cgroups(plan: &Plan) -> Result<Vec<PathBuf>, String> {
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
    // A hierarchy that is not mounted here bounds nothing.
    files.retain(|file| file.exists());
    if is_its { Ok(files) } else { Err("the container has ended".to_owned()) }
}

/// What the freezer's files beside the one that is joined say: `freezer.state` of version 1, `cgroup.events` of
/// version 2.
fn is_paused(cgroup: &Path) -> bool {
    let says = |name: &str, paused: &[&str]| {
        std::fs::read_to_string(cgroup.with_file_name(name))
            .is_ok_and(|text| text.lines().any(|line| paused.contains(&line)))
    };
    says("freezer.state", &["FROZEN", "FREEZING"]) || says("cgroup.events", &["frozen 1"])
}

/// Else it would be ended when the node lacks memory before or after what it belongs to.
fn take_its_oom_score(plan: &Plan) {
    if let Ok(score) = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", plan.pid)) {
        let _ = std::fs::write("/proc/self/oom_score_adj", score);
    }
}
