//! What a real container uses, as the kernel of this machine counts it.

use std::time::{Duration, Instant};

use warren_runtime::{Limits, Runtime};
use warren_types::Bytes;

use crate::world::{World, end, eventually, id, run, sleeper, spec};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_container_uses_is_counted_until_its_process_ends() {
    let world = World::start().await;
    let usage = |name: &str| world.runtime.usage(&id(name));
    assert_eq!(usage("busy"), None, "there is none");
    let limits = Limits { memory: Some(Bytes(64 << 20)), ..Limits::default() };
    let script = "sleep 100000 & while :; do :; done";
    let busy = warren_runtime::ContainerSpec { limits, ..spec("busy", &["sh", "-c", script]) };
    let idle = sleeper("idle");
    run(&world.runtime, &busy).await;
    run(&world.runtime, &idle).await;
    let worked = |name: &str| usage(name).is_some_and(|usage| usage.cpu > Duration::from_millis(200));
    eventually("it has used the CPU for a while", || async { worked("busy") }).await;
    let (busy_usage, idle_usage) = (usage("busy").unwrap(), usage("idle").unwrap());
    assert!(busy_usage.cpu > idle_usage.cpu, "{busy_usage:?} {idle_usage:?}");
    assert_eq!((busy_usage.pids, idle_usage.pids), (2, 1));
    for usage in [busy_usage, idle_usage] {
        assert!((1 << 12..64 << 20).contains(&usage.memory), "{usage:?}");
        assert_eq!((usage.received, usage.sent), (0, 0), "it has no network but its own loopback: {usage:?}");
    }
    let began = Instant::now();
    for _ in 0..100 {
        usage("idle").unwrap();
    }
    // A few files of the kernel each; a second for a hundred would be too much every five.
    assert!(began.elapsed() < Duration::from_secs(1), "100 looks took {:?}", began.elapsed());
    end(&world.runtime, &busy).await;
    end(&world.runtime, &idle).await;
    assert_eq!(usage("busy"), None, "it is gone");
    world.assert_clean().await;
}
