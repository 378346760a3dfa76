//! How a machine becomes a worker, and what keeps it from becoming one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use warren_testkit::netns::{Host, Lab};
use warren_testkit::node::{Node, Settings};
use warren_testkit::scratch::Scratch;
use warren_testkit::wait::eventually;
use warren_testkit::warren::{Ran, Warren};

use crate::e2e::cluster::Cluster;
use crate::e2e::task;
use crate::e2e::world::{BOX, SOON};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const CONFLICT: i32 = 4;
const UNREACHABLE: i32 = 5;
const DENIED: i32 = 6;
const NOT_FOUND: i32 = 3;

/// A machine that is not a member yet.
struct Stranger {
    host: Host,
    scratch: Scratch,
}

impl Stranger {
    fn new(lab: &Lab) -> Stranger {
        Stranger { host: lab.host(), scratch: Scratch::new() }
    }

    /// Runs `warren worker join` to the end, which must not be a worker that runs.
    #[track_caller]
    fn join(&self, manager: &str, token: &str, flags: &[&str]) -> Ran {
        let data = self.scratch.path().join("data").display().to_string();
        let run = self.scratch.path().join("run").display().to_string();
        let socket = self.scratch.path().join("run/containerd/containerd.sock").display().to_string();
        let words = ["worker", "join", manager, "--token", token, "--data-dir", &data, "--run-dir", &run];
        let words = [&words[..], &["--containerd-socket", &socket], flags].concat();
        let warren = Warren::new(&self.scratch.path().join("contexts")).inside(&self.host.netns().path());
        warren.run(&words)
    }

    #[track_caller]
    fn refused(&self, manager: &str, token: &str, flags: &[&str], code: i32, mentions: &str) -> Ran {
        let ran = self.join(manager, token, flags);
        assert_eq!(ran.code, code, "{ran}");
        assert!(ran.stderr.contains(mentions), "should mention {mentions:?}: {ran}");
        let secret = token.rsplit('-').next().unwrap_or_default();
        assert!(secret.len() < 16 || !ran.stderr.contains(secret), "the secret was said: {ran}");
        ran
    }
}

#[track_caller]
fn token(cluster: &Warren, flags: &str) -> String {
    let line = format!("token create --role worker --quiet {flags}");
    cluster.ok(&line.split_whitespace().collect::<Vec<_>>()).trim().to_owned()
}

#[test]
fn a_token_lets_in_whom_it_was_made_for_and_nobody_else() {
    let lab = Lab::new();
    let manager = Node::start_manager(lab.host(), Settings::default());
    let other = Node::start_manager(lab.host(), Settings::default());
    let (warren, api) = (manager.warren(), manager.api().to_string());
    let stranger = Stranger::new(&lab);

    let good = token(&warren, "");
    let cut = &good[..good.len() - 3];
    stranger.refused(&api, cut, &[], USAGE, "characters");
    stranger.refused(&api, &good.replace("WRN-1", "WRN-9"), &[], USAGE, "version 9");
    stranger.refused(&api, "nonsense", &[], USAGE, "WRN-1-");
    let foreign = token(&other.warren(), "");
    stranger.refused(&api, &foreign, &[], DENIED, "another cluster");
    for (flags, code, mentions) in [
        (&["--runtime", "/bin/true"], FAILED, "/bin/true is no runtime"),
        (&["--insecure-registry", "a b"], USAGE, "--insecure-registry"),
        (&["--cpus", "0"], USAGE, "--cpus"),
        (&["--memory", "1"], USAGE, "--memory"),
    ] {
        stranger.refused(&api, &good, flags, code, mentions);
    }
    let nobody = format!("{}:1", manager.host().address());
    stranger.refused(&nobody, &good, &[], UNREACHABLE, &nobody);

    let ids = || {
        let tokens = warren.json(&["token", "ls"]);
        let ids = tokens.as_array().unwrap().iter().map(|token| token["id"].as_str().unwrap().to_owned());
        ids.collect::<BTreeSet<_>>()
    };
    let before = ids();
    let removed = token(&warren, "");
    warren.ok(&["token", "rm", ids().difference(&before).next().unwrap()]);
    stranger.refused(&api, &removed, &[], DENIED, "not known");
    let short = token(&warren, "--ttl 1s");
    let made = Instant::now();
    eventually(SOON, "the token's end", || {
        let age = made.elapsed();
        if age > Duration::from_millis(1500) { Ok(()) } else { Err(format!("it is {age:?} old")) }
    });
    stranger.refused(&api, &short, &[], DENIED, "expired");

    // Once is once; the name belongs to the first.
    let mut first = Node::join(lab.host(), Settings::default(), &manager, "w1");
    let once = token(&warren, "--uses 1");
    let second = Node::join_with(lab.host(), Settings::default(), &manager, "w2", &once);
    let used_up = stranger.refused(&api, &once, &["--node-name", "w3"], DENIED, "used 1 times");
    assert_eq!(used_up.stderr.matches("token create").count(), 1, "what to do is said once: {used_up}");
    let more = token(&warren, "--uses 1");
    let taken = stranger.refused(&api, &more, &["--node-name", "w1"], CONFLICT, "another node is called w1");
    assert_eq!(taken.stderr.matches("--node-name").count(), 1, "what to do is said once: {taken}");
    drop(second);

    // It resumes as the node it was, also if it is told to join once more with a token that is used up.
    let id = first.id().to_owned();
    first.kill();
    first.join_again(&more);
    first.wait_ready();
    assert_eq!(first.id(), id);
    let nodes = warren.json(&["node", "ls"]);
    assert_eq!(nodes.as_array().unwrap().iter().filter(|node| node["id"] == *id).count(), 1, "{nodes}");
}

#[test]
fn a_worker_leaves_when_its_tasks_run_elsewhere() {
    let mut cluster = Cluster::new(2);
    let line = format!(
        "service create web --replicas 4 --image {BOX} --command sleep --arg 1000 --stop-grace 100ms"
    );
    cluster.ok(&line);
    cluster.spread("web", &[("w1", 2), ("w2", 2)]);
    let mut leaving = cluster.workers.pop().unwrap();
    let data = leaving.data_dir().display().to_string();
    leaving.local().ok(&["worker", "leave", "--data-dir", &data]);
    cluster.spread("web", &[("w1", 4)]);
    let status = leaving.process().wait(Duration::from_secs(30));
    assert_eq!(status.code(), Some(NOT_FOUND), "{}", leaving.process().log_tail(20));
    let nodes = cluster.warren().json(&["node", "ls"]);
    let names: Vec<_> = nodes.as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["w1"]);
    assert!(task::pids(&cluster.workers[0]).len() == 4);
    // Nothing of it is left to run, and it says so.
    let refused = leaving.local().refused(&["worker", "run", "--data-dir", &data], NOT_FOUND);
    assert!(refused.contains("holds no worker"), "{refused}");
}
