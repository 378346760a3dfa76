//! The image of a revision is what managers resolved, or, if the service says so, what the first worker reported, on
//! every node.

use warren_core::session::{ReportUse, report_use};
use warren_core::{
    ApplyOutcome, Command, ImageStep, RolloutState, State, earlier_pin, image_step, is_refresh, known_pins,
    pin_command, rollout, unresolved_command,
};
use warren_types::*;

use crate::test_cluster::*;

fn resolved(task: TaskId, image: ImageDigest) -> TaskReport {
    TaskReport { image: Some(image), ready: false, ..report(task, 0, TaskState::Preparing) }
}

/// The digest in the task's assignment.
fn assigned_digest(cluster: &TestCluster, number: u64) -> Option<ImageDigest> {
    let node = cluster.task(1, number).node.unwrap();
    let tasks = cluster.state.assignment(&node).unwrap().tasks;
    tasks.into_iter().find(|task| task.id.number == number).unwrap().digest
}

fn placed() -> TestCluster {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 2));
    cluster.reconcile(1);
    cluster.schedule();
    cluster
}

#[test]
fn first_reported_digest_is_pinned() {
    let mut cluster = placed();
    let before: Vec<_> = (1..=2).map(|node| cluster.state.assignment_version(&node_id(node))).collect();
    assert_eq!(assigned_digest(&cluster, 1), None);
    let version = cluster.state.service(&service_id(1)).unwrap().version;
    cluster.report(resolved(task_id(1, 1), digest('a')));
    for (number, before) in (1..=2).zip(before) {
        assert_eq!(assigned_digest(&cluster, number), Some(digest('a')));
        let node = cluster.task(1, number).node.unwrap();
        assert!(cluster.state.assignment_version(&node) > before, "its node is told");
    }
    let once = cluster.state.export();
    cluster.report(resolved(task_id(1, 2), digest('b')));
    cluster.report(resolved(task_id(1, 1), digest('b')));
    assert_eq!(
        (assigned_digest(&cluster, 1), assigned_digest(&cluster, 2)),
        (Some(digest('a')), Some(digest('a')))
    );
    assert_eq!(cluster.state.export().services, once.services);
    assert_eq!(cluster.state.service(&service_id(1)).unwrap().version, version, "no person changed it");
}

#[test]
fn rollback_keeps_its_pin() {
    let mut cluster = placed();
    cluster.report(resolved(task_id(1, 1), digest('a')));
    cluster.settle();
    cluster.update_image(1, "demo:2");
    cluster.settle();
    assert_eq!(assigned_digest(&cluster, 3), None);
    cluster.report(resolved(task_id(1, 3), digest('b')));
    assert_eq!(
        (assigned_digest(&cluster, 1), assigned_digest(&cluster, 3)),
        (Some(digest('a')), Some(digest('b')))
    );
    cluster.rollback(1, None);
    let service = cluster.state.service(&service_id(1)).unwrap();
    assert_eq!(service.pins.get(&3), Some(&digest('a')));
}

#[test]
fn digest_reference_is_its_own_pin() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut expected = spec("web", 1);
    expected.task.image = format!("demo@{}", digest('c')).parse().unwrap();
    cluster.service(1, expected);
    cluster.reconcile(1);
    cluster.schedule();
    cluster.report(resolved(task_id(1, 1), digest('d')));
    assert_eq!(assigned_digest(&cluster, 1), Some(digest('c')));
    cluster.update_image(1, &format!("demo@{}", digest('e')));
    let pins = &cluster.state.service(&service_id(1)).unwrap().pins;
    assert_eq!(*pins, [(1, digest('c')), (2, digest('e'))].into());
}

#[test]
fn pin_survives_snapshot_and_is_deleted_with_revision() {
    let mut cluster = placed();
    cluster.report(resolved(task_id(1, 1), digest('a')));
    let restored = warren_core::State::restore(cluster.state.export()).unwrap();
    assert_eq!(restored, cluster.state);
    cluster.scale(1, 0);
    cluster.settle();
    cluster.clean_up();
    cluster.reap(1);
    for number in 2..=12 {
        cluster.update_image(1, &format!("demo:{number}"));
    }
    let service = cluster.state.service(&service_id(1)).unwrap();
    assert!(service.pins.is_empty() && service.history[0].number == 2, "{:?}", service.history[0]);
}

/// [`spec`], with an image that managers resolve.
fn resolved_by_managers(name: &str, replicas: u32) -> ServiceSpec {
    let mut spec = spec(name, replicas);
    spec.task.resolve_image = ImageResolver::Manager;
    spec
}

fn placed_by_managers() -> TestCluster {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, resolved_by_managers("web", 2));
    cluster.reconcile(1);
    cluster.schedule();
    cluster
}

fn pin(cluster: &mut TestCluster, revision: u64, image: ImageDigest) {
    let command = pin_command(&cluster.state, service_id(1), revision, image, cluster.now);
    cluster.accept(command);
}

fn next_step(cluster: &TestCluster) -> Option<ImageStep> {
    image_step(&cluster.state, &service_id(1))
}

fn record_import(cluster: &mut TestCluster, image: &str, digest: Option<ImageDigest>) {
    cluster.accept(Command::RecordImport { image: image.parse().unwrap(), digest, at: cluster.now });
}

fn update(cluster: &mut TestCluster, force: bool, change: impl FnOnce(&mut ServiceSpec)) {
    let service = cluster.state.service(&service_id(1)).unwrap();
    let (version, mut spec) = (Some(service.version), (*service.spec).clone());
    change(&mut spec);
    cluster.accept(Command::UpdateService { id: service_id(1), version, spec, force, at: cluster.now });
}

#[test]
fn report_of_worker_never_pins_what_managers_resolve() {
    let mut cluster = placed_by_managers();
    let old = resolved(task_id(1, 1), digest('a'));
    let node = cluster.task(1, 1).node.unwrap();
    assert_eq!(
        report_use(&cluster.state, &node, &TaskReport { ready: false, ..old.clone() }),
        ReportUse::Keep
    );
    cluster.report(old);
    assert_eq!((assigned_digest(&cluster, 1), assigned_digest(&cluster, 2)), (None, None));
    let step = ImageStep { revision: 1, image: "demo:1".parse().unwrap(), import: None };
    assert_eq!(next_step(&cluster), Some(step));
    pin(&mut cluster, 1, digest('b'));
    for number in 1..=2 {
        assert_eq!(assigned_digest(&cluster, number), Some(digest('b')));
    }
    assert_eq!(next_step(&cluster), None);
    let once = cluster.state.export();
    pin(&mut cluster, 1, digest('c'));
    assert_eq!(cluster.state.export().services, once.services, "a pin is never replaced");
}

#[test]
fn task_of_worker_that_reports_another_digest_is_rejected() {
    let mut cluster = placed_by_managers();
    pin(&mut cluster, 1, digest('b'));
    let node = cluster.task(1, 1).node.unwrap();
    let name = cluster.state.node(&node).unwrap().name.to_string();
    let same = TaskReport { image: Some(digest('b')), ..report(task_id(1, 1), 1, TaskState::Running) };
    cluster.report(same.clone());
    assert_eq!(cluster.task(1, 1).observed.state, TaskState::Running);
    let other = TaskReport { image: Some(digest('a')), ..same };
    assert_eq!(report_use(&cluster.state, &node, &other), ReportUse::Store);
    let events = cluster.events.len();
    cluster.report(other.clone());
    let task = cluster.task(1, 1);
    assert_eq!((task.observed.state, task.observed.ready), (TaskState::Rejected, false));
    let reason = task.observed.reason().to_owned();
    for part in [name.as_str(), digest('a').as_str(), digest('b').as_str(), "demo:1"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    let told = cluster.events[events..].iter().any(|event| format!("{event:?}").contains(&reason));
    assert!(told, "{:?}", &cluster.events[events..]);
    let after = cluster.state.export();
    cluster.report(other);
    assert_eq!(cluster.state.export().tasks, after.tasks, "the second time");
    assert_eq!(assigned_digest(&cluster, 2), Some(digest('b')), "the other node runs what managers resolved");
    cluster.reconcile(1);
    assert!(cluster.live(1).iter().any(|(slot, number)| (*slot, *number > 2) == (1, true)), "it is replaced");
}

#[test]
fn pin_of_superseded_revision_is_ignored() {
    let mut cluster = placed_by_managers();
    cluster.update_image(1, "demo:2");
    let command = pin_command(&cluster.state, service_id(1), 1, digest('a'), cluster.now);
    assert!(matches!(cluster.apply(&command), ApplyOutcome::Unchanged { .. }));
    assert!(cluster.state.service(&service_id(1)).unwrap().pins.is_empty());
}

#[test]
fn imported_image_is_used_instead_of_registry() {
    let mut cluster = placed_by_managers();
    record_import(&mut cluster, "demo:1", Some(digest('a')));
    let image = "demo:1".parse().unwrap();
    assert_eq!(next_step(&cluster), Some(ImageStep { revision: 1, image, import: Some(digest('a')) }));
    pin(&mut cluster, 1, digest('a'));
    assert_eq!(assigned_digest(&cluster, 1), Some(digest('a')));
    // The same image by another name; the next import gives it another digest.
    record_import(&mut cluster, "docker.io/library/demo:1", Some(digest('b')));
    let at = cluster.now;
    let (image, same) = ("demo:1".parse().unwrap(), Some(digest('b')));
    let again = cluster.apply(&Command::RecordImport { image, digest: same, at });
    assert!(matches!(again, ApplyOutcome::Unchanged { .. }));
    assert_eq!(State::restore(cluster.state.export()).unwrap(), cluster.state);
    assert_eq!(next_step(&cluster), None, "what runs is not changed");
    update(&mut cluster, true, |_| ());
    let image = "demo:1".parse().unwrap();
    assert_eq!(next_step(&cluster), Some(ImageStep { revision: 2, image, import: Some(digest('b')) }));
    // A user wants that of the registry; or the import is removed.
    update(&mut cluster, true, |spec| spec.task.pull = PullPolicy::Always);
    assert!(matches!(next_step(&cluster), Some(ImageStep { revision: 3, import: None, .. })));
    update(&mut cluster, true, |spec| spec.task.pull = PullPolicy::Missing);
    record_import(&mut cluster, "demo:1", None);
    assert!(matches!(next_step(&cluster), Some(ImageStep { revision: 4, import: None, .. })));
    assert_eq!(cluster.state.imported_images().count(), 0);
}

#[test]
fn update_without_another_image_keeps_its_digest() {
    let mut cluster = placed_by_managers();
    pin(&mut cluster, 1, digest('a'));
    update(&mut cluster, false, |spec| spec.task.hostname = Some("other".into()));
    let pin_of = |cluster: &TestCluster, number: u64| {
        cluster.state.service(&service_id(1)).unwrap().pins.get(&number).cloned()
    };
    assert_eq!(pin_of(&cluster, 2), Some(digest('a')), "also if the registry cannot be reached");
    // Forced, the registry is asked again; that the earlier one is known helps if it does not answer.
    update(&mut cluster, true, |_| ());
    assert_eq!((pin_of(&cluster, 3), earlier_pin(&cluster.state, &service_id(1))), (None, Some(digest('a'))));
    assert!(matches!(next_step(&cluster), Some(ImageStep { revision: 3, import: None, .. })));
    cluster.update_image(1, "demo:2");
    assert_eq!(earlier_pin(&cluster.state, &service_id(1)), None, "of another image");
    update(&mut cluster, false, |spec| spec.task.resolve_image = ImageResolver::Worker);
    assert_eq!((next_step(&cluster), pin_of(&cluster, 5)), (None, None), "workers resolve it");
}

#[test]
fn imported_images_are_bounded() {
    let mut cluster = TestCluster::new();
    for number in 0..=warren_core::state::MAX_IMPORTED_IMAGES {
        let image = format!("demo:{number}").parse().unwrap();
        let command = Command::RecordImport { image, digest: Some(digest('a')), at: cluster.now };
        let next = cluster.state.applied().index + 1;
        cluster.state.apply(TERM, next, &command);
    }
    cluster.state.check().unwrap();
    let known =
        |image: &str| cluster.state.imported_image(&CanonicalImage::of(&image.parse().unwrap())).is_some();
    assert_eq!((known("demo:0"), known("demo:1")), (false, true));
}

#[test]
fn workers_resolve_images_that_managers_must_not_ask_for() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut local = resolved_by_managers("local", 1);
    local.task.image = "localhost:5000/demo:1".parse().unwrap();
    cluster.service(1, local);
    let mut never = resolved_by_managers("never", 1);
    never.task.pull = PullPolicy::Never;
    cluster.service(2, never);
    for service in [1, 2] {
        assert_eq!(image_step(&cluster.state, &service_id(service)), None);
        cluster.reconcile(service);
        cluster.schedule();
        cluster.report(resolved(task_id(service, 1), digest('a')));
        let service = cluster.state.service(&service_id(service)).unwrap();
        assert_eq!(service.pins.get(&1), Some(&digest('a')), "{}", service.spec.name);
    }
}

/// The revisions of the live tasks.
fn live_revisions(cluster: &TestCluster) -> Vec<u64> {
    cluster.live(1).into_iter().map(|(_, number)| cluster.task(1, number).revision.number).collect()
}

#[test]
fn tasks_of_last_revision_stay_until_the_next_image_is_known() {
    let mut cluster = placed_by_managers();
    pin(&mut cluster, 1, digest('a'));
    cluster.settle();
    update(&mut cluster, false, |spec| spec.task.image = "missing:1".parse().unwrap());
    cluster.settle();
    assert_eq!(live_revisions(&cluster), [1, 1], "nothing is replaced by what cannot start");
    cluster.report(report(task_id(1, 1), 1, TaskState::Failed));
    cluster.reconcile(1);
    assert!(cluster.live(1).iter().all(|(_, number)| *number > 1), "the task that failed is replaced");
    assert_eq!(live_revisions(&cluster), [1, 1]);
    cluster.state.check().unwrap();
    cluster.scale(1, 3);
    cluster.reconcile(1);
    assert_eq!(live_revisions(&cluster), [1, 1, 1]);
    let stale = Command::CreateTasks {
        term: TERM,
        service: service_id(1),
        revision: 2,
        slots: vec![new_task(1)],
        at: cluster.now,
    };
    cluster.refuse(stale);
    pin(&mut cluster, 2, digest('b'));
    for _ in 0..12 {
        cluster.advance_time(std::time::Duration::from_secs(60));
        cluster.settle();
        cluster.clean_up();
    }
    assert_eq!(live_revisions(&cluster), [2, 2, 2]);
}

#[test]
fn first_revision_is_created_before_its_image_is_known() {
    let mut cluster = placed_by_managers();
    assert_eq!(live_revisions(&cluster), [1, 1], "nodes prepare them meanwhile");
    update(&mut cluster, false, |spec| spec.task.image = "missing:1".parse().unwrap());
    cluster.settle();
    assert!(live_revisions(&cluster).contains(&2), "no image of an earlier revision is known");
}

#[test]
fn reason_of_unresolved_image_is_recorded_once() {
    let mut cluster = placed_by_managers();
    let record = |cluster: &mut TestCluster, reason: &str| {
        let command = unresolved_command(&cluster.state, service_id(1), 1, reason, cluster.now);
        let is_new = command.is_some();
        command.into_iter().for_each(|command| drop(cluster.accept(command)));
        is_new
    };
    let reason = |cluster: &TestCluster| {
        cluster.state.service(&service_id(1)).unwrap().rollout.image_reason.to_string()
    };
    let events = cluster.events.len();
    assert!(record(&mut cluster, "no route (request 3f2a)"));
    assert_eq!(reason(&cluster), "no route (request 3f2a)");
    let told = cluster.events[events..].iter().filter(|event| event.reason.contains("no route")).count();
    assert_eq!(told, 1);
    let service = cluster.state.service(&service_id(1)).unwrap().clone();
    let shown = rollout(&cluster.state, &service, cluster.now);
    assert_eq!(
        (shown.state, shown.waiting_reason.as_deref()),
        (RolloutState::Updating, Some(&*reason(&cluster)))
    );
    assert!(!record(&mut cluster, "no route (request 71bc)"), "only the id of the request differs");
    assert!(record(&mut cluster, &"it has no such image; ".repeat(100)));
    assert_eq!(reason(&cluster).chars().count(), 1000);
    assert_eq!(State::restore(cluster.state.export()).unwrap(), cluster.state);
    pin(&mut cluster, 1, digest('a'));
    assert_eq!(reason(&cluster), "", "it is resolved");
    assert!(record(&mut cluster, "an earlier digest is used"));
    update(&mut cluster, true, |_| ());
    assert_eq!(reason(&cluster), "", "of the earlier revision");
    assert!(!record(&mut cluster, "of the earlier revision"));
}

#[test]
fn digest_of_another_service_is_known_for_the_same_image() {
    let mut cluster = placed_by_managers();
    cluster.service(2, resolved_by_managers("other", 1));
    let known = |cluster: &TestCluster| {
        let image = &cluster.state.service(&service_id(1)).unwrap().revision.task.image;
        known_pins(&cluster.state).remove(&CanonicalImage::of(image))
    };
    assert_eq!(known(&cluster), None);
    let of_other = pin_command(&cluster.state, service_id(2), 1, digest('a'), cluster.now);
    cluster.accept(of_other);
    assert_eq!(known(&cluster), Some(("other".parse().unwrap(), digest('a'))));
    assert!(!is_refresh(&cluster.state, &service_id(1)), "a new service");
    // What workers chose is not known to managers.
    let mut chosen = spec("chosen", 1);
    chosen.task.image = "demo:2".parse().unwrap();
    cluster.service(3, chosen);
    cluster.reconcile(3);
    cluster.schedule();
    cluster.report(resolved(task_id(3, 1), digest('c')));
    cluster.update_image(1, "demo:2");
    assert_eq!(known(&cluster), None);
    cluster.update_image(1, "docker.io/library/demo:1");
    pin(&mut cluster, 3, digest('b'));
    update(&mut cluster, true, |_| ());
    assert!(is_refresh(&cluster.state, &service_id(1)), "the user wants that of the registry");
    update(&mut cluster, false, |spec| spec.task.pull = PullPolicy::Always);
    assert!(is_refresh(&cluster.state, &service_id(1)));
}
