//! Values that tests of this crate share.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crate::handlers::images::fake::FakeImages;
use crate::node::metrics::WorkerMetrics;
use crate::tasks::checks::{CheckContext, CheckResults};
use warren_health::{Exec, ExecResult, ExecStatus, ProbeLimits, ProbeTarget, Prober};
use warren_image::{Digest, Reference};
use warren_types::fixtures::task_assignment;
pub use warren_types::fixtures::{image_digest as digest, published_port as port};
use warren_types::{
    ClusterId, Id, LogLimits, NodeId, NodeSettings, RetainedLog, ServiceId, TaskAssignment, TaskId,
};

/// Task `number` of the service that tests use.
pub fn task_id(number: u64) -> TaskId {
    TaskId { service: ServiceId(Id(7)), number }
}

/// The retained log of that task.
pub fn retained_log(number: u64) -> RetainedLog {
    let slot = u32::try_from(number).unwrap();
    RetainedLog { task: task_id(number), slot, limits: LogLimits::default() }
}

/// A desired task without ports.
pub fn task(number: u64) -> TaskAssignment {
    TaskAssignment {
        slot: u32::try_from(number).unwrap(),
        digest: Some(digest('a')),
        address: Ipv4Addr::new(10, 210, 0, 1 + u8::try_from(number).unwrap()),
        ..task_assignment(task_id(number))
    }
}

/// Checks that never run a program.
pub fn check_context() -> Arc<CheckContext> {
    struct NoPrograms;

    #[tonic::async_trait]
    impl Exec for NoPrograms {
        async fn run(&self, _: &ProbeTarget, _: &[String], _: Duration) -> ExecResult {
            ExecResult { status: ExecStatus::Failed("a test runs no programs".into()), output: String::new() }
        }
    }

    let (prober, metrics) =
        (Prober::new(Arc::new(NoPrograms), ProbeLimits::for_cores(1)), WorkerMetrics::default());
    Arc::new(CheckContext { prober, results: CheckResults::default(), metrics })
}

/// Name of the image that tests use.
pub fn tag() -> Reference {
    Reference::parse("demo:1").unwrap()
}

/// The image of [`task`] with its digest.
pub fn image() -> Reference {
    tag().with_digest(&Digest::parse(digest('a').as_str()).unwrap())
}

/// A node with [`image`], and a registry that does not answer.
pub fn images() -> FakeImages {
    let images = FakeImages::default();
    images.add(&tag(), image().digest().unwrap().clone());
    images
}

/// Node settings of tests.
pub fn settings() -> NodeSettings {
    NodeSettings {
        cluster: ClusterId(Id(1)),
        node: NodeId(Id(2)),
        name: "n1".parse().unwrap(),
        labels: BTreeMap::from([("zone".into(), "a".into())]),
        subnet: "10.210.0.0/24".parse().unwrap(),
        ranges: vec!["10.210.0.0/16".parse().unwrap()],
        heartbeat: Duration::from_secs(5),
        sync: Duration::from_secs(3),
        managers: Vec::new(),
    }
}
