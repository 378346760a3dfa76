//! What users see of applied entries.

use std::collections::BTreeSet;
use std::time::Duration;

use warren_core::events::{ClusterEvent, EventPosition};
use warren_core::*;
use warren_types::*;

use crate::test_cluster::*;

/// `task/web.1 updated state ASSIGNED>RUNNING,ready false>true: reason`
fn line(event: &ClusterEvent) -> String {
    let changes: Vec<_> =
        event.changes.iter().map(|it| format!("{} {}>{}", it.field, it.from, it.to)).collect();
    let reason = if event.reason.is_empty() { String::new() } else { format!(": {}", event.reason) };
    let text =
        format!("{}/{} {} {}", event.kind.noun(), event.name, event.action.as_str(), changes.join(","));
    format!("{}{reason}", text.trim_end())
}

/// The events of what happens after `before`.
#[track_caller]
fn check(before: fn(&mut TestCluster), happens: fn(&mut TestCluster), expected: &[&str]) {
    let mut world = TestCluster::with_nodes(1);
    before(&mut world);
    let known = world.events.len();
    happens(&mut world);
    let found: Vec<String> = world.events[known..].iter().map(line).collect();
    assert_eq!(found, expected);
    let positions: Vec<EventPosition> = world.events.iter().map(|event| event.position).collect();
    assert_eq!(positions.iter().collect::<BTreeSet<_>>().into_iter().copied().collect::<Vec<_>>(), positions);
    assert!(world.events.iter().all(|event| event.at <= world.state.clock()));
}

fn one_web(world: &mut TestCluster) {
    world.service(1, spec("web", 1));
}

fn running_web(world: &mut TestCluster) {
    one_web(world);
    world.settle();
}

#[test]
fn life_of_a_task_is_told() {
    check(|_| {}, one_web, &["service/web created"]);
    check(one_web, |world| drop(world.reconcile(1)), &["task/web.1 created"]);
    check(
        |world| {
            one_web(world);
            world.reconcile(1);
        },
        |world| {
            world.schedule();
            world.observe(task_id(1, 1), TaskState::Running);
        },
        &[
            "task/web.1 updated node >node-1,state PENDING>ASSIGNED: waiting for node node-1",
            "task/web.1 updated state ASSIGNED>RUNNING,ready false>true",
        ],
    );
    check(
        running_web,
        |world| {
            let exit = Some(TaskExit { code: 1, out_of_memory: false });
            let reason = "exited with code 1; attempt 2 starts".to_owned();
            world.report(TaskReport { exit, reason, ..report(task_id(1, 1), 2, TaskState::Starting) });
            assert_eq!(world.events.last().unwrap().task.as_ref().unwrap().exit, exit);
        },
        &[
            "task/web.1 updated state RUNNING>STARTING,attempt 1>2,ready true>false: exited with code 1; attempt 2 \
           starts",
        ],
    );
    check(
        running_web,
        |world| {
            world.remove(1);
            world.settle();
            world.clean_up();
            world.reap(1);
        },
        &[
            "service/web updated removing false>true",
            "task/web.1 updated desired RUNNING>REMOVE: stopping on node node-1",
            "task/web.1 updated state RUNNING>SHUTDOWN,ready true>false,removedFromNode false>true: stopped by the \
             manager",
            "task/web.1 removed",
            "service/web removed",
        ],
    );
}

#[test]
fn nodes_and_their_tasks_are_told() {
    check(
        running_web,
        |world| world.set_down(1),
        &[
            "node/node-1 updated status READY>DOWN: no manager has heard of it for 8 s",
            "task/web.1 updated lost false>true: node node-1 has been down since 2026-11-20T14:30:00Z",
        ],
    );
    check(
        |_| {},
        |world| world.availability(1, Availability::Drain),
        &["node/node-1 updated availability active>drain"],
    );
    check(
        |_| {},
        |world| world.conditions(1, &[NodeCondition::DiskPressure]),
        &["node/node-1 updated conditions >disk pressure"],
    );
    check(|_| {}, |world| world.label(1, "zone", Some("a")), &["node/node-1 updated labels.zone >a"]);
    check(
        |_| {},
        |world| world.taint(1, &["gpu=yes:NoSchedule"], &[]),
        &["node/node-1 updated taints >gpu=yes:NoSchedule"],
    );
    let second = |world: &mut TestCluster| world.node(2, resources(1000, 512));
    check(second, |world| world.remove_node(2), &["node/node-2 removed"]);
    let joined = ["node/node-2 created", "node/node-2 updated status UNKNOWN>READY,session 0>1"];
    check(|_| {}, second, &joined);
}

#[test]
fn changes_of_services_are_told() {
    check(running_web, |world| world.scale(1, 3), &["service/web updated replicas 1>3"]);
    check(
        running_web,
        |world| drop(world.update_image(1, "demo:2")),
        &["service/web updated revision 1>2,image demo:1>demo:2"],
    );
    check(
        |world| drop(world.service(1, spec("web", 0))),
        |world| {
            let mut spec = spec("web", 0);
            spec.labels.insert("tier".into(), "front".into());
            spec.update.delay = Duration::from_secs(1);
            world.update(1, spec);
        },
        &["service/web updated labels.tier >front,update >"],
    );
}

#[test]
fn stored_objects_are_told_without_data() {
    check(|_| {}, |world| drop(world.secret(1, "key", 7)), &["secret/key created"]);
    let update = |world: &mut TestCluster| {
        world.update_secret(1, 8);
    };
    check(|world| drop(world.secret(1, "key", 7)), update, &["secret/key updated version 1>2"]);
    check(|_| {}, |world| drop(world.volume(1, "data", None)), &["volume/data created"]);
    check(
        |world| {
            world.volume(1, "data", None);
            world.service(1, with_volumes("web", 1, &["data"]));
            world.reconcile(1);
        },
        |world| drop(world.schedule()),
        &[
            "volume/data updated node >node-1",
            "task/web.1 updated node >node-1,state PENDING>ASSIGNED: waiting for node node-1",
        ],
    );
}

#[test]
fn changed_rules_of_the_admission_policy_are_told() {
    let set = |world: &mut TestCluster| {
        let host_binds = vec!["/srv".to_owned()];
        let operator = AdmissionRules { host_binds, max_replicas: Some(3), ..Default::default() };
        let keys = vec![SignatureKey::Ed25519([1; 32])];
        let signatures = vec![SignatureRule { registry: "ghcr.io".to_owned(), keys }];
        let admission_policy = Some(AdmissionPolicy { operator, signatures });
        let change = ClusterSettingsChange { admission_policy, ..Default::default() };
        world.accept(Command::UpdateCluster { version: None, change, at: world.now });
    };
    let expected = "cluster/cluster updated admissionPolicy.signatures []>[{\"registry\":\"ghcr.io\",\"keys\":\
                    [\"-----BEGIN PUBLIC KEY-----\\n\
                    MCowBQYDK2VwAyEAAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\\n\
                    -----END PUBLIC KEY-----\\n\"]}],\
                    admissionPolicy.operator.hostBinds []>[\"/srv\"],admissionPolicy.operator.maxReplicas >3";
    check(|_| {}, set, &[expected]);
    check(set, set, &[]);
}

#[test]
fn rejected_and_repeated_commands_have_no_events() {
    check(
        running_web,
        |world| {
            world.refuse(Command::CreateService { id: service_id(2), spec: spec("web", 1), at: world.now });
            world.scale(1, 1);
        },
        &[],
    );
}
