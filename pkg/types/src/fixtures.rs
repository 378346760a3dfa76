//! Values that tests of several crates share.

use std::collections::BTreeMap;

use crate::{
    DesiredTaskState, Health, ImageDigest, Protocol, PublishMode, PublishedPort, TaskAssignment, TaskId,
    TaskReport, TaskSpec, TaskState, Timestamp,
};

/// A digest that repeats one digit.
pub fn image_digest(digit: char) -> ImageDigest {
    format!("sha256:{}", digit.to_string().repeat(64)).parse().expect("it has 64 digits")
}

/// A port of the node that leads to port 80 of the container.
pub fn published_port(host_port: u16) -> PublishedPort {
    let (protocol, mode) = (Protocol::Tcp, PublishMode::Host);
    PublishedPort {
        host_ip: None,
        host_port,
        container_port: 80,
        protocol,
        mode,
        prefer_local: false,
        client_affinity: false,
    }
}

/// A task of the service `web` that should run, without ports and digest.
pub fn task_assignment(id: TaskId) -> TaskAssignment {
    TaskAssignment {
        id,
        service: "web".parse().expect("it is a name"),
        slot: 1,
        revision: 1,
        spec: TaskSpec::new("demo:1".parse().expect("it is an image")),
        digest: None,
        ports: Vec::new(),
        address: [10, 210, 0, 2].into(),
        desired: DesiredTaskState::Running,
        service_labels: BTreeMap::new(),
        volumes: Vec::new(),
        bootstrap: false,
    }
}

/// A report of a task that is not ready and has not exited.
pub fn task_report(task: TaskId, attempt: u32, state: TaskState) -> TaskReport {
    TaskReport {
        task,
        attempt,
        state,
        since: Timestamp(0),
        reason: String::new(),
        ready: false,
        exit: None,
        removed: false,
        next_attempt: None,
        image: None,
        health: Health::None,
    }
}
