//! How a machine becomes a worker, and the errors on the way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use warren_testkit::cli::{CommandOutput, WarrenCli};
use warren_testkit::netns::{LabHost, NetworkSwitch};
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::scratch::ScratchDir;
use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, SOON};
use crate::e2e::task_document;

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const CONFLICT: i32 = 4;
const UNREACHABLE: i32 = 5;
const DENIED: i32 = 6;
const NOT_FOUND: i32 = 3;

/// A machine that is not a member yet.
struct UnjoinedMachine {
    host: LabHost,
    scratch: ScratchDir,
}

impl UnjoinedMachine {
    fn new(lab: &NetworkSwitch) -> UnjoinedMachine {
        UnjoinedMachine { host: lab.add_host(), scratch: ScratchDir::new() }
    }

    /// Runs `warren worker join` to its end, which must not be a running worker.
    #[track_caller]
    fn join(&self, manager: &str, token: &str, flags: &[&str]) -> CommandOutput {
        let data = self.scratch.path().join("data").display().to_string();
        let run = self.scratch.path().join("run").display().to_string();
        let socket = self.scratch.path().join("run/containerd/containerd.sock").display().to_string();
        let words = ["worker", "join", manager, "--token", token, "--data-dir", &data, "--run-dir", &run];
        let words = [&words[..], &["--containerd-socket", &socket], flags].concat();
        let warren =
            WarrenCli::new(&self.scratch.path().join("contexts")).in_netns(&self.host.netns().path());
        warren.run(&words)
    }

    #[track_caller]
    fn refused(
        &self,
        manager: &str,
        token: &str,
        flags: &[&str],
        code: i32,
        mentions: &str,
    ) -> CommandOutput {
        let ran = self.join(manager, token, flags);
        assert_eq!(ran.code, code, "{ran}");
        assert!(ran.stderr.contains(mentions), "should mention {mentions:?}: {ran}");
        let secret = token.rsplit('-').next().unwrap_or_default();
        assert!(secret.len() < 16 || !ran.stderr.contains(secret), "the secret was printed: {ran}");
        ran
    }
}

#[track_caller]
fn token(cluster: &WarrenCli, flags: &str) -> String {
    let line = format!("token create --role worker --quiet {flags}");
    cluster.run_ok(&line.split_whitespace().collect::<Vec<_>>()).trim().to_owned()
}

#[test]
fn token_admits_only_its_role() {
    let lab = NetworkSwitch::new();
    let manager = LabNode::start_manager(lab.add_host(), NodeOptions::default());
    let other = LabNode::start_manager(lab.add_host(), NodeOptions::default());
    let (warren, api) = (manager.warren(), manager.api().to_string());
    let stranger = UnjoinedMachine::new(&lab);

    let good = token(&warren, "");
    let cut = &good[..good.len() - 3];
    stranger.refused(&api, cut, &[], USAGE, "characters");
    stranger.refused(&api, &good.replace("WRN-1", "WRN-9"), &[], USAGE, "version 9");
    stranger.refused(&api, "nonsense", &[], USAGE, "WRN-1-");
    let foreign = token(&other.warren(), "");
    stranger.refused(&api, &foreign, &[], DENIED, "another cluster");
    for (flags, code, mentions) in [
        (&["--runtime", "/bin/true"], FAILED, "/bin/true is not an OCI runtime"),
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
    warren.run_ok(&["token", "rm", ids().difference(&before).next().unwrap()]);
    stranger.refused(&api, &removed, &[], DENIED, "unknown token");
    let short = token(&warren, "--ttl 1s");
    let made = Instant::now();
    eventually(SOON, "the token's end", || {
        let age = made.elapsed();
        if age > Duration::from_millis(1500) { Ok(()) } else { Err(format!("it is {age:?} old")) }
    });
    stranger.refused(&api, &short, &[], DENIED, "expired");

    // A token for one use works once; the name belongs to the first node.
    let mut first = LabNode::join(lab.add_host(), NodeOptions::default(), &manager, "w1");
    let once = token(&warren, "--uses 1");
    let second = LabNode::join_with(lab.add_host(), NodeOptions::default(), &manager, "w2", &once);
    let used_up = stranger.refused(&api, &once, &["--node-name", "w3"], DENIED, "used 1 times");
    assert_eq!(used_up.stderr.matches("token create").count(), 1, "the hint is printed once: {used_up}");
    let more = token(&warren, "--uses 1");
    let taken = stranger.refused(&api, &more, &["--node-name", "w1"], CONFLICT, "node w1 already exists");
    assert_eq!(taken.stderr.matches("--node-name").count(), 1, "the hint is printed once: {taken}");
    drop(second);

    // It resumes as the same node, also if it is started again with `join` and an exhausted token.
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
    let mut cluster = WorkerCluster::new(2);
    let line = format!(
        "service create web --replicas 4 --image {BOX} --command sleep --arg 1000 --stop-grace 100ms"
    );
    cluster.ok(&line);
    cluster.wait_spread("web", &[("w1", 2), ("w2", 2)]);
    let mut leaving = cluster.workers.pop().unwrap();
    let data = leaving.data_dir().display().to_string();
    leaving.local().run_ok(&["worker", "leave", "--data-dir", &data]);
    cluster.wait_spread("web", &[("w1", 4)]);
    let status = leaving.process().wait(Duration::from_secs(30));
    assert_eq!(status.code(), Some(NOT_FOUND), "{}", leaving.process().log_tail(20));
    let nodes = cluster.warren().json(&["node", "ls"]);
    let names: Vec<_> = nodes.as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["w1"]);
    assert!(task_document::pids(&cluster.workers[0]).len() == 4);
    // None of its processes is left, and it reports that.
    let refused = leaving.local().run_refused(&["worker", "run", "--data-dir", &data], NOT_FOUND);
    assert!(refused.contains("has no worker"), "{refused}");
}

#[test]
fn user_logs_in_once_and_is_refused_after_the_removal() {
    let lab = NetworkSwitch::new();
    let manager = LabNode::start_manager(lab.add_host(), NodeOptions::default());
    let (warren, api) = (manager.warren(), manager.api().to_string());
    let (own, other) = (UnjoinedMachine::new(&lab), UnjoinedMachine::new(&lab));
    let token = warren.run_ok(&["user", "create", "ann", "--role", "viewer", "--quiet"]);
    let login = |machine: &UnjoinedMachine| {
        let file = machine.scratch.path().join("token");
        std::fs::write(&file, &token).unwrap();
        let cli =
            WarrenCli::new(&machine.scratch.path().join("contexts")).in_netns(&machine.host.netns().path());
        let ran = cli.run(&["login", &api, "--token-file", file.to_str().unwrap()]);
        (cli, ran)
    };
    let denied = |ran: CommandOutput, reason: &str| {
        assert_eq!(ran.code, DENIED, "{ran}");
        assert!(ran.stderr.contains(reason), "should mention {reason:?}: {ran}");
    };
    let (ann, logged_in) = login(&own);
    assert!(logged_in.stdout.contains("logged in as viewer ann"), "{logged_in}");
    denied(login(&other).1, "unknown login token");

    ann.run_ok(&["service", "ls"]);
    denied(ann.run(&["network", "create", "inner"]), "needs the role operator");
    warren.run_ok(&["user", "update", "ann", "--role", "operator"]);
    ann.run_ok(&["network", "create", "inner"]);
    denied(ann.run(&["user", "ls"]), "needs the role admin");
    let privileged = ["service", "create", "root", "--image", "warren.local/box:1", "--privileged"];
    denied(ann.run(&privileged), "task.privileged");

    warren.run_ok(&["user", "rm", "ann"]);
    denied(ann.run(&["service", "ls"]), "is revoked");
}
