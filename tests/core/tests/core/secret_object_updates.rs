//! A new version of a secret object reaches the services that use it.

use warren_core::{ApplyOutcome, Command, CommandResponse, StateChange, rollout};
use warren_types::*;

use crate::counting::count;
use crate::test_cluster::*;

fn update(byte: u8) -> Command {
    Command::UpdateSecretObject {
        id: secret_object_id(1),
        version: None,
        data: sealed(byte),
        at: Timestamp(0),
    }
}

#[test]
fn new_version_replaces_tasks_of_users() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.secret(1, "key", 1);
    cluster.service(1, with_secrets("web", 2, &["key"]));
    cluster.service(2, spec("api", 1));
    cluster.settle();
    let ApplyOutcome::Applied { changes, .. } = cluster.apply(&update(2)) else { panic!("nothing changed") };
    assert_eq!(
        changes,
        [StateChange::SecretObject(secret_object_id(1)), StateChange::Service(service_id(1))]
    );
    let service = cluster.state.service(&service_id(1)).unwrap();
    assert_eq!((service.revision.number, service.history.len()), (2, 1));
    assert_eq!(service.version, cluster.state.applied().index);
    assert_eq!(cluster.state.service(&service_id(2)).unwrap().revision.number, 1);
    for _ in 0..8 {
        cluster.settle();
        cluster.clean_up();
    }
    assert_eq!(
        rollout(&cluster.state, cluster.state.service(&service_id(1)).unwrap(), cluster.now).updated,
        2
    );
    assert_eq!(cluster.live(1), [(1, 3), (2, 4)]);
    assert_eq!(cluster.live(2), [(1, 1)]);
}

#[test]
fn repeated_create_is_recognized_after_secret_update() {
    let mut cluster = TestCluster::new();
    cluster.secret(1, "key", 1);
    let spec = with_secrets("web", 2, &["key"]);
    let create = Command::CreateService { id: service_id(1), spec, at: cluster.now };
    cluster.accept(create.clone());
    for byte in [2, 1] {
        cluster.accept(update(byte));
        let service = cluster.state.service(&service_id(1)).unwrap().clone();
        assert_eq!(service.updated_at, service.created_at, "nobody changed it");
        assert_eq!(
            cluster.apply(&create),
            ApplyOutcome::Unchanged { answer: CommandResponse::Service(service) }
        );
    }
    let at = cluster.now;
    let away = Command::ScaleService { id: service_id(1), version: None, replicas: 3, at };
    let back = Command::ScaleService { id: service_id(1), version: None, replicas: 2, at };
    cluster.accept(away);
    cluster.accept(back);
    assert!(cluster.refuse(create).contains("which was changed since"), "within one tick of the clock");
}

#[test]
fn secret_update_keeps_image_pin() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.secret(1, "key", 1);
    cluster.service(1, with_secrets("web", 1, &["key"]));
    cluster.settle();
    cluster.report(TaskReport { image: Some(digest('a')), ..report(task_id(1, 1), 1, TaskState::Running) });
    cluster.accept(update(2));
    assert_eq!(cluster.state.service(&service_id(1)).unwrap().pins.get(&2), Some(&digest('a')));
}

#[test]
fn removing_service_ignores_secret_update() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.secret(1, "key", 1);
    cluster.service(1, with_secrets("web", 1, &["key"]));
    cluster.settle();
    cluster.remove(1);
    cluster.accept(update(2));
    assert_eq!(cluster.state.service(&service_id(1)).unwrap().revision.number, 1);
}

#[test]
fn versions_count_per_secret_object() {
    let mut cluster = TestCluster::new();
    cluster.secret(1, "key", 1);
    cluster.secret(2, "cert", 1);
    cluster.service(1, with_secrets("web", 1, &["key", "cert"]));
    cluster.accept(update(2));
    let secret_objects = &cluster.state.service(&service_id(1)).unwrap().revision.secret_objects;
    let found: Vec<_> = secret_objects.iter().map(|used| (used.name.as_str(), used.number)).collect();
    assert_eq!(found, [("cert", 1), ("key", 2)]);
}

/// One entry for thousands of services: each costs what it costs alone, except for the depth of the trees.
/// Without the checks of [`TestCluster::run`].
#[test]
fn secret_update_revises_many_services_in_one_entry() {
    let bytes_each = |services: u128| {
        let mut cluster = TestCluster::new();
        cluster.secret(1, "key", 1);
        for number in 1..=services {
            let index = cluster.state.applied().index + 1;
            let spec = with_secrets(&format!("web-{number}"), 1, &["key"]);
            let command = Command::CreateService { id: service_id(number), spec, at: cluster.now };
            assert!(matches!(cluster.state.apply(TERM, index, &command), ApplyOutcome::Applied { .. }));
        }
        // A reader still holds the earlier state, so that nothing can be changed in place.
        let before = cluster.state.clone();
        let (outcome, _, allocated) =
            count(|| cluster.state.apply(TERM, before.applied().index + 1, &update(2)));
        let ApplyOutcome::Applied { changes, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(changes.len() as u128, services + 1);
        cluster.state.check().unwrap();
        allocated / i64::try_from(services).unwrap()
    };
    let (few, many) = (bytes_each(500), bytes_each(4000));
    println!("{few} bytes allocated per service of 500, {many} of 4000");
    assert!(many < few * 2, "{few} bytes allocated per service of 500, {many} of 4000");
}
