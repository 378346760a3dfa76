//! Every engine that can keep the log keeps what was acknowledged, and only its own.

use warren_log::Engine;
use warren_manager::Manager;

use crate::world::{World, new_id, spec};

async fn names(world: &World) -> Vec<String> {
    let services = world.admin().await.services().list().await.unwrap();
    services.into_iter().map(|service| service.spec.unwrap().name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_acknowledged_is_there_again_whatever_keeps_the_log() {
    for engine in Engine::ALL {
        let mut world = World::with_engine(engine).await;
        let mut wanted = Vec::new();
        for round in 0..6 {
            for number in 0..5 {
                wanted.push(format!("s{round}{number}"));
                let spec = spec(wanted.last().unwrap(), 0);
                world.local().await.services().create(new_id(), &spec).await.unwrap();
            }
            if round % 2 == 0 {
                world.stop().await
            } else {
                world.drop_manager().await
            }
            world.start(false).await.unwrap();
            assert_eq!(names(&world).await, wanted, "{engine}");
        }
        let info = world.local().await.cluster().info().await.unwrap();
        assert_eq!((info.log_engine, info.log_held), (engine.to_string(), String::new()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_another_engine_is_left_alone() {
    for (made, other) in [(Engine::Redb, Engine::Sled), (Engine::Sled, Engine::Redb)] {
        let mut world = World::with_engine(made).await;
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
