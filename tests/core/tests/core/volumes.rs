//! Commands on volumes, and on which nodes their tasks can run.

use std::collections::BTreeMap;

use warren_core::state::{HeldVolumes, VolumeData};
use warren_core::{ApplyOutcome, Command, CommandResponse, StateChange};
use warren_types::*;

use crate::test_cluster::*;

fn create(number: u128, name: &str, options: &[(&str, &str)], node: Option<u128>) -> Command {
    let (id, name, node) = (volume_id(number), name.parse().unwrap(), node.map(node_id));
    let options = options.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let (driver, labels) = (VolumeDriver::Local, BTreeMap::new());
    Command::CreateVolume { id, name, driver, options, labels, node, reuse: false, at: Timestamp(0) }
}

fn remove(world: &TestCluster, name: &str, purge: bool) -> Command {
    Command::RemoveVolume { id: volume(world, name).id, purge, data: VolumeData::Unknown, at: Timestamp(0) }
}

fn delete(number: u128) -> Command {
    Command::DeleteVolume { id: volume_id(number), at: Timestamp(0) }
}

fn volume<'a>(world: &'a TestCluster, name: &str) -> &'a Volume {
    world.state.find_volume(name).unwrap()
}

fn names(world: &TestCluster) -> Vec<&str> {
    world.state.volumes_after(None).map(|volume| volume.name.as_str()).collect()
}

fn users(world: &TestCluster, name: &str) -> String {
    world.state.volume_users(&name.parse().unwrap()).join(" ")
}

/// Assigns tasks to nodes, regardless of the scheduler.
#[track_caller]
fn assign(world: &mut TestCluster, placements: &[(u64, u128)]) -> Vec<Option<u128>> {
    let to = |(task, node): &(u64, u128)| (task_id(1, *task), node_id(*node));
    let placements_of = placements.iter().map(to).collect();
    world.accept(Command::AssignTasks { term: TERM, placements: placements_of, at: world.now });
    placements.iter().map(|(task, _)| world.task(1, *task).node.map(|node| node.0.0)).collect()
}

#[test]
fn a_repeated_request_is_recognised() {
    let mut world = TestCluster::with_nodes(1);
    let command = create(1, "data", &[("uid", "1000")], None);
    let ApplyOutcome::Applied { response: answer, changes } = world.apply(&command) else {
        panic!("it is new")
    };
    let made = world.state.volume(&volume_id(1)).unwrap().clone();
    assert_eq!((made.version, changes), (4, vec![StateChange::Volume(volume_id(1))]));
    assert_eq!(answer, CommandResponse::Volume(made));
    assert_eq!(world.apply(&command), ApplyOutcome::Unchanged { answer });
    world.service(1, with_volumes("web", 1, &["data"]));
    world.settle();
    assert_eq!(volume(&world, "data").node, Some(node_id(1)));
    assert!(matches!(world.apply(&command), ApplyOutcome::Unchanged { .. }), "it has found its place since");
    for (other, expected) in [
        (create(1, "data", &[], None), "volume data already exists"),
        (create(2, "data", &[("uid", "1000")], None), "volume data already exists"),
        (create(1, "data", &[("uid", "1000")], Some(2)), "volume data already exists"),
        (create(2, "more", &[], Some(2)), "node \"0000000000000000000000002\" does not exist"),
        (
            create(2, "more", &[("size", "1G")], None),
            "options[\"size\"]: is not an option of the driver local",
        ),
    ] {
        let refusal = world.refuse(other);
        assert!(refusal.starts_with(expected), "{refusal}");
    }
}

#[test]
fn first_task_creates_volume_and_others_follow() {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, with_volumes("web", 3, &["data", "cache"]));
    world.reconcile(1);
    assert_eq!(names(&world), [""; 0]);
    assert_eq!(assign(&mut world, &[(1, 2), (2, 1), (3, 2)]), [Some(2), None, Some(2)]);
    assert_eq!(names(&world), ["cache", "data"]);
    assert_ne!(volume(&world, "data").id, volume(&world, "cache").id);
    for name in ["data", "cache"] {
        assert_eq!(volume(&world, name).node, Some(node_id(2)));
        assert_eq!(users(&world, name), "web.1 web.3");
    }
    let assignment = world.state.task_assignment(world.task(1, 1)).unwrap();
    let found: Vec<_> = assignment.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(found, ["data", "cache"], "in the order of the mounts");
}

#[test]
fn options_reach_the_worker() {
    let mut world = TestCluster::with_nodes(1);
    world.accept(create(1, "data", &[("uid", "1000"), ("mode", "0750")], None));
    world.service(1, with_volumes("web", 1, &["data"]));
    world.settle();
    let assignment = world.state.task_assignment(world.task(1, 1)).unwrap();
    let expected = [("mode".to_string(), "0750".to_string()), ("uid".to_string(), "1000".to_string())].into();
    assert_eq!(assignment.volumes, [VolumeAssignment { name: "data".parse().unwrap(), options: expected }]);
}

#[test]
fn volume_has_one_node() {
    let mut world = TestCluster::with_nodes(2);
    world.volume(1, "data", Some(2));
    world.service(1, with_volumes("web", 1, &["data"]));
    world.reconcile(1);
    let version = world.state.assignment_version(&node_id(1));
    assert_eq!(assign(&mut world, &[(1, 1)]), [None]);
    assert_eq!(world.state.assignment_version(&node_id(1)), version);
    assert_eq!(assign(&mut world, &[(1, 2)]), [Some(2)]);
    assert!(world.state.assignment_version(&node_id(2)) > version);
}

#[test]
fn volume_name_is_expanded_on_placement() {
    let mut world = TestCluster::with_nodes(2);
    world.label(2, "rack", Some("r2"));
    let mut spec = with_volumes("web", 2, &["{{.Service.Name}}-{{.Task.Slot}}", "x-{{.Node.Labels.rack}}"]);
    spec.labels = [("tier".into(), "front".into())].into();
    world.service(1, spec);
    world.reconcile(1);
    let before = world.state.volumes_of(world.task(1, 2));
    assert_eq!(before.iter().map(VolumeName::as_str).collect::<Vec<_>>(), ["web-2"]);
    assert_eq!(assign(&mut world, &[(1, 1), (1, 2), (2, 2)])[1..], [Some(2), Some(2)]);
    assert_eq!(names(&world), ["web-1", "web-2", "x-r2"]);
    world.label(2, "rack", Some("r3"));
    let after = world.state.volumes_of(world.task(1, 2));
    assert_eq!(after.iter().map(VolumeName::as_str).collect::<Vec<_>>(), ["web-2", "x-r2"], "as it was then");
    assert_eq!(users(&world, "x-r2"), "web.1 web.2");
    assert_eq!(users(&world, "web-2"), "web.2");
}

#[test]
fn invalid_volume_name_blocks_placement() {
    let mut world = TestCluster::with_nodes(1);
    world.label(1, "rack", Some("a/b"));
    world.service(1, with_volumes("web", 1, &["{{.Node.Labels.rack}}"]));
    world.reconcile(1);
    assert_eq!(assign(&mut world, &[(1, 1)]), [None]);
    world.label(1, "rack", None);
    assert_eq!(assign(&mut world, &[(1, 1)]), [None]);
    world.label(1, "rack", Some("r1"));
    assert_eq!(assign(&mut world, &[(1, 1)]), [Some(1)]);
}

#[test]
fn used_volume_is_not_removed() {
    let mut world = TestCluster::with_nodes(1);
    world.volume(1, "data", None);
    world.service(1, with_volumes("web", 0, &["data"]));
    let used = |by: &str| format!("volume data is used by {by}; remove or update that first");
    assert_eq!(world.refuse(remove(&world, "data", false)), used("web"));
    world.scale(1, 7);
    world.settle();
    let many = "web.1, web.2, web.3, web.4, web.5 and 2 others";
    assert_eq!(world.refuse(remove(&world, "data", true)), used(many));
    world.scale(1, 1);
    world.update(1, spec("web", 1));
    for _ in 0..4 {
        world.settle();
    }
    assert_eq!(world.refuse(remove(&world, "data", false)), used(many), "their workers still have them");
    world.clean_up();
    let gone =
        Command::RemoveVolume { id: volume_id(1), purge: false, data: VolumeData::Absent, at: Timestamp(0) };
    world.accept(gone.clone());
    assert_eq!(names(&world), [""; 0], "no data remains");
    assert!(world.refuse(gone).contains("`warren volume ls` lists the existing ones"));
}

#[test]
fn pending_slot_uses_its_volume() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, with_volumes("web", 2, &["data-{{.Task.Slot}}"]));
    world.settle();
    world.availability(1, Availability::Pause);
    world.observe(task_id(1, 2), TaskState::Failed);
    world.report(TaskReport { removed: true, ..report(task_id(1, 2), 1, TaskState::Failed) });
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 1), (2, 3)]);
    assert_eq!(users(&world, "data-2"), "web.2");
    let refusal = world.refuse(remove(&world, "data-2", true));
    assert_eq!(refusal, "volume data-2 is used by web.2; remove or update that first");
    world.scale(1, 1);
    world.reconcile(1);
    world.accept(remove(&world, "data-2", true));
}

#[test]
fn a_purge_takes_two_steps() {
    let mut world = TestCluster::with_nodes(1);
    world.volume(1, "data", Some(1));
    assert_eq!(
        world.refuse(delete(1)),
        "volume data is not being removed; remove it first (`warren volume rm --purge data`)"
    );
    world.accept(remove(&world, "data", true));
    assert!(volume(&world, "data").removing);
    assert!(matches!(world.apply(&remove(&world, "data", true)), ApplyOutcome::Unchanged { .. }));
    let removing = "volume data is being removed; wait until it is removed";
    let user =
        Command::CreateService { id: service_id(1), spec: with_volumes("web", 1, &["data"]), at: world.now };
    assert!(world.refuse(user.clone()).starts_with(removing));
    assert!(world.refuse(create(1, "data", &[], Some(1))).starts_with(removing));
    let labels = [("data".into(), "front".into())].into();
    world.service(1, ServiceSpec { labels, ..with_volumes("web", 1, &["{{.Service.Labels.data}}x"]) });
    world.reconcile(1);
    assert_eq!(assign(&mut world, &[(1, 1)]), [Some(1)], "that is another one");
    world.accept(delete(1));
    assert!(matches!(world.apply(&delete(1)), ApplyOutcome::Unchanged { .. }));
    assert_eq!(names(&world), ["frontx"]);
}

#[test]
fn removing_volume_blocks_placement() {
    let mut world = TestCluster::with_nodes(1);
    world.volume(1, "data-1", Some(1));
    world.accept(remove(&world, "data-1", true));
    world.service(1, with_volumes("web", 1, &["data-{{.Task.Slot}}"]));
    world.reconcile(1);
    assert_eq!(assign(&mut world, &[(1, 1)]), [None]);
    world.accept(delete(1));
    assert_eq!(assign(&mut world, &[(1, 1)]), [Some(1)], "a new one is made");
}

#[test]
fn purge_of_unreachable_volume_is_refused() {
    let mut world = TestCluster::with_nodes(2);
    world.volume(1, "data", Some(1));
    world.volume(2, "none", None);
    world.accept(remove(&world, "none", true));
    assert_eq!(names(&world), ["data"], "there was nothing to delete");
    world.set_down(1);
    let refusal = world.refuse(remove(&world, "data", true));
    let expected = "the data of volume data is on node node-1, which is DOWN; wait for the node, or forget the volume \
                  and leave its data (`warren volume rm data`)";
    assert_eq!(refusal, expected);
    world.remove_node(1);
    let refusal = world.refuse(remove(&world, "data", true));
    assert_eq!(
        refusal,
        "the data of volume data is on a node that was removed; delete its record with `warren volume rm data`"
    );
    world.accept(remove(&world, "data", false));
}

/// A volume on node 1 that was removed without its data.
fn released(size: Option<u64>) -> TestCluster {
    let mut world = TestCluster::with_nodes(2);
    world.volume(1, "data", Some(1));
    let data = VolumeData::Present(size.map(Bytes));
    world.accept(Command::RemoveVolume { id: volume_id(1), purge: false, data, at: world.now });
    world
}

fn volume_report(world: &TestCluster, names: &[&str], is_truncated: bool) -> Command {
    let held = HeldVolumes { names: names.iter().map(|name| name.parse().unwrap()).collect(), is_truncated };
    Command::ReportVolumes { node: node_id(1), session: 1, held, at: world.now }
}

#[test]
fn removed_volume_keeps_its_record_until_it_is_reused_or_purged() {
    let mut world = released(Some(3 << 20));
    let kept = volume(&world, "data").clone();
    assert_eq!(
        kept.released,
        Some(ReleasedVolume { at: kept.released.unwrap().at, size: Some(Bytes(3 << 20)) })
    );
    assert_eq!((kept.node, kept.removing), (Some(node_id(1)), false));
    assert!(matches!(world.apply(&remove(&world, "data", false)), ApplyOutcome::Unchanged { .. }));
    let refusal = "volume data was removed, and its data (3MiB) is still on node-1; use it with `warren volume create \
                   data --reuse`, delete it with `warren volume purge data`, or choose another name";
    let user =
        Command::CreateService { id: service_id(1), spec: with_volumes("web", 1, &["data"]), at: world.now };
    for user in [user.clone(), create(1, "data", &[], Some(1)), create(2, "data", &[], Some(1))] {
        assert_eq!(world.refuse(user), refusal);
    }
    let reuse = |node| {
        let Command::CreateVolume { id, name, driver, options, labels, at, .. } =
            create(2, "data", &[], node)
        else {
            panic!("it creates a volume")
        };
        Command::CreateVolume { id, name, driver, options, labels, node: node.map(node_id), reuse: true, at }
    };
    assert_eq!(world.refuse(reuse(Some(2))), "node: the data of volume data is on node-1");
    world.accept(reuse(None));
    assert!(matches!(world.apply(&reuse(None)), ApplyOutcome::Unchanged { .. }));
    let reused = volume(&world, "data");
    assert_eq!((reused.id, reused.node, reused.released), (volume_id(2), Some(node_id(1)), None));
    world.accept(user);

    let mut world = released(None);
    world.accept(remove(&world, "data", true));
    assert!(volume(&world, "data").removing && volume(&world, "data").released.is_none());
    world.accept(delete(1));
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn released_volume_is_kept_while_its_node_is_down_and_forgotten_with_it() {
    let mut world = released(None);
    world.set_down(1);
    assert!(world.refuse(remove(&world, "data", true)).contains("is on node node-1, which is DOWN"));
    assert!(volume(&world, "data").released.is_some());
    world.remove_node(1);
    assert_eq!(names(&world), [""; 0]);
    world.volume(2, "data", None);
}

#[test]
fn released_volume_blocks_tasks_that_name_it_by_a_template() {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, with_volumes("web", 1, &["data-{{.Task.Slot}}"]));
    world.volume(1, "data-1", Some(1));
    world.accept(remove(&world, "data-1", false));
    world.settle();
    let expected = "0 of 2 nodes fit: 2 cannot have the volume data-1, which was removed and whose data is still on \
                    node-1; use it with `warren volume create data-1 --reuse` or delete it with `warren volume purge \
                    data-1`";
    assert_eq!(world.reason(1, 1), expected);
    assert_eq!(assign(&mut world, &[(1, 1)]), [None]);
    world.accept(remove(&world, "data-1", true));
    world.accept(delete(1));
    world.settle();
    assert!(world.task(1, 1).node.is_some());
}

#[test]
fn reported_data_without_a_volume_gets_a_record_that_goes_with_it() {
    let mut world = TestCluster::with_nodes(2);
    world.volume(1, "used", Some(1));
    world.volume(2, "elsewhere", Some(2));
    world.accept(volume_report(&world, &["elsewhere", "old", "used"], false));
    assert_eq!(names(&world), ["elsewhere", "old", "used"]);
    assert_eq!(volume(&world, "old").node, Some(node_id(1)));
    assert!(volume(&world, "old").released.is_some() && volume(&world, "used").released.is_none());
    assert_eq!(volume(&world, "elsewhere").node, Some(node_id(2)));
    let again = volume_report(&world, &["elsewhere", "old", "used"], false);
    assert!(matches!(world.apply(&again), ApplyOutcome::Unchanged { .. }));
    // The report may be older than the release.
    let early = volume_report(&world, &["used"], false);
    assert!(matches!(world.apply(&early), ApplyOutcome::Unchanged { .. }));
    world.now = world.now + std::time::Duration::from_secs(60);
    let partial = volume_report(&world, &["used"], true);
    assert!(matches!(world.apply(&partial), ApplyOutcome::Unchanged { .. }));
    world.accept(volume_report(&world, &["used"], false));
    assert_eq!(names(&world), ["elsewhere", "used"]);
    let Command::ReportVolumes { node, held, at, .. } = volume_report(&world, &["old"], false) else {
        panic!("it is a report")
    };
    assert!(world.refuse(Command::ReportVolumes { node, session: 7, held, at }).contains("session"));
}

#[test]
fn a_removed_node_keeps_its_volumes() {
    let mut world = TestCluster::with_nodes(2);
    world.volume(1, "data", Some(1));
    world.service(1, with_volumes("web", 1, &["data"]));
    world.reconcile(1);
    assert_eq!(assign(&mut world, &[(1, 1)]), [Some(1)]);
    world.remove_node(1);
    world.reconcile(1);
    assert_eq!(volume(&world, "data").node, Some(node_id(1)));
    assert_eq!(assign(&mut world, &[(2, 2)]), [None]);
    assert_eq!(users(&world, "data"), "web");
    world.node(1, resources(4000, 1024));
    assert_eq!(assign(&mut world, &[(2, 1)]), [Some(1)], "it came back with its data");
}

#[test]
fn lost_volume_can_be_removed_while_tasks_wait() {
    let mut world = TestCluster::with_nodes(2);
    world.volume(1, "data", Some(1));
    world.service(1, with_volumes("web", 1, &["data"]));
    world.reconcile(1);
    assert_eq!(assign(&mut world, &[(1, 1)]), [Some(1)]);
    assert!(world.refuse(remove(&world, "data", false)).contains("is used by web.1"));
    world.remove_node(1);
    world.reconcile(1);
    world.accept(remove(&world, "data", false));
    assert_eq!(assign(&mut world, &[(2, 2)]), [Some(2)], "it starts on another node");
    assert_eq!(volume(&world, "data").node, Some(node_id(2)));
}

/// An update of a service whose tasks write to a volume: the new one is prepared next to the old one, but
/// runs only when that is terminal.
#[test]
fn no_two_tasks_of_a_slot_write_to_a_volume() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, with_volumes("db", 1, &["data"]));
    world.settle();
    world.update_image(1, "db:2");
    world.reconcile(1);
    assert_eq!((world.live(1), world.task(1, 2).desired), (vec![(1, 1), (1, 2)], DesiredTaskState::Ready));
    world.schedule();
    assert!(world.reconcile(1).is_empty(), "the old one stays until the new one is prepared");
    world.observe(task_id(1, 2), TaskState::Ready);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 2)]);
    assert!(world.task(1, 1).desired > DesiredTaskState::Running);
    assert!(world.reconcile(1).is_empty(), "the old one still ends");
    assert_eq!(world.task(1, 2).desired, DesiredTaskState::Ready);
    world.observe(task_id(1, 1), TaskState::Shutdown);
    world.reconcile(1);
    assert_eq!(world.task(1, 2).desired, DesiredTaskState::Running);
    // Also after scaling down and up again while it ends.
    world.observe(task_id(1, 2), TaskState::Running);
    world.scale(1, 0);
    world.reconcile(1);
    world.scale(1, 1);
    world.reconcile(1);
    assert_eq!(world.live(1), [], "{:?}", world.live(1));
    world.observe(task_id(1, 2), TaskState::Shutdown);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 3)]);
    // Read-only users are replaced as usual.
    let mut reading = with_volumes("db", 1, &["data"]);
    reading.task.mounts[0].read_only = true;
    world.service(2, ServiceSpec { name: "reader".parse().unwrap(), ..reading });
    world.settle();
    world.update_image(2, "db:2");
    world.reconcile(2);
    world.schedule();
    world.observe(task_id(2, 2), TaskState::Ready);
    world.reconcile(2);
    assert_eq!((world.live(2), world.task(2, 2).desired), (vec![(1, 1), (1, 2)], DesiredTaskState::Running));
}

#[test]
fn references_find_volumes() {
    let mut world = TestCluster::new();
    world.volume(1, "b", None);
    world.volume(2, "a", None);
    assert_eq!(names(&world), ["a", "b"]);
    assert_eq!(volume(&world, "0000000000000000000000002").name.as_str(), "a");
    assert!(
        world
            .state
            .find_volume("0")
            .unwrap_err()
            .to_string()
            .contains("is a prefix of more than one volume id")
    );
    let after: Vec<_> = world.state.volumes_after(Some(&"a".parse().unwrap())).collect();
    assert_eq!(after.len(), 1);
}
