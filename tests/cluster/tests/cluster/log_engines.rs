//! Every log engine keeps acknowledged writes, and opens only its own files.

use warren_log::LogEngine;
use warren_manager::Manager;

use crate::fixture::{ManagerFixture, new_id, spec};

async fn names(world: &ManagerFixture) -> Vec<String> {
    let services = world.admin().await.services().list().await.unwrap();
    services.into_iter().map(|service| service.spec.unwrap().name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_with_every_engine() {
    for engine in LogEngine::ALL {
        let mut world = ManagerFixture::with_engine(engine).await;
        let mut expected = Vec::new();
        for round in 0..6 {
            for number in 0..5 {
                expected.push(format!("s{round}{number}"));
                let spec = spec(expected.last().unwrap(), 0);
                world.local().await.services().create(new_id(), &spec).await.unwrap();
            }
            if round % 2 == 0 {
                world.stop().await
            } else {
                world.drop_manager().await
            }
            world.start(false).await.unwrap();
            assert_eq!(names(&world).await, expected, "{engine}");
        }
        let info = world.local().await.cluster().info().await.unwrap();
        assert_eq!((info.log_engine, info.log_write_stall), (engine.to_string(), String::new()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_another_engine_is_left_alone() {
    for (made, other) in [(LogEngine::Redb, LogEngine::Sled), (LogEngine::Sled, LogEngine::Redb)] {
        let mut world = ManagerFixture::with_engine(made).await;
        world.local().await.services().create(new_id(), &spec("a", 0)).await.unwrap();
        world.stop().await;
        world.engine = other;
        for create in [false, true] {
            let error = Manager::start(world.config(), create).await.err().expect("a refusal").to_string();
            let says = format!("was written by {made}, but the log engine is set to {other}");
            assert!(error.contains(&says), "{error}");
        }
        world.engine = made;
        world.start(false).await.unwrap();
        assert_eq!(names(&world).await, ["a"]);
    }
}
