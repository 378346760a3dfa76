//! Commands on secrets, configs and credentials, and which versions revisions use.

use std::collections::BTreeMap;

use warren_core::state::{MAX_SECRET_OBJECTS, MAX_SECRET_OBJECTS_SIZE};
use warren_core::{ApplyOutcome, Command, CommandResponse, Refusal, StateChange};
use warren_types::secret_object::MAX_SECRET_OBJECT_SIZE;
use warren_types::*;

use crate::test_cluster::*;

fn create(number: u128, kind: SecretObjectKind, name: &str, content: SealedData) -> Command {
    let (id, name, labels) = (secret_object_id(number), name.parse().unwrap(), BTreeMap::new());
    Command::CreateSecretObject { id, kind, name, labels, data: content, at: Timestamp(0) }
}

fn secret(number: u128, name: &str, byte: u8) -> Command {
    create(number, SecretObjectKind::Secret, name, sealed(byte))
}

fn update(number: u128, version: Option<u64>, byte: u8) -> Command {
    Command::UpdateSecretObject {
        id: secret_object_id(number),
        version,
        data: sealed(byte),
        at: Timestamp(0),
    }
}

fn remove(number: u128) -> Command {
    Command::RemoveSecretObject { id: secret_object_id(number), at: Timestamp(0) }
}

/// Id, version and number.
fn shown(answer: CommandResponse) -> (SecretObjectId, u64, u64) {
    match answer {
        CommandResponse::SecretObject(content) => (content.id, content.version, content.current_version()),
        other => panic!("{other:?}"),
    }
}

fn of_size(bytes: usize, sealed: usize, byte: u8) -> SealedData {
    let size = u32::try_from(bytes).unwrap();
    SealedData { size, fingerprint: [byte; 32], sealed: vec![byte; sealed] }
}

/// Names of the secret objects that the current revision uses, with their numbers.
fn uses(world: &TestCluster, service: u128) -> Vec<(String, u64)> {
    let revision = &world.state.service(&service_id(service)).unwrap().revision;
    revision.secret_objects.iter().map(|used| (used.name.to_string(), used.number)).collect()
}

#[test]
fn a_repeated_request_is_recognised() {
    let mut world = TestCluster::new();
    let key = secret_object_id(1);
    let ApplyOutcome::Applied { response: answer, changes } = world.apply(&secret(1, "key", 1)) else {
        panic!("it is new")
    };
    assert_eq!((shown(answer.clone()), changes), ((key, 2, 1), vec![StateChange::SecretObject(key)]));
    assert_eq!(world.apply(&secret(1, "key", 1)), ApplyOutcome::Unchanged { answer });
    let answer = world.accept(update(1, Some(2), 2));
    assert_eq!(shown(answer.clone()), (key, 4, 2));
    assert_eq!(world.apply(&update(1, Some(2), 2)), ApplyOutcome::Unchanged { answer });
    let changed = "an earlier request with this id created secret key, which was changed since (it is at \
                   version 4): this request changes nothing; see its current state with `warren secret inspect key`";
    assert_eq!(world.refuse(secret(1, "key", 1)), changed, "the version is that of the update");
    assert_eq!(shown(world.accept(update(1, None, 1))), (key, 7, 3), "what it was before is new as well");
    assert!(
        world.refuse(secret(1, "key", 1)).contains("which was changed since"),
        "the number is that of the update"
    );
    assert_eq!(shown(world.accept(remove(1))), (key, 7, 3), "as it was");
    let refusal = world.refuse(remove(1));
    assert_eq!(
        refusal,
        "secret \"0000000000000000000000001\" does not exist; `warren secret ls` lists the existing ones"
    );
    assert_eq!(world.refuse(update(1, None, 2)), refusal);
    assert_eq!(shown(world.accept(secret(1, "key", 1))), (key, 12, 1));
}

#[test]
fn names_are_unique_in_their_kind() {
    let mut world = TestCluster::new();
    world.accept(secret(1, "key", 1));
    world.accept(create(2, SecretObjectKind::Config, "key", sealed(1)));
    world.accept(create(3, SecretObjectKind::Credential, "ghcr.io:443", sealed(1)));
    for (command, expected) in [
        (secret(4, "key", 1), "secret key already exists"),
        (create(4, SecretObjectKind::Config, "key", sealed(2)), "config key already exists"),
        (secret(2, "other", 1), "secret other already exists"),
        (secret(1, "other", 1), "secret other already exists"),
        (secret(1, "key", 9), "secret key already exists"),
        (
            create(4, SecretObjectKind::Credential, "ghcr.io:443", sealed(1)),
            "registry credential ghcr.io:443 already",
        ),
    ] {
        let refusal = world.refuse(command);
        assert!(refusal.starts_with(expected), "{refusal}");
    }
    let find = |kind, reference: &str| world.state.find_secret_object(kind, reference).map(|found| found.id);
    assert_eq!(find(SecretObjectKind::Secret, "key"), Ok(secret_object_id(1)));
    assert_eq!(find(SecretObjectKind::Config, "key"), Ok(secret_object_id(2)));
    assert_eq!(find(SecretObjectKind::Credential, "0000000000000000000000003"), Ok(secret_object_id(3)));
    assert_eq!(
        find(SecretObjectKind::Credential, "00"),
        Ok(secret_object_id(3)),
        "the others are of other kinds"
    );
    let missing = find(SecretObjectKind::Credential, "key").unwrap_err().to_string();
    assert_eq!(
        missing,
        "registry credential \"key\" does not exist; `warren registry ls` lists the existing ones"
    );
    assert!(find(SecretObjectKind::Secret, "").is_err());
}

#[test]
fn list_is_sorted_by_name_per_kind() {
    let mut world = TestCluster::new();
    for (number, name) in (1..).zip(["b", "Z", "a", "0", "c"]) {
        world.accept(secret(number, name, 1));
        world.accept(create(number + 9, SecretObjectKind::Credential, name, sealed(1)));
    }
    let names = |kind, last: Option<&str>| {
        let last = last.map(|name| name.parse().unwrap());
        let found =
            world.state.secret_objects_after(kind, last.as_ref()).map(|content| content.name.to_string());
        found.collect::<Vec<_>>().concat()
    };
    assert_eq!(names(SecretObjectKind::Secret, None), "0Zabc");
    assert_eq!(names(SecretObjectKind::Credential, None), "0Zabc");
    assert_eq!(names(SecretObjectKind::Config, None), "");
    assert_eq!(names(SecretObjectKind::Secret, Some("Z")), "abc");
    assert_eq!(names(SecretObjectKind::Secret, Some("aa")), "bc");
}

#[test]
fn the_newest_versions_are_kept() {
    let mut world = TestCluster::new();
    world.accept(secret(1, "key", 1));
    for byte in 2..=7 {
        world.accept(update(1, None, byte));
    }
    let content = world.state.secret_object(&secret_object_id(1)).unwrap();
    assert_eq!(content.versions.keys().copied().collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
    assert_eq!(world.state.secret_object_data(&secret_object_id(1), 7).unwrap().fingerprint, [7; 32]);
    assert!(world.state.secret_object_data(&secret_object_id(1), 2).is_none());
    let refusal = world.refuse(update(1, Some(3), 9));
    assert_eq!(refusal, "secret key is at version 8, not 3: it changed meanwhile; read it again and retry");
}

#[test]
fn size_and_count_are_bounded() {
    let mut world = TestCluster::new();
    let large = create(
        1,
        SecretObjectKind::Secret,
        "key",
        of_size(MAX_SECRET_OBJECT_SIZE + 1, MAX_SECRET_OBJECT_SIZE + 40, 1),
    );
    assert_eq!(world.refuse(large), "data: 1048577 bytes are more than 1048576");
    let padded = create(1, SecretObjectKind::Secret, "key", of_size(1, 400, 1));
    assert_eq!(world.refuse(padded), "data.sealed: 400 bytes cannot be 1 bytes sealed");
    let labels = BTreeMap::from([("a b".to_string(), String::new())]);
    let Command::CreateSecretObject { id, kind, name, data: content, at, .. } = secret(1, "key", 1) else {
        panic!()
    };
    let labelled = Command::CreateSecretObject { id, kind, name, labels, data: content, at };
    assert!(world.refuse(labelled).starts_with("labels[\"a b\"]"));
    world.accept(secret(1, "key", 1));
    let large = of_size(MAX_SECRET_OBJECT_SIZE + 1, MAX_SECRET_OBJECT_SIZE + 40, 2);
    let large =
        Command::UpdateSecretObject { id: secret_object_id(1), version: None, data: large, at: Timestamp(0) };
    assert!(world.refuse(large).contains("more than 1048576"));
}

/// Without the invariants after each command, which would take minutes here.
#[test]
fn total_size_is_bounded() {
    let mut world = TestCluster::new();
    let mut apply = |command: &Command| {
        let index = world.state.applied().index + 1;
        world.state.apply(TERM, index, command)
    };
    let most = MAX_SECRET_OBJECTS_SIZE / MAX_SECRET_OBJECT_SIZE as u64;
    let whole = |byte| of_size(MAX_SECRET_OBJECT_SIZE, MAX_SECRET_OBJECT_SIZE, byte);
    for number in 1..=most {
        let outcome =
            apply(&create(number.into(), SecretObjectKind::Config, &format!("c{number}"), whole(1)));
        assert!(matches!(outcome, ApplyOutcome::Applied { .. }));
    }
    let expected = MAX_SECRET_OBJECTS_SIZE + 29;
    let full = ApplyOutcome::Rejected(Refusal::SecretObjectsTooLarge { wanted: expected });
    assert_eq!(apply(&secret(9999, "key", 1)), full);
    let larger = Command::UpdateSecretObject {
        id: secret_object_id(1),
        version: None,
        data: sealed(2),
        at: Timestamp(0),
    };
    assert_eq!(apply(&larger), full, "earlier versions count");
    assert!(matches!(apply(&remove(1)), ApplyOutcome::Applied { .. }));
    let begun = MAX_SECRET_OBJECTS as u128 + 1;
    let first = u128::from(most);
    for number in 10_000..10_000 + begun - first {
        let outcome = apply(&secret(number, &format!("s{number}"), 1));
        assert!(matches!(outcome, ApplyOutcome::Applied { .. }), "{number}: {outcome:?}");
    }
    let refused = apply(&secret(1, "key", 1));
    assert_eq!(refused, ApplyOutcome::Rejected(Refusal::TooManySecretObjects { found: 10_000 }));
    world.state.check().unwrap();
}

#[test]
fn spec_with_unknown_secret_is_refused() {
    let mut world = TestCluster::new();
    let mut spec = with_secrets("web", 1, &["key", "cert"]);
    spec.task.configs = vec![SecretObjectMount::new("key".parse().unwrap())];
    let create = Command::CreateService { id: service_id(1), spec: spec.clone(), at: Timestamp(0) };
    let refusal = world.refuse(create.clone());
    let missing = |path: &str, kind: &str, name: &str| {
        format!(
            "spec.task.{path}.source: there is no {kind} {name}; create it with `warren {kind} create {name} FILE`"
        )
    };
    let expected = [
        missing("secrets[0]", "secret", "key"),
        missing("secrets[1]", "secret", "cert"),
        missing("configs[0]", "config", "key"),
    ];
    assert_eq!(refusal, expected.join("; "));
    world.secret(1, "key", 1);
    world.secret(2, "cert", 1);
    world.accept(self::create(3, SecretObjectKind::Config, "key", sealed(1)));
    world.accept(create);
    let secret_objects = &world.state.service(&service_id(1)).unwrap().revision.secret_objects;
    let found: Vec<_> =
        secret_objects.iter().map(|it| (it.kind, it.name.as_str(), it.id, it.number)).collect();
    let (secret, config) = (SecretObjectKind::Secret, SecretObjectKind::Config);
    let desired = [
        (secret, "cert", secret_object_id(2), 1),
        (secret, "key", secret_object_id(1), 1),
        (config, "key", secret_object_id(3), 1),
    ];
    assert_eq!(found, desired);
    spec.task.secrets.push(SecretObjectMount::new("none".parse().unwrap()));
    let update =
        Command::UpdateService { id: service_id(1), version: None, spec, force: false, at: Timestamp(0) };
    assert_eq!(world.refuse(update), missing("secrets[2]", "secret", "none"));
}

#[test]
fn used_secret_object_is_not_removed() {
    let mut world = TestCluster::with_nodes(1);
    world.secret(1, "key", 1);
    for (number, name) in (1..).zip(["g", "f", "e", "d", "c", "b", "a"]) {
        world.service(number, with_secrets(name, 0, &["key"]));
    }
    let used = "secret key is used by a, b, c, d, e and 2 others; remove or update that first";
    assert_eq!(world.refuse(remove(1)), used);
    (3..8).for_each(|number| world.remove(number));
    assert_eq!(world.refuse(remove(1)), "secret key is used by f and g; remove or update that first");
    world.scale(1, 1);
    world.settle();
    world.remove(2);
    world.update(1, spec("g", 1));
    let by = "secret key is used by g; remove or update that first";
    assert_eq!(world.refuse(remove(1)), by, "its task still sees it");
    for _ in 0..3 {
        world.settle();
    }
    assert_eq!(world.live(1), [(1, 2)]);
    assert_eq!(world.refuse(remove(1)), by, "it is not said to be removed yet");
    world.clean_up();
    world.accept(remove(1));
}

#[test]
fn rollback_uses_earlier_versions() {
    let mut world = TestCluster::new();
    world.secret(1, "key", 1);
    world.service(1, with_secrets("web", 1, &["key"]));
    world.update_secret(1, 2);
    assert_eq!(uses(&world, 1), [("key".into(), 2)]);
    world.rollback(1, Some(1));
    assert_eq!(uses(&world, 1), [("key".into(), 1)]);
    let version = world.version(1);
    world.update(1, with_secrets("web", 1, &["key"]));
    assert_eq!(uses(&world, 1), [("key".into(), 2)], "the same spec means the current one");
    assert!(world.version(1) > version);
    let version = world.version(1);
    world.update(1, with_secrets("web", 1, &["key"]));
    assert_eq!(world.version(1), version);
    world.rollback(1, Some(1));
    world.update_secret(1, 3);
    assert_eq!(uses(&world, 1), [("key".into(), 3)], "it follows from wherever it was");
}

#[test]
fn rollback_to_deleted_version_is_refused() {
    let mut world = TestCluster::new();
    world.secret(1, "key", 1);
    world.secret(2, "old", 1);
    world.service(1, with_secrets("web", 1, &["old"]));
    world.update(1, with_secrets("web", 1, &["key"]));
    for byte in 2..=6 {
        world.update_secret(1, byte);
    }
    world.accept(remove(2));
    let rollback = |world: &TestCluster, revision| {
        let version = Some(world.version(1));
        Command::RollbackService { id: service_id(1), version, revision: Some(revision), at: Timestamp(0) }
    };
    for (revision, number, name) in [(1, 1, "old"), (2, 1, "key")] {
        let refusal = world.refuse(rollback(&world, revision));
        let expected = format!(
            "revision {revision} of service web uses version {number} of secret {name}, which has been deleted; \
             update the service instead"
        );
        assert_eq!(refusal, expected);
    }
    world.accept(rollback(&world, 3));
    assert_eq!(uses(&world, 1), [("key".into(), 2)]);
}

#[test]
fn template_label_change_makes_revision() {
    let mut world = TestCluster::with_nodes(1);
    let labelled = |tier: &str, note: &str| {
        let mut spec = spec("web", 1);
        spec.labels = [("tier".into(), tier.into()), ("note".into(), note.into())].into();
        spec.task.env = vec![EnvVar { name: "TIER".into(), value: "{{.Service.Labels.tier}}".into() }];
        spec
    };
    world.service(1, labelled("front", "a"));
    world.settle();
    let number = |world: &TestCluster| world.state.service(&service_id(1)).unwrap().revision.number;
    world.update(1, labelled("front", "b"));
    assert_eq!(number(&world), 1, "nobody asks for it");
    world.update(1, labelled("back", "b"));
    assert_eq!(number(&world), 2);
    let assignment = world.state.task_assignment(world.task(1, 1)).unwrap();
    assert_eq!(assignment.service_labels, [("tier".to_string(), "front".to_string())].into());
    for _ in 0..3 {
        world.settle();
        world.clean_up();
    }
    assert_eq!(world.live(1), [(1, 2)], "the task was replaced");
}

#[test]
fn task_lists_its_secret_objects() {
    let mut world = TestCluster::with_nodes(1);
    world.secret(1, "key", 1);
    world.service(1, with_secrets("web", 1, &["key"]));
    world.settle();
    let known = |world: &TestCluster| {
        let secret_objects = world.state.task_secret_objects(world.task(1, 1));
        secret_objects
            .map(|(used, sealed)| (used.number, sealed.map(|it| it.fingerprint[0])))
            .collect::<Vec<_>>()
    };
    assert_eq!(known(&world), [(1, Some(1))]);
    for byte in 2..=5 {
        world.update_secret(1, byte);
    }
    assert_eq!(known(&world), [(1, Some(1))]);
    world.update_secret(1, 6);
    assert_eq!(known(&world), [(1, None)], "its version is not kept any more");
}
