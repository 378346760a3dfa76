//! Why objects are as they are: one state per case.

mod certificates;

use std::time::Duration;

use warren_core::state::ObjectKind;
use warren_core::why::{CERTIFICATE, Cause, LastCheck, Observations, Severity, WhyAnswer, WhyTarget, why};
use warren_core::*;
use warren_types::spec::{HealthCheck, Probe};
use warren_types::*;

use crate::test_cluster::*;

/// The answer about an object, named as on the command line.
#[track_caller]
fn answer(world: &TestCluster, observations: &Observations, object: &str) -> WhyAnswer {
    let target = match object.split_once('/') {
        Some((CERTIFICATE, name)) => WhyTarget::find_certificate(&world.state, name),
        Some((noun, name)) => WhyTarget::find(&world.state, ObjectKind::of_noun(noun), name),
        None => WhyTarget::find(&world.state, None, object),
    };
    let target = target.unwrap();
    why(&world.state, observations, &target, world.now).unwrap()
}

/// The codes of a cause and what it follows from: `degraded(back-off(failed))`.
fn codes(cause: &Cause) -> String {
    let inner: Vec<String> = cause.causes.iter().map(codes).collect();
    match inner.is_empty() {
        true => cause.code.to_owned(),
        false => format!("{}({})", cause.code, inner.join(", ")),
    }
}

/// All text of a cause.
fn texts(cause: &Cause) -> String {
    let own = [cause.sentence.clone(), cause.evidence.join("\n"), cause.action.clone().unwrap_or_default()];
    own.into_iter().chain(cause.causes.iter().map(texts)).collect::<Vec<_>>().join("\n")
}

/// Checks the codes, how good it is, and that the text mentions something.
#[track_caller]
fn check(world: &TestCluster, object: &str, severity: Severity, expected: &str, mentions: &[&str]) {
    check_observed(world, &Observations::default(), object, severity, expected, mentions);
}

#[track_caller]
fn check_observed(
    world: &TestCluster,
    observations: &Observations,
    object: &str,
    severity: Severity,
    expected: &str,
    mentions: &[&str],
) {
    let answer = answer(world, observations, object);
    let text = texts(&answer.cause);
    assert_eq!((codes(&answer.cause).as_str(), answer.cause.severity), (expected, severity), "{text}");
    for mentioned in mentions {
        assert!(text.contains(mentioned), "{mentioned:?} is not in:\n{text}");
    }
    assert_well_formed(&answer.cause);
}

/// What is wrong has evidence or a cause, and the last cause says what to do.
#[track_caller]
fn assert_well_formed(cause: &Cause) {
    assert!(!cause.sentence.is_empty() && !cause.code.is_empty(), "{cause:?}");
    assert!(!cause.sentence.ends_with('.'), "{cause:?}");
    let is_explained = !cause.evidence.is_empty() || !cause.causes.is_empty() || cause.action.is_some();
    assert!(cause.severity < Severity::Problem || is_explained, "{cause:?}");
    cause.causes.iter().for_each(assert_well_formed);
}

fn web(replicas: u32) -> TestCluster {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, spec("web", replicas));
    world.settle();
    world.advance_time(SETTLED);
    world
}

/// A task of `web` with what its worker reported.
fn reported(state: TaskState, reason: &str) -> TestCluster {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, spec("web", 1));
    world.reconcile(1);
    world.schedule();
    // Progress is not replicated, but a worker's report may be, with any state.
    let session = world.state.node(&node_id(1)).unwrap().session;
    let sent = TaskReport { reason: reason.into(), ready: false, ..report(task_id(1, 1), 1, state) };
    world.accept(Command::ReportTasks { node: node_id(1), session, reports: vec![sent], at: world.now });
    world
}

use Severity::{Ok as Fine, Problem, Waiting};

#[test]
fn healthy_objects_say_so() {
    let world = web(2);
    check(&world, "service/web", Fine, "healthy(running, running)", &["web has 2 of 2 tasks ready"]);
    check(&world, "web.1", Fine, "running", &["web.1 runs on node node-"]);
    check(&world, "node-1", Fine, "node-ready", &["has 1 task", "free: "]);
    check(&world, "network/default", Fine, "network-ready", &["services in it: web"]);
    let mut world = web(0);
    check(&world, "web", Fine, "scaled-to-zero", &["warren service scale web=1"]);
    world.secret(1, "key", 1);
    check(&world, "secret/key", Fine, "up-to-date", &["no service uses it"]);
}

#[test]
fn unplaced_tasks_name_the_refusal_and_what_helps() {
    let unplaced = |happens: fn(&mut TestCluster), spec: ServiceSpec| {
        let mut world = TestCluster::with_nodes(2);
        happens(&mut world);
        world.service(1, spec);
        world.settle();
        world
    };
    let refused = "no-ready-task(not-placed)";
    let check = |world: TestCluster, mentions: &[&str]| check(&world, "web", Problem, refused, mentions);
    let large = || reserving("web", 1, resources(0, 9000));
    check(
        unplaced(|_| {}, large()),
        &["no node is suitable for web.1", "2 lack memory (need 9000MiB, best has 1GiB)", "--reserve-memory"],
    );
    let drained = |world: &mut TestCluster| {
        (1..=2).for_each(|number| world.availability(number, Availability::Drain));
    };
    check(
        unplaced(drained, spec("web", 1)),
        &["2 are drained", "warren node update node-1 --availability active"],
    );
    let tainted =
        |world: &mut TestCluster| (1..=2).for_each(|number| world.taint(number, &["gpu:NoSchedule"], &[]));
    check(unplaced(tainted, spec("web", 1)), &["2 have a taint", "--toleration-add"]);
    let constrained = constrained("web", 1, &["node.labels.zone == b"]);
    check(unplaced(|_| {}, constrained), &["2 do not meet \"node.labels.zone == b\"", "--label-add"]);
    let full = |world: &mut TestCluster| {
        (1..=2).for_each(|number| world.conditions(number, &[NodeCondition::DiskPressure]));
    };
    check(unplaced(full, spec("web", 1)), &["2 are under disk pressure", "warren why node/node-1"]);
    let mut world = TestCluster::new();
    world.service(1, spec("web", 1));
    world.reconcile(1);
    check(world, &["no node has joined yet", "warren token create --role worker"]);
}

#[test]
fn failed_steps_have_codes_and_actions() {
    let check = |state: TaskState, reason: &str, severity: Severity, code: &str, mentions: &[&str]| {
        let world = reported(state, reason);
        check(&world, "web.1", severity, code, mentions);
    };
    use TaskState::{Preparing, Ready, Rejected, Starting};
    let pull =
        "pulling image: registry r.example has no image demo:1; check its name and tag, or push it first";
    check(Preparing, pull, Problem, "image-pull-failed", &["cannot get its image on node node-1", pull]);
    check(Rejected, pull, Problem, "image-pull-failed", &["warren registry login"]);
    let unresolved = "managers cannot resolve image demo:1: cannot reach registry docker.io: no route";
    check(Preparing, unresolved, Problem, "image-not-resolved", &["web.1", "--resolve-image worker"]);
    let unsigned = "managers do not admit image demo:1: its registry has no cosign signature of sha256:00";
    check(Preparing, unsigned, Problem, "image-not-admitted", &["web.1", "cosign sign", unsigned]);
    let progress = "pulling image: 1 of 2 layers, 3 of 9 MiB";
    check(
        Preparing,
        progress,
        Waiting,
        "pulling-image",
        &["waits for its image on node node-1 for 0s", progress],
    );
    check(Preparing, "", Waiting, "preparing", &["volumes"]);
    check(Preparing, "creating volumes: no such directory", Problem, "volume-failed", &["no such directory"]);
    check(Preparing, "fetching secrets and configs: gone", Problem, "secrets-failed", &["warren secret ls"]);
    let taken =
        "reserving published ports: port 80 is in use by nginx (pid 7); stop it or publish another port";
    check(Ready, taken, Problem, "port-in-use", &["nginx", "warren service update web --publish-add"]);
    check(Starting, "starting process: the command \"x\" cannot be run", Problem, "start-failed", &["web"]);
}

#[test]
fn ended_processes_are_told_with_their_exit() {
    let ended = |state: TaskState, attempt: u32, exit: TaskExit, reason: &str| {
        let mut world = web(1);
        let sent = TaskReport {
            exit: Some(exit),
            reason: reason.into(),
            ready: state == TaskState::Running,
            ..report(task_id(1, 1), attempt, state)
        };
        world.report(sent);
        world
    };
    let failed = TaskExit { code: 3, out_of_memory: false };
    let killed = TaskExit { code: 137, out_of_memory: true };
    let again = "exited with code 3; attempt 2 starts at 14:30:05 UTC";
    let world = ended(TaskState::Starting, 2, failed, again);
    check(
        &world,
        "web",
        Problem,
        "no-ready-task(restarting)",
        &["exit code 3", again, "warren service logs web"],
    );
    assert_eq!(answer(&world, &Observations::default(), "web.1").cause.log_task, Some(task_id(1, 1)));
    let world = ended(TaskState::Starting, 2, killed, "ran out of memory");
    check(&world, "web.1", Problem, "restarting", &["it ran out of memory", "--memory SIZE"]);
    let world = ended(TaskState::Running, 3, failed, "");
    check(&world, "web.1", Problem, "restarted", &["attempt 3", "exit code 3"]);
    let mut world = ended(TaskState::Failed, 4, failed, "exited with code 3; 4 attempts in 20s; given up");
    check(&world, "web.1", Problem, "failed", &["given up", "exit code 3"]);
    world.reconcile(1);
    check(&world, "web", Problem, "no-ready-task(back-off(failed))", &["failed", "given up"]);
    let world = ended(TaskState::Failed, 1, killed, "ran out of memory");
    check(&world, "web.1", Problem, "out-of-memory", &["web.1 failed on node"]);
}

#[test]
fn unready_tasks_show_their_last_check() {
    let mut world = TestCluster::with_nodes(2);
    let mut spec = spec("web", 1);
    spec.task.health = Some(HealthCheck::new(Probe::Tcp { port: 80 }));
    world.service(1, spec);
    world.reconcile(1);
    world.schedule();
    let unready = |health, reason: &str| TaskReport {
        health,
        reason: reason.into(),
        ready: false,
        ..report(task_id(1, 1), 1, TaskState::Running)
    };
    world.report(unready(Health::Starting, "no health check has succeeded yet"));
    let mut observed = Observations::default();
    let check = LastCheck { at: world.now, is_ok: false, output: "connection refused\n".into() };
    observed.checks.insert(task_id(1, 1), check);
    let shown = ["last health check at 2026-11-20T14:30:00Z: failed: connection refused"];
    check_observed(&world, &observed, "web", Waiting, "no-ready-task(health-starting)", &shown);
    world.report(unready(Health::Unhealthy, "unhealthy: refused (3 consecutive failures)"));
    let shown = [shown[0], "unhealthy: refused (3 consecutive failures)", "warren service logs web"];
    check_observed(&world, &observed, "web", Problem, "no-ready-task(unhealthy)", &shown);
}

#[test]
fn rollouts_are_told() {
    let mut world = web(2);
    world.update_image(1, "demo:2");
    world.reconcile(1);
    check(&world, "web", Waiting, "updating(updating, placing)", &["0 of 2", "revision"]);
}

#[test]
fn failed_updates_are_told() {
    let fail = |spec: ServiceSpec| {
        let mut world = TestCluster::with_nodes(2);
        world.service(1, spec);
        world.settle();
        world.advance_time(SETTLED);
        world.settle();
        world.update_image(1, "demo:2");
        world.reconcile(1);
        world.schedule();
        let newest = world.state.tasks_of(&service_id(1)).next_back().unwrap().id;
        let sent = TaskReport { reason: "exited with code 1".into(), ..report(newest, 1, TaskState::Failed) };
        world.report(sent);
        world.reconcile(1);
        world
    };
    let world = fail(pausing(spec("web", 1)));
    let found = answer(&world, &Observations::default(), "web");
    assert!(codes(&found.cause).contains("update-paused"), "{}", codes(&found.cause));
    assert!(texts(&found.cause).contains("warren service rollback web"));
    let world = fail(spec("web", 1));
    let found = answer(&world, &Observations::default(), "web");
    assert!(codes(&found.cause).contains("rolled-back"), "{}", codes(&found.cause));
    assert_eq!(found.cause.severity, Problem);
}

#[test]
fn stopping_and_lost_tasks_are_told() {
    let mut world = web(1);
    world.remove(1);
    world.reconcile(1);
    check(
        &world,
        "web",
        Waiting,
        "removing(stopping)",
        &["web is being removed; 1 task left", "grace period"],
    );
    let mut world = web(1);
    let node = world.task(1, 1).node.unwrap().0.0;
    world.set_down(node);
    check(&world, "web", Problem, "no-ready-task(task-lost(node-down))", &["is DOWN", "warren node rm"]);
    check(
        &world,
        &format!("node/node-{node}"),
        Problem,
        "node-down",
        &["it still has the tasks web.1", "8s"],
    );
}

#[test]
fn nodes_tell_conditions_and_what_users_set() {
    let mut world = web(2);
    world.conditions(1, &[NodeCondition::NetworkDegraded]);
    let mut observed = Observations::default();
    observed.conditions.insert(node_id(1), vec!["no route to node-2".into()]);
    let shown = ["network degraded", "no route to node-2"];
    check_observed(&world, &observed, "node-1", Problem, "node-ready(network-degraded)", &shown);
    let network = "network-degraded(node-ready(network-degraded))";
    check_observed(&world, &observed, "network/default", Problem, network, &["on 1 of 2 nodes"]);
    world.conditions(1, &[]);
    world.availability(1, Availability::Pause);
    check(&world, "node-1", Fine, "node-ready(paused)", &["--availability active"]);
    world.availability(1, Availability::Drain);
    check(&world, "node-1", Waiting, "node-ready(draining)", &["is being drained; 1 task left"]);
    world.taint(2, &["gpu:NoSchedule"], &[]);
    check(&world, "node-2", Fine, "node-ready(tainted)", &["gpu:NoSchedule"]);
    let (id, at) = (node_id(7), world.now);
    let (name, description) = ("new".parse().unwrap(), description(resources(1000, 512)));
    let (role, taints) = (NodeRole::Worker, Default::default());
    world.accept(Command::RegisterNode { id, name, role, description, taints, at });
    check(&world, "new", Problem, "never-connected", &["warren worker run"]);
}

#[test]
fn volumes_tell_where_they_are() {
    let mut world = TestCluster::with_nodes(2);
    world.volume(1, "data", None);
    check(&world, "data", Fine, "volume-unbound", &["nothing uses it"]);
    world.service(1, with_volumes("db", 1, &["data"]));
    world.settle();
    check(&world, "volume/data", Fine, "volume-ready", &["used by db.1"]);
    let node = world.task(1, 1).node.unwrap().0.0;
    world.set_down(node);
    check(&world, "data", Problem, "volume-unreachable(node-down)", &["its tasks can run nowhere else"]);
    world.remove_node(node);
    check(&world, "data", Problem, "volume-lost", &["warren volume rm data"]);
}

#[test]
fn older_versions_of_secrets_are_told() {
    let mut world = TestCluster::with_nodes(1);
    world.secret(1, "key", 1);
    world.service(1, with_secrets("web", 1, &["key"]));
    world.settle();
    world.update_secret(1, 2);
    check(&world, "key", Waiting, "older-version", &["an earlier one in 1 task", "web.1", "used by web"]);
}

#[test]
fn names_are_found_in_all_kinds() {
    let mut world = web(1);
    world.volume(1, "web", None);
    let find = |kind: Option<ObjectKind>, name: &str| WhyTarget::find(&world.state, kind, name);
    let refused = find(None, "web").unwrap_err().to_string();
    assert_eq!(refused, "\"web\" is more than one object (service/web, volume/web); give one of them");
    assert_eq!(find(Some(ObjectKind::Volume), "web"), Ok(WhyTarget::Volume(volume_id(1))));
    assert!(find(None, "nothing").unwrap_err().to_string().starts_with("no service, task, node"));
    assert!(find(Some(ObjectKind::Token), "x").unwrap_err().to_string().contains("no answer for a token"));
    assert_eq!(find(None, "web.1"), Ok(WhyTarget::Task(task_id(1, 1))));
    assert_eq!(find(None, &task_id(1, 1).to_string()), Ok(WhyTarget::Task(task_id(1, 1))));
}

#[test]
fn slow_acceptance_becomes_a_problem() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, spec("web", 1));
    world.reconcile(1);
    world.schedule();
    check(&world, "web", Waiting, "no-ready-task(not-accepted)", &["node node-1 has not accepted web.1 yet"]);
    world.advance_time(Duration::from_secs(31));
    check(&world, "web", Problem, "no-ready-task(not-accepted)", &["check the agent"]);
    world.observe(task_id(1, 1), TaskState::Running);
    check(&world, "web.1", Waiting, "settling", &["counts as ready in 3s"]);
}
