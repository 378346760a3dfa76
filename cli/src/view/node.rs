//! A node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde::Serialize;
use warren_proto::convert::{availability, node_condition, node_role, node_status, read_field};
use warren_proto::v1;
use warren_types::{
    Bytes, MilliCpu, NodeDescription, NodeStatus, Resources, Taint, Timestamp, Violation, Violations,
    WireGuardKey,
};

use super::verification::VerificationView;
use super::{TimeView, age, invalid_response, non_empty, rounded_bytes, short_id};
use crate::failure::CommandError;
use crate::output::{Column, FilterKey, ListedRow, TableRow, column, has_label, wide};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    id: String,
    pub name: String,
    version: u64,
    created_at: TimeView,
    status: &'static str,
    status_since: TimeView,
    role: &'static str,
    availability: &'static str,
    /// Labels from `node update`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Labels that the agent reports, for constraints on `engine.labels`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub engine_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub taints: BTreeSet<Taint>,
    address: String,
    /// Where other nodes send packets for its tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_address: Option<Ipv4Addr>,
    /// The public key with which they encrypt these packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    wireguard_key: Option<WireGuardKey>,
    /// Its kernel has AppArmor, and the default profile of containers is not loaded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    apparmor_missing: bool,
    /// Addresses of its tasks.
    subnets: Vec<String>,
    /// Manager of its session; absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    manager: Option<String>,
    /// Why it is down and what to do, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    os: String,
    architecture: String,
    kernel: String,
    runtime: String,
    warren_version: String,
    /// Digest of the program that it runs; absent without a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    program_digest: Option<String>,
    /// Size of the file system that holds images and containers.
    disk: String,
    resources: Resources,
    reserved: Resources,
    /// Reserved and total memory, in bytes.
    #[serde(skip)]
    memory: [u64; 2],
    /// Used and total bytes of the disk; used is unknown without a report.
    #[serde(skip)]
    disk_bytes: (Option<u64>, u64),
    tasks: u32,
    /// When its certificate ends; absent without a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_expires_at: Option<TimeView>,
    /// Problems: `disk pressure`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<&'static str>,
    /// Absent while the cluster verifies no nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationView>,
    /// Absent without a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<NodeUsageView>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeUsageView {
    cpu: String,
    memory: String,
    disk_used: String,
    disk_total: String,
    /// Problems, as reported by its agent.
    conditions: Vec<String>,
    #[serde(skip)]
    memory_bytes: u64,
}

impl TryFrom<v1::Node> for NodeView {
    type Error = CommandError;

    fn try_from(wire: v1::Node) -> Result<Self, CommandError> {
        parse(wire).map_err(invalid_response("the node"))
    }
}

fn parse(wire: v1::Node) -> Result<NodeView, Violations> {
    let under = |field: &'static str| {
        move |wrong: Violations| Violations(wrong.0.into_iter().map(|v| v.with_parent(field)).collect())
    };
    let v1::Node {
        id,
        name,
        version,
        created_at,
        description,
        subnets,
        status,
        status_since,
        reserved,
        tasks,
        usage,
        role,
        labels,
        availability: desired,
        conditions,
        manager,
        reason,
        taints,
        verification,
        program_digest,
    } = wire;
    let conditions = conditions.into_iter().map(|kind| node_condition(kind).map(|kind| kind.as_str()));
    let description = description.ok_or_else(|| Violation::new("description", "is missing"))?;
    let NodeDescription {
        resources,
        disk,
        os,
        architecture,
        kernel,
        runtime,
        version: warren_version,
        address,
        data_address,
        wireguard_key,
        apparmor_missing,
        labels: engine_labels,
    } = NodeDescription::try_from(description).map_err(under("description"))?;
    let reserved = reserved.map(Resources::from).unwrap_or_default();
    Ok(NodeView {
        memory: [reserved.memory.0, resources.memory.0],
        disk_bytes: (usage.as_ref().map(|usage| usage.disk_used_bytes), disk.0),
        id,
        name,
        version,
        created_at: TimeView::new(created_at),
        status: node_status(status).map_err(under("status"))?.as_str(),
        status_since: TimeView::new(status_since),
        role: node_role(role).map_err(under("role"))?.as_str(),
        availability: availability(desired).map_err(under("availability"))?.as_str(),
        labels,
        engine_labels,
        taints: read_field("taints", taints)?,
        address,
        data_address,
        wireguard_key,
        apparmor_missing,
        subnets,
        manager: non_empty(manager),
        reason: non_empty(reason),
        os,
        architecture,
        kernel,
        runtime,
        warren_version,
        program_digest: non_empty(program_digest),
        disk: disk.to_string(),
        resources,
        reserved,
        tasks,
        certificate_expires_at: usage
            .as_ref()
            .and_then(|usage| usage.certificate_expires_at)
            .map(TimeView::new),
        conditions: conditions.collect::<Result<_, _>>().map_err(under("conditions"))?,
        verification: verification
            .map(VerificationView::try_from)
            .transpose()
            .map_err(under("verification"))?,
        usage: usage.map(Into::into),
    })
}

impl From<v1::NodeUsage> for NodeUsageView {
    fn from(wire: v1::NodeUsage) -> Self {
        // Managers evaluate the kinds of conditions; the node shows the result.
        let v1::NodeUsage {
            cpu_milli,
            memory_bytes,
            disk_used_bytes,
            disk_total_bytes,
            condition_messages: conditions,
            conditions: _,
            certificate_expires_at: _,
            certificate_issued_at: _,
        } = wire;
        Self {
            cpu: MilliCpu(cpu_milli).to_string(),
            memory: Bytes(memory_bytes).to_string(),
            disk_used: Bytes(disk_used_bytes).to_string(),
            disk_total: Bytes(disk_total_bytes).to_string(),
            conditions,
            memory_bytes,
        }
    }
}

impl NodeView {
    pub fn is_ready(&self) -> bool {
        self.status == NodeStatus::Ready.as_str()
    }

    /// Reasons of nodes that are down, with their names.
    pub fn down_reasons(nodes: &[Self]) -> BTreeMap<&str, Vec<&str>> {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for node in nodes {
            if let Some(reason) = &node.reason {
                reasons.entry(reason).or_default().push(&node.name);
            }
        }
        reasons
    }

    /// Why it is not verified, and the texts of the agent if reported, else the kinds.
    fn conditions(&self) -> String {
        let problem = self.verification.as_ref().and_then(VerificationView::problem);
        let conditions = match &self.usage {
            Some(usage) if !usage.conditions.is_empty() => usage.conditions.clone(),
            _ => self.conditions.iter().map(ToString::to_string).collect(),
        };
        problem.into_iter().chain(conditions).collect::<Vec<_>>().join("; ")
    }
}

impl TableRow for NodeView {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("STATUS"),
        column("SINCE"),
        column("ROLE"),
        column("AVAILABILITY"),
        column("ADDRESS"),
        column("TASKS"),
        column("CPU"),
        column("MEMORY"),
        column("DISK").measured(),
        column("LABELS"),
        column("TAINTS"),
        wide("CPU USED").measured(),
        wide("MEMORY USED").measured(),
        wide("MANAGER"),
        wide("SUBNET"),
        wide("OS"),
        wide("ARCH"),
        wide("KERNEL"),
        wide("RUNTIME"),
        wide("VERSION"),
        wide("VERIFICATION"),
        column("ID"),
        column("CONDITIONS"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let taints: Vec<String> = self.taints.iter().map(ToString::to_string).collect();
        let labels = self.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let reported = self.engine_labels.iter().map(|(key, value)| format!("engine.labels.{key}={value}"));
        let labels: Vec<String> = labels.chain(reported).collect();
        vec![
            self.name.clone(),
            self.status.to_owned(),
            age(self.status_since.0, now),
            self.role.to_owned(),
            self.availability.to_owned(),
            self.address.clone(),
            self.tasks.to_string(),
            format!("{}/{}", self.reserved.cpu, self.resources.cpu),
            self.memory.map(rounded_bytes).join("/"),
            match self.disk_bytes {
                (Some(used), all) => format!("{}/{}", rounded_bytes(used), rounded_bytes(all)),
                (None, all) => rounded_bytes(all),
            },
            labels.join(","),
            taints.join(","),
            self.usage.as_ref().map(|usage| usage.cpu.clone()).unwrap_or_default(),
            self.usage.as_ref().map(|usage| rounded_bytes(usage.memory_bytes)).unwrap_or_default(),
            self.manager.clone().unwrap_or_default(),
            self.subnets.join(","),
            self.os.clone(),
            self.architecture.clone(),
            self.kernel.clone(),
            self.runtime.clone(),
            self.warren_version.clone(),
            self.verification.as_ref().map(|it| it.state.as_str().to_owned()).unwrap_or_default(),
            if wide { self.id.clone() } else { short_id(&self.id) },
            self.conditions(),
        ]
    }
}

impl ListedRow for NodeView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("name", |it, name| it.name.starts_with(name)),
        ("id", |it, id| it.id.starts_with(id)),
        ("label", |it, label| has_label(&it.labels, label)),
        ("node.label", |it, label| has_label(&it.labels, label)),
        ("engine.label", |it, label| has_label(&it.engine_labels, label)),
        ("role", |it, role| it.role.eq_ignore_ascii_case(role)),
        ("status", |it, status| it.status.eq_ignore_ascii_case(status)),
        ("verification", |it, text| {
            it.verification.as_ref().is_some_and(|it| it.state.as_str().eq_ignore_ascii_case(text))
        }),
        ("availability", |it, text| it.availability.eq_ignore_ascii_case(text)),
    ];
    const FIELD_ALIASES: &'static [(&'static str, &'static str)] =
        &[("Hostname", "NAME"), ("EngineVersion", "VERSION")];

    fn key(&self) -> String {
        self.id.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::{rendered, table_text_of, vertical};

    fn wire() -> v1::Node {
        let usage = v1::NodeUsage {
            cpu_milli: 120,
            memory_bytes: 1 << 30,
            disk_used_bytes: 5 << 30,
            disk_total_bytes: 40 << 30,
            condition_messages: vec!["the disk is full".into()],
            conditions: vec![v1::NodeCondition::DiskPressure.into()],
            certificate_expires_at: Some(90 * 86_400_000),
            certificate_issued_at: Some(0),
        };
        let description = v1::NodeDescription {
            resources: Some(v1::Resources { cpu_milli: 2000, memory_bytes: 8 << 30 }),
            architecture: "amd64".into(),
            kernel: "6.18.0".into(),
            runtime: "containerd 1.6.20".into(),
            warren_version: "0.1.0".into(),
            address: "10.0.0.7".into(),
            data_address: "192.168.1.7".into(),
            wireguard_key: String::new(),
            apparmor_missing: false,
            os: "linux".into(),
            disk_bytes: 40 << 30,
            labels: [("zone".to_owned(), "a".to_owned()), ("ssd".to_owned(), "yes".to_owned())].into(),
        };
        v1::Node {
            id: "3k2v9x0000000000000000abc".into(),
            name: "node-1".into(),
            version: 4,
            created_at: 0,
            description: Some(description),
            subnets: vec!["10.210.1.0/24".into()],
            status: v1::NodeStatus::Ready.into(),
            status_since: 1000,
            reserved: Some(v1::Resources { cpu_milli: 500, memory_bytes: 256 << 20 }),
            tasks: 2,
            usage: Some(usage),
            role: v1::NodeRole::Manager.into(),
            labels: [("zone".to_owned(), "b".to_owned())].into(),
            availability: v1::Availability::Drain.into(),
            conditions: vec![v1::NodeCondition::DiskPressure.into()],
            manager: "m2".into(),
            reason: String::new(),
            taints: vec!["gpu=a:NoSchedule".into(), "old:NoExecute".into()],
            verification: None,
            program_digest: format!("sha256:{}", "0123".repeat(16)),
        }
    }

    #[test]
    fn nodes_with_the_same_reason_are_named_together() {
        let node = |name: &str, reason: &str| {
            let wire = v1::Node { name: name.into(), reason: reason.into(), ..wire() };
            NodeView::try_from(wire).unwrap()
        };
        let nodes = [node("w1", "join again"), node("w2", ""), node("w3", "join again")];
        assert_eq!(NodeView::down_reasons(&nodes), [("join again", vec!["w1", "w3"])].into());
        let shown = rendered(OutputFormat::Yaml, &nodes[0]);
        assert!(shown.contains("reason: join again"), "{shown}");
    }

    #[test]
    fn nodes_have_a_line_each() {
        let nodes = [NodeView::try_from(wire()).unwrap()];
        let table = table_text_of(&nodes, false, Timestamp(6000));
        let line = |i| table.lines().nth(i).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        let titles =
            "NAME STATUS SINCE ROLE AVAILABILITY ADDRESS TASKS CPU MEMORY DISK LABELS TAINTS ID CONDITIONS";
        assert_eq!(line(0), titles);
        let row = "node-1 READY 5s manager drain 10.0.0.7 2 0.5/2 256MiB/8GiB 5GiB/40GiB";
        let labels = "zone=b,engine.labels.ssd=yes,engine.labels.zone=a";
        let taints = "gpu=a:NoSchedule,old:NoExecute";
        assert_eq!(line(1), format!("{row} {labels} {taints} 3k2v9x0000 the disk is full"));
        insta::assert_snapshot!(vertical(&nodes[0], Timestamp(6000)), @r"
        NAME node-1
        STATUS READY
        SINCE 5s
        ROLE manager
        AVAILABILITY drain
        ADDRESS 10.0.0.7
        TASKS 2
        CPU 0.5/2
        MEMORY 256MiB/8GiB
        DISK 5GiB/40GiB
        LABELS zone=b,engine.labels.ssd=yes,engine.labels.zone=a
        TAINTS gpu=a:NoSchedule,old:NoExecute
        CPU USED 0.12
        MEMORY USED 1GiB
        MANAGER m2
        SUBNET 10.210.1.0/24
        OS linux
        ARCH amd64
        KERNEL 6.18.0
        RUNTIME containerd 1.6.20
        VERSION 0.1.0
        VERIFICATION
        ID 3k2v9x0000000000000000abc
        CONDITIONS the disk is full
        ");
    }

    #[test]
    fn unreachable_node_keeps_its_conditions() {
        let kinds = [v1::NodeCondition::RuntimeUnavailable, v1::NodeCondition::ClockSkew];
        let silent = v1::Node { usage: None, conditions: kinds.map(i32::from).into(), ..wire() };
        let row = NodeView::try_from(silent).unwrap().cells(false, Timestamp(6000));
        assert_eq!(row.last().unwrap(), "runtime unavailable; clock skew");
        let later = v1::Node { conditions: vec![99], ..wire() };
        let failure = NodeView::try_from(later).unwrap_err().to_string();
        assert!(failure.contains("conditions: value 99 is not known to this version"), "{failure}");
    }

    #[test]
    fn documents_have_everything_and_keep_their_shape() {
        insta::assert_snapshot!(rendered(OutputFormat::Yaml, &NodeView::try_from(wire()).unwrap()), @r#"
        id: 3k2v9x0000000000000000abc
        name: node-1
        version: 4
        createdAt: "1970-01-01T00:00:00.000Z"
        status: READY
        statusSince: "1970-01-01T00:00:01.000Z"
        role: manager
        availability: drain
        labels:
          zone: b
        engineLabels:
          ssd: "yes"
          zone: a
        taints:
        - gpu=a:NoSchedule
        - old:NoExecute
        address: "10.0.0.7"
        dataAddress: "192.168.1.7"
        subnets:
        - 10.210.1.0/24
        manager: m2
        os: linux
        architecture: amd64
        kernel: "6.18.0"
        runtime: containerd 1.6.20
        warrenVersion: "0.1.0"
        programDigest: sha256:0123012301230123012301230123012301230123012301230123012301230123
        disk: 40GiB
        resources:
          cpu: "2"
          memory: 8GiB
        reserved:
          cpu: "0.5"
          memory: 256MiB
        tasks: 2
        certificateExpiresAt: "1970-04-01T00:00:00.000Z"
        conditions:
        - disk pressure
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
