//! The tasks that are driven.

use std::time::Duration;

use warren_types::fixtures::{published_port, task_assignment};
use warren_types::spec::{
    HealthCheck, Mount, MountSource, Probe, RestartCondition, RestartPolicy, SecretObjectMount,
};
use warren_types::{
    DesiredTaskState, Id, ImageResolver, LifecycleHook, OnDisconnect, ServiceId, TaskAssignment, TaskId,
    TaskSpec,
};

/// How long a task with all features keeps running while disconnected.
pub const DISCONNECT_LIMIT: Duration = Duration::from_secs(60);

/// A task without or with all features.
pub fn task(condition: RestartCondition, has_more: bool) -> TaskAssignment {
    TaskAssignment {
        spec: TaskSpec {
            restart: RestartPolicy { condition, ..RestartPolicy::default() },
            resolve_image: ImageResolver::Worker,
            ..if has_more { full() } else { TaskSpec::new("demo:1".parse().unwrap()) }
        },
        ports: vec![published_port(8080)],
        desired: DesiredTaskState::Ready,
        ..task_assignment(TaskId { service: ServiceId(Id(1)), number: 1 })
    }
}

/// With every feature of a task.
fn full() -> TaskSpec {
    let source = MountSource::Volume { name: "data".into(), subpath: None, no_copy: false };
    TaskSpec {
        mounts: vec![Mount { target: "/data".into(), source, read_only: false }],
        secrets: vec![SecretObjectMount::new("db".parse().unwrap())],
        health: Some(HealthCheck::new(Probe::Tcp { port: 80 })),
        post_start: vec![LifecycleHook::new(vec!["/set-up".into()])],
        pre_stop: vec![LifecycleHook::new(vec!["/shut-down".into()])],
        on_disconnect: OnDisconnect::StopAfter(DISCONNECT_LIMIT),
        ..TaskSpec::new("demo:1".parse().unwrap())
    }
}
