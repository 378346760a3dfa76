//! Concurrent writers: they share writes to the disk.

use futures::future::join_all;

use crate::fixture::{ManagerFixture, new_id, spec};

const WRITERS: usize = 32;
const EACH: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_share_durable_writes() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let before = client.cluster().info().await.unwrap();
    join_all((0..WRITERS).map(|writer| {
        let client = client.clone();
        async move {
            for number in 0..EACH {
                let name = format!("s-{writer}-{number}");
                let made = client.services().create(new_id(), &spec(&name, 0)).await.unwrap();
                // A client with an answer sees its effect.
                assert_eq!(client.services().get(&name).await.unwrap().id, made.id);
            }
        }
    }))
    .await;
    let after = client.cluster().info().await.unwrap();
    assert_eq!(after.services as usize, WRITERS * EACH);
    // Those of the clients, and those of the planner.
    let commands = after.applied_index - before.applied_index;
    assert!(commands >= (WRITERS * EACH) as u64, "{commands} commands");
    let writes = after.log_writes - before.log_writes;
    assert!(writes < commands / 2, "{writes} durable writes for {commands} commands");
}
