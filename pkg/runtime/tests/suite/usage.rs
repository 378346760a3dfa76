//! Resource usage of a real container.

use std::time::Duration;

use warren_runtime::{ContainerLimits, Runtime};
use warren_testkit::machine_load::thread_cpu_time;
use warren_types::Bytes;

use crate::world::{RuntimeFixture, end, eventually, id, run, sleeper, spec};

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_counted_until_process_ends() {
    let world = RuntimeFixture::start().await;
    let usage = |name: &str| world.runtime.usage(&id(name));
    assert_eq!(usage("busy"), None, "there is none");
    let limits = ContainerLimits { memory: Some(Bytes(64 << 20)), ..ContainerLimits::default() };
    let script = "sleep 100000 & while :; do :; done";
    let busy = warren_runtime::ContainerSpec { limits, ..spec("busy", &["sh", "-c", script]) };
    let idle = sleeper("idle");
    run(&world.runtime, &busy).await;
    run(&world.runtime, &idle).await;
    let worked = |name: &str| usage(name).is_some_and(|usage| usage.cpu > Duration::from_millis(200));
    eventually("it has used the CPU for a while", || async { worked("busy") }).await;
    // A started container has the threads of runc until its program replaces them.
    let is_alone = |name: &str| usage(name).is_some_and(|usage| usage.pids == 1);
    eventually("the other executes its program", || async { is_alone("idle") }).await;
    let (busy_usage, idle_usage) = (usage("busy").unwrap(), usage("idle").unwrap());
    assert!(busy_usage.cpu > idle_usage.cpu, "{busy_usage:?} {idle_usage:?}");
    assert_eq!((busy_usage.pids, idle_usage.pids), (2, 1));
    for usage in [busy_usage, idle_usage] {
        assert!((1 << 12..64 << 20).contains(&usage.memory), "{usage:?}");
        assert_eq!((usage.received, usage.sent), (0, 0), "it has no network but its own loopback: {usage:?}");
    }
    let began = thread_cpu_time();
    for _ in 0..100 {
        usage("idle").unwrap();
    }
    // A few kernel files each; a second for a hundred containers would be too much every five seconds.
    let took = thread_cpu_time() - began;
    assert!(took < Duration::from_secs(1), "100 looks took {took:?}");
    end(&world.runtime, &busy).await;
    end(&world.runtime, &idle).await;
    assert_eq!(usage("busy"), None, "it is gone");
    world.assert_clean().await;
}
