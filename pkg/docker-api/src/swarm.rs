//! `/swarm`.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use warren_client::Client;
use warren_proto::v1;
use warren_types::DEFAULT_NODE_CERTIFICATE_LIFETIME;

use crate::docker_error::DockerError;
use crate::response::{Answer, joined, meta, ok, to_value};

/// Nanoseconds between two heartbeats of a node, which are fixed.
const HEARTBEAT: u64 = 5_000_000_000;

/// The cluster without its tokens.
pub fn cluster(info: &v1::InfoResponse) -> Value {
    let settings = info.settings.clone().unwrap_or_default();
    let lifetime = settings.node_certificate_lifetime_ms.map(Duration::from_millis);
    let lifetime = lifetime.unwrap_or(DEFAULT_NODE_CERTIFICATE_LIFETIME).as_nanos();
    let spec = json!({
        "Name": "default", "Labels": {},
        "Orchestration": {"TaskHistoryRetentionLimit": settings.task_history_limit},
        "Raft": {"ElectionTick": 10, "HeartbeatTick": 1, "KeepOldSnapshots": 0, "SnapshotInterval": 0},
        "Dispatcher": {"HeartbeatPeriod": HEARTBEAT},
        "CAConfig": {"NodeCertExpiry": u64::try_from(lifetime).unwrap_or(u64::MAX)},
        "TaskDefaults": {}, "EncryptionConfig": {"AutoLockManagers": info.autolock.unwrap_or_default()},
    });
    let cluster = json!({
        "ID": info.cluster_id, "Spec": spec, "TLSInfo": {}, "RootRotationInProgress": false,
        "DefaultAddrPool": info.ranges, "SubnetSize": 24, "DataPathPort": 4789,
    });
    joined(to_value(&meta(info.settings_version, info.created_at, info.created_at)), cluster)
}

/// `GET /swarm`. Tokens are shown only when they are created, so that their place has the command.
pub async fn inspect(client: &Client) -> Answer {
    let info = client.cluster().info().await?;
    let token = |role: &str| format!("(run: warren token create --role {role})");
    let tokens = json!({"JoinTokens": {"Worker": token("worker"), "Manager": token("manager")}});
    ok(&joined(cluster(&info), tokens))
}

/// `GET /swarm/unlockkey`. Empty while autolock is off.
pub async fn unlock_key(client: &Client) -> Answer {
    let key = client.cluster().unlock_key().await?;
    ok(&json!({"UnlockKey": key.key}))
}

/// Operations on the cluster, which need the machine itself.
pub fn refuse(operation: &str) -> Answer {
    let message = match operation {
        "init" => "This node is already part of a swarm: on another machine, use `warren manager init`",
        "join" => {
            "This node is already part of a swarm: on another machine, use `warren worker join` or `warren manager \
             join` with a token of `warren token create`"
        }
        "leave" => "use `warren worker leave` on the machine of a worker, or `warren manager rm`",
        "update" => "use `warren cluster update`; tokens are created with `warren token create`",
        "unlock" => "use `warren manager unlock` on the machine of the locked manager",
        _ => return Err(DockerError::not_found("page not found")),
    };
    let status = match operation {
        "init" | "join" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::NOT_IMPLEMENTED,
    };
    Err(DockerError::new(status, message))
}
