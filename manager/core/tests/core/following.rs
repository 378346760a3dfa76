//! A new version of a content reaches the services that use it.

use warren_core::{Answer, Change, Command, Outcome, rollout};
use warren_types::*;

use crate::counting::count;
use crate::world::*;

fn update(byte: u8) -> Command {
    Command::UpdateContent { id: content_id(1), version: None, content: sealed(byte), at: Timestamp(0) }
}

#[test]
fn a_new_version_replaces_the_tasks_of_those_that_use_it() {
    let mut world = World::with_nodes(2);
    world.secret(1, "key", 1);
    world.service(1, with_secrets("web", 2, &["key"]));
    world.service(2, spec("api", 1));
    world.settle();
    let Outcome::Applied { changes, .. } = world.run(&update(2)) else { panic!("nothing changed") };
    assert_eq!(changes, [Change::Content(content_id(1)), Change::Service(service_id(1))]);
    let service = world.state.service(&service_id(1)).unwrap();
    assert_eq!((service.revision.number, service.history.len()), (2, 1));
    assert_eq!(service.version, world.state.applied().index);
    assert_eq!(world.state.service(&service_id(2)).unwrap().revision.number, 1);
    for _ in 0..8 {
        world.settle();
        world.clean_up();
    }
    assert_eq!(rollout(&world.state, world.state.service(&service_id(1)).unwrap()).updated, 2);
    assert_eq!(world.live(1), [(1, 3), (2, 4)]);
    assert_eq!(world.live(2), [(1, 1)]);
}

#[test]
fn repeated_create_is_recognized_after_a_new_version_until_people_change_the_service() {
    let mut world = World::new();
    world.secret(1, "key", 1);
    let spec = with_secrets("web", 2, &["key"]);
    let create = Command::CreateService { id: service_id(1), spec, at: world.now };
    world.accept(create.clone());
    for byte in [2, 1] {
        world.accept(update(byte));
        let service = world.state.service(&service_id(1)).unwrap().clone();
        assert_eq!(service.updated_at, service.created_at, "nobody changed it");
        assert_eq!(world.run(&create), Outcome::Unchanged { answer: Answer::Service(service) });
    }
    let at = world.now;
    let away = Command::ScaleService { id: service_id(1), version: None, replicas: 3, at };
    let back = Command::ScaleService { id: service_id(1), version: None, replicas: 2, at };
    world.accept(away);
    world.accept(back);
    assert!(world.refuse(create).contains("somebody changed it"), "within one tick of the clock");
}

#[test]
fn the_image_stays_what_it_is() {
    let mut world = World::with_nodes(1);
    world.secret(1, "key", 1);
    world.service(1, with_secrets("web", 1, &["key"]));
    world.settle();
    world.report(TaskReport { image: Some(digest('a')), ..report(task_id(1, 1), 1, TaskState::Running) });
    world.accept(update(2));
    assert_eq!(world.state.service(&service_id(1)).unwrap().pins.get(&2), Some(&digest('a')));
}

#[test]
fn a_service_that_goes_does_not_follow() {
    let mut world = World::with_nodes(1);
    world.secret(1, "key", 1);
    world.service(1, with_secrets("web", 1, &["key"]));
    world.settle();
    world.remove(1);
    world.accept(update(2));
    assert_eq!(world.state.service(&service_id(1)).unwrap().revision.number, 1);
}

#[test]
fn two_contents_count_up_by_themselves() {
    let mut world = World::new();
    world.secret(1, "key", 1);
    world.secret(2, "cert", 1);
    world.service(1, with_secrets("web", 1, &["key", "cert"]));
    world.accept(update(2));
    let contents = &world.state.service(&service_id(1)).unwrap().revision.contents;
    let found: Vec<_> = contents.iter().map(|used| (used.name.as_str(), used.number)).collect();
    assert_eq!(found, [("cert", 1), ("key", 2)]);
}

/// One entry for thousands of services: each costs what it costs alone, but for the depth of the trees. Without the
/// checks of [`World::run`].
#[test]
fn thousands_of_services_follow_in_one_entry() {
    let bytes_each = |services: u128| {
        let mut world = World::new();
        world.secret(1, "key", 1);
        for number in 1..=services {
            let index = world.state.applied().index + 1;
            let spec = with_secrets(&format!("web-{number}"), 1, &["key"]);
            let command = Command::CreateService { id: service_id(number), spec, at: world.now };
            assert!(matches!(world.state.apply(TERM, index, &command), Outcome::Applied { .. }));
        }
        // Somebody still reads the state as it was, so that nothing can be changed in place.
        let before = world.state.clone();
        let (outcome, _, allocated) =
            count(|| world.state.apply(TERM, before.applied().index + 1, &update(2)));
        let Outcome::Applied { changes, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(changes.len() as u128, services + 1);
        world.state.check().unwrap();
        allocated / i64::try_from(services).unwrap()
    };
    let (few, many) = (bytes_each(500), bytes_each(4000));
    println!("{few} bytes allocated per service of 500, {many} of 4000");
    assert!(many < few * 2, "{few} bytes allocated per service of 500, {many} of 4000");
}
