//! A machine of the cluster.

use serde::Serialize;
use warren_proto::convert::node_status;
use warren_proto::v1;
use warren_types::{Bytes, MilliCpu, NodeDescription, Resources, Timestamp, Violation, Violations};

use super::spec::ResourcesView;
use super::{Time, about, age, short_id, unreadable};
use crate::failure::Failure;
use crate::output::{Column, Row, column, wide};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    id: String,
    name: String,
    version: u64,
    created_at: Time,
    status: &'static str,
    status_since: Time,
    address: String,
    subnet: String,
    architecture: String,
    kernel: String,
    runtime: String,
    warren_version: String,
    resources: ResourcesView,
    reserved: ResourcesView,
    /// Reserved and offered memory, in bytes.
    #[serde(skip)]
    memory: [u64; 2],
    tasks: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageView>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UsageView {
    cpu: String,
    memory: String,
    disk_used: String,
    disk_total: String,
    conditions: Vec<String>,
}

impl TryFrom<v1::Node> for NodeView {
    type Error = Failure;

    fn try_from(wire: v1::Node) -> Result<Self, Failure> {
        parse(wire).map_err(unreadable("the node"))
    }
}

fn parse(wire: v1::Node) -> Result<NodeView, Violations> {
    let status = node_status(wire.status);
    let status = status.map_err(|v| Violations(v.0.into_iter().map(|v| v.under("status")).collect()))?;
    let missing = || Violation::new("description", "is missing");
    let description = NodeDescription::try_from(wire.description.ok_or_else(missing)?)?;
    let reserved = wire.reserved.map(Resources::from).unwrap_or_default();
    Ok(NodeView {
        memory: [reserved.memory.0, description.resources.memory.0],
        id: wire.id,
        name: wire.name,
        version: wire.version,
        created_at: Time::new(wire.created_at),
        status: status.as_str(),
        status_since: Time::new(wire.status_since),
        address: description.address,
        subnet: wire.subnet,
        architecture: description.architecture,
        kernel: description.kernel,
        runtime: description.runtime,
        warren_version: description.version,
        resources: description.resources.into(),
        reserved: reserved.into(),
        tasks: wire.tasks,
        usage: wire.usage.map(Into::into),
    })
}

impl From<v1::NodeUsage> for UsageView {
    fn from(wire: v1::NodeUsage) -> Self {
        Self {
            cpu: MilliCpu(wire.cpu_milli).to_string(),
            memory: Bytes(wire.memory_bytes).to_string(),
            disk_used: Bytes(wire.disk_used_bytes).to_string(),
            disk_total: Bytes(wire.disk_total_bytes).to_string(),
            conditions: wire.conditions,
        }
    }
}

impl Row for NodeView {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("STATUS"),
        column("SINCE"),
        column("ADDRESS"),
        column("TASKS"),
        column("CPU"),
        column("MEMORY"),
        wide("SUBNET"),
        wide("ARCH"),
        wide("KERNEL"),
        wide("RUNTIME"),
        wide("VERSION"),
        column("ID"),
        column("CONDITIONS"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        vec![
            self.name.clone(),
            self.status.to_owned(),
            age(self.status_since.0, now),
            self.address.clone(),
            self.tasks.to_string(),
            format!("{}/{}", self.reserved.cpu, self.resources.cpu),
            self.memory.map(about).join("/"),
            self.subnet.clone(),
            self.architecture.clone(),
            self.kernel.clone(),
            self.runtime.clone(),
            self.warren_version.clone(),
            if wide { self.id.clone() } else { short_id(&self.id) },
            self.usage.as_ref().map(|usage| usage.conditions.join("; ")).unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::tests::{rendered, shown, upright};

    fn wire() -> v1::Node {
        let usage = v1::NodeUsage {
            cpu_milli: 120,
            memory_bytes: 1 << 30,
            disk_used_bytes: 5 << 30,
            disk_total_bytes: 40 << 30,
            conditions: vec!["the disk is full".into()],
        };
        let description = v1::NodeDescription {
            resources: Some(v1::Resources { cpu_milli: 2000, memory_bytes: 8 << 30 }),
            architecture: "amd64".into(),
            kernel: "6.18.0".into(),
            runtime: "containerd 1.6.20".into(),
            warren_version: "0.1.0".into(),
            address: "10.0.0.7".into(),
        };
        v1::Node {
            id: "3k2v9x0000000000000000abc".into(),
            name: "node-1".into(),
            version: 4,
            created_at: 0,
            description: Some(description),
            subnet: "10.210.1.0/24".into(),
            status: v1::NodeStatus::Ready.into(),
            status_since: 1000,
            reserved: Some(v1::Resources { cpu_milli: 500, memory_bytes: 256 << 20 }),
            tasks: 2,
            usage: Some(usage),
        }
    }

    #[test]
    fn nodes_have_a_line_each() {
        let nodes = [NodeView::try_from(wire()).unwrap()];
        insta::assert_snapshot!(shown(&nodes, false, Timestamp(6000)), @r"
        NAME     STATUS   SINCE   ADDRESS    TASKS   CPU     MEMORY        ID           CONDITIONS
        node-1   READY    5s      10.0.0.7   2       0.5/2   256MiB/8GiB   3k2v9x0000   the disk is full
        ");
        insta::assert_snapshot!(upright(&nodes[0], Timestamp(6000)), @r"
        NAME node-1
        STATUS READY
        SINCE 5s
        ADDRESS 10.0.0.7
        TASKS 2
        CPU 0.5/2
        MEMORY 256MiB/8GiB
        SUBNET 10.210.1.0/24
        ARCH amd64
        KERNEL 6.18.0
        RUNTIME containerd 1.6.20
        VERSION 0.1.0
        ID 3k2v9x0000000000000000abc
        CONDITIONS the disk is full
        ");
    }

    #[test]
    fn documents_have_everything_and_keep_their_shape() {
        insta::assert_snapshot!(rendered(Format::Yaml, &NodeView::try_from(wire()).unwrap()), @r#"
        id: 3k2v9x0000000000000000abc
        name: node-1
        version: 4
        createdAt: "1970-01-01T00:00:00.000Z"
        status: READY
        statusSince: "1970-01-01T00:00:01.000Z"
        address: "10.0.0.7"
        subnet: 10.210.1.0/24
        architecture: amd64
        kernel: "6.18.0"
        runtime: containerd 1.6.20
        warrenVersion: "0.1.0"
        resources:
          cpu: "2"
          memory: 8GiB
        reserved:
          cpu: "0.5"
          memory: 256MiB
        tasks: 2
        usage:
          cpu: "0.12"
          memory: 1GiB
          diskUsed: 5GiB
          diskTotal: 40GiB
          conditions:
          - the disk is full
        "#);
    }
}
