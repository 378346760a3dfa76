//! Flags of the worker.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use warren_daemon::{CommandError, as_text};
use warren_image::RegistrySettings;
use warren_network::PortRange;
use warren_types::name::is_label_key;
use warren_types::quantity::ParseQuantityError;
use warren_types::spec::{LABEL_FORMAT, validate_taints};
use warren_types::{Bytes, MilliCpu, NodeName, Taint, Violations, validate_engine_labels};

use super::NOT_STARTED;
use crate::handlers::user_namespaces::UserIds;
use crate::network::NetworkOptions;
use crate::network::data_address::parse_data_address;

/// Less is useless for tasks and probably a mistake: `--cpus 0`, or cores instead of thousandths.
const MIN_CPU: MilliCpu = MilliCpu(100);
/// Likewise: `--memory 1`, or bytes instead of mebibytes.
const MIN_MEMORY: Bytes = Bytes(64 << 20);

/// Flags of a worker as stored in `node.toml`. `None`: not set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[group(skip)]
pub struct WorkerFlags {
    /// Socket of containerd [default: /run/containerd/containerd.sock if present, else a containerd started
    /// by the node]
    #[arg(long, env = "WARREN_CONTAINERD_SOCKET", value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub containerd_socket: Option<PathBuf>,
    /// OCI runtime: runc, crun, or a path [default: runc]
    #[arg(long, env = "WARREN_RUNTIME", value_name = "RUNTIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// CPU available for tasks, like 1.5 or 1500m, at least 0.1 [default: all cores]
    #[arg(long, env = "WARREN_CPUS", value_name = "CPUS", value_parser = parse_cpus)]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub cpus: Option<MilliCpu>,
    /// Memory available for tasks, like 2GiB, at least 64MiB [default: all memory]
    #[arg(long, env = "WARREN_MEMORY", value_name = "BYTES", value_parser = parse_memory)]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub memory: Option<Bytes>,
    /// Node name [default: the host name]
    #[arg(long, env = "WARREN_NODE_NAME", value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<NodeName>,
    /// Address to which other nodes send packets of containers [default: the source address of the route to
    /// a manager]
    #[arg(long, env = "WARREN_DATA_ADDRESS", value_name = "IP", value_parser = parse_data_address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_address: Option<Ipv4Addr>,
    /// UDP port for packets between containers of different nodes, the same on all nodes [default: 4789]
    #[arg(long, env = "WARREN_VXLAN_PORT", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vxlan_port: Option<u16>,
    /// Number of the virtual network between the nodes, the same on all nodes [default: 4096]
    #[arg(long, env = "WARREN_VXLAN_ID", value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vxlan_id: Option<u32>,
    /// UDP port for encrypted packets between nodes, the same on all nodes [default: 51820]
    #[arg(long, env = "WARREN_WIREGUARD_PORT", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wireguard_port: Option<u16>,
    /// Port of this node that containers may reach: PORT[-PORT][/PROTOCOL] (repeatable)
    #[allow(rustdoc::broken_intra_doc_links, reason = "the help has optional parts in brackets")]
    #[arg(long, env = "WARREN_ALLOW_PORT", value_name = "PORTS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_port: Vec<PortRangeArg>,
    /// Report a label of the node, for constraints on engine.labels.KEY (repeatable). For node.labels.KEY use
    /// `warren token create --label` or `warren node update --label-add`
    #[arg(long, env = "WARREN_LABEL", value_name = "KEY=VALUE", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub label: Vec<LabelArg>,
    /// Ids of this node for users of containers that have a user namespace of their own
    /// [default: 1879048192-2147352575]
    #[arg(long, env = "WARREN_USER_NAMESPACE_IDS", value_name = "FIRST-LAST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_namespace_ids: Option<UserIds>,
    /// Allow plain HTTP to this registry (repeatable)
    #[arg(long, env = "WARREN_INSECURE_REGISTRY", value_name = "HOST:PORT", value_delimiter = ',')]
    #[arg(value_parser = parse_registry)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub insecure_registry: Vec<String>,
    /// Taints of the node when it is registered for the first time; only a command that joins has the flag.
    #[arg(skip)]
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub taints: BTreeSet<Taint>,
}

/// The flag of commands that register the node.
#[derive(Debug, Clone, Default, Args)]
pub struct TaintArgs {
    /// Set a taint of a new node; `node update` changes those of a known one (repeatable)
    #[arg(long, env = "WARREN_TAINT", value_name = "KEY[=VALUE]:EFFECT", value_delimiter = ',')]
    pub taint: Vec<Taint>,
}

impl TaintArgs {
    /// The taints of the flag.
    ///
    /// # Errors
    /// They have a key and an effect twice, or are too many; `what` was not done then.
    pub fn into_taints(self, what: &str) -> Result<BTreeSet<Taint>, CommandError> {
        let mut wrong = Violations::default();
        validate_taints("--taint", &self.taint, &mut wrong);
        let taints = self.taint.into_iter().collect();
        wrong.into_result(taints).map_err(|wrong| CommandError::invalid_fields(what, wrong))
    }
}

impl WorkerFlags {
    /// These flags, and those of `old` where this has none.
    #[must_use]
    pub fn or(self, old: Self) -> Self {
        fn list<T>(given: Vec<T>, old: Vec<T>) -> Vec<T> {
            if given.is_empty() { old } else { given }
        }
        Self {
            containerd_socket: self.containerd_socket.or(old.containerd_socket),
            runtime: self.runtime.or(old.runtime),
            cpus: self.cpus.or(old.cpus),
            memory: self.memory.or(old.memory),
            node_name: self.node_name.or(old.node_name),
            data_address: self.data_address.or(old.data_address),
            vxlan_port: self.vxlan_port.or(old.vxlan_port),
            vxlan_id: self.vxlan_id.or(old.vxlan_id),
            wireguard_port: self.wireguard_port.or(old.wireguard_port),
            allow_port: list(self.allow_port, old.allow_port),
            label: list(self.label, old.label),
            user_namespace_ids: self.user_namespace_ids.or(old.user_namespace_ids),
            insecure_registry: list(self.insecure_registry, old.insecure_registry),
            taints: if self.taints.is_empty() { old.taints } else { self.taints },
        }
    }

    /// How the node takes part in the network of the cluster.
    pub fn network(&self) -> NetworkOptions {
        let defaults = NetworkOptions::default();
        NetworkOptions {
            vxlan_port: self.vxlan_port.unwrap_or(defaults.vxlan_port),
            vxlan_id: self.vxlan_id.unwrap_or(defaults.vxlan_id),
            wireguard_port: self.wireguard_port.unwrap_or(defaults.wireguard_port),
            allowed_ports: self.allow_port.iter().map(|PortRangeArg(range)| *range).collect(),
        }
    }

    /// Checks what managers would reject with every session.
    ///
    /// # Errors
    /// The labels are too many or too large.
    pub(super) fn check_labels(&self) -> Result<(), CommandError> {
        let mut wrong = Violations::default();
        validate_engine_labels(&self.labels(), &mut wrong);
        wrong.into_result(()).map_err(|wrong| CommandError::invalid_fields(NOT_STARTED, wrong))
    }

    /// The labels by key; the last one with the same key wins.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.label.iter().map(|LabelArg { key, value }| (key.clone(), value.clone())).collect()
    }
}

/// A label in its text form: `zone=a`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelArg {
    /// Label key.
    pub key: String,
    /// Label value; may be empty.
    pub value: String,
}

impl FromStr for LabelArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("give KEY=VALUE")?;
        if !is_label_key(key) || value.len() > 1024 {
            return Err(LABEL_FORMAT.to_owned());
        }
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

impl fmt::Display for LabelArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

impl Serialize for LabelArg {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LabelArg {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A range of ports in its text form: `6000-6009/udp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRangeArg(pub PortRange);

impl FromStr for PortRangeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl Serialize for PortRangeArg {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PortRangeArg {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Validates `host:port` as a dial address.
pub(super) fn parse_manager(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or("give HOST:PORT, like 10.0.0.7:8080")?;
    let port = port.parse::<u16>().ok().filter(|port| *port > 0);
    let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if host.is_empty() || bare_v6 || port.is_none() || host.contains(char::is_whitespace) {
        return Err("give HOST:PORT, like 10.0.0.7:8080 or [fd00::1]:8080".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_cpus(text: &str) -> Result<MilliCpu, String> {
    let cpus: MilliCpu = text.parse().map_err(|error: ParseQuantityError| error.to_string())?;
    if cpus < MIN_CPU { Err(format!("a node needs at least {MIN_CPU} CPUs for its tasks")) } else { Ok(cpus) }
}

fn parse_memory(text: &str) -> Result<Bytes, String> {
    let memory: Bytes = text.parse().map_err(|error: ParseQuantityError| error.to_string())?;
    if memory < MIN_MEMORY {
        Err(format!("a node needs at least {MIN_MEMORY} for its tasks"))
    } else {
        Ok(memory)
    }
}

fn parse_registry(text: &str) -> Result<String, String> {
    let mut registries = RegistrySettings::default();
    registries.allow_plain_http(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

pub(super) fn parse_timeout(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "give a duration like 90s or 10m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_network::TransportProtocol;

    #[test]
    fn managers_have_a_host_and_a_port() {
        for good in ["10.0.0.7:8080", "[fd00::1]:8080", "m1.example:1"] {
            assert_eq!(parse_manager(good), Ok(good.to_owned()));
        }
        for bad in ["", "10.0.0.7", ":8080", "a:0", "a:x", "fd00::1:8080", "a b:1"] {
            assert!(parse_manager(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn labels_have_a_key() {
        let label: LabelArg = "zone=a=b".parse().unwrap();
        assert_eq!((label.key.as_str(), label.value.as_str()), ("zone", "a=b"));
        for bad in ["zone", "=a", "a b=c"] {
            assert!(bad.parse::<LabelArg>().is_err(), "{bad}");
        }
        let label = (0..65).map(|number| format!("l{number}=").parse().unwrap()).collect();
        let flags = WorkerFlags { label, ..WorkerFlags::default() };
        assert!(flags.check_labels().is_err() && WorkerFlags::default().check_labels().is_ok());
    }

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        flags: WorkerFlags,
    }

    #[test]
    fn invalid_value_is_refused_with_flag_name() {
        use clap::Parser;
        for (flag, bad) in [
            ("--cpus", &["0", "99m", "many"][..]),
            ("--memory", &["1", "65535K", "63Mi", "lots"][..]),
            ("--insecure-registry", &["a b", "", "http://a", "good:5000,a b"][..]),
            ("--data-address", &["", "n1", "127.0.0.1", "fd00::1"][..]),
            ("--vxlan-port", &["0", "65536", "vxlan"][..]),
            ("--vxlan-id", &["0", "16777216", "vxlan"][..]),
            ("--wireguard-port", &["0", "65536", "wireguard"][..]),
            ("--allow-port", &["", "0", "65536", "9-8", "80/ip", "80-", "80,"][..]),
            ("--user-namespace-ids", &["", "100000", "0-1000000", "100000-100001"][..]),
        ] {
            for value in bad {
                let error = Cli::try_parse_from(["warren", flag, value]).unwrap_err();
                assert!(error.to_string().contains(flag) && error.exit_code() == 2, "{error}");
            }
        }
        let line = "warren --cpus 0.1 --memory 64Mi --insecure-registry a:5000,b.example --vxlan-port 8472 \
                    --data-address 192.0.2.7 --vxlan-id 7 --allow-port 9100,6000-6009/udp";
        let Cli { flags } = Cli::try_parse_from(line.split(' ')).unwrap();
        assert_eq!((flags.cpus, flags.memory), (Some(MIN_CPU), Some(MIN_MEMORY)));
        assert_eq!(flags.insecure_registry, ["a:5000", "b.example"]);
        assert_eq!((flags.data_address, flags.vxlan_port), (Some([192, 0, 2, 7].into()), Some(8472)));
        let ports = |protocol, first, last| PortRange { protocol, first, last };
        let expected = NetworkOptions {
            vxlan_port: 8472,
            vxlan_id: 7,
            allowed_ports: [
                ports(TransportProtocol::Tcp, 9100, 9100),
                ports(TransportProtocol::Udp, 6000, 6009),
            ]
            .into(),
            ..NetworkOptions::default()
        };
        assert_eq!(flags.network(), expected);
    }

    #[test]
    fn given_flags_override_saved_ones() {
        let old = WorkerFlags {
            runtime: Some("crun".into()),
            cpus: Some(MilliCpu(500)),
            data_address: Some([192, 0, 2, 7].into()),
            vxlan_port: Some(8472),
            vxlan_id: Some(7),
            wireguard_port: Some(51821),
            allow_port: vec!["9100-9109/udp".parse().unwrap()],
            user_namespace_ids: Some("1000000-2000000".parse().unwrap()),
            ..WorkerFlags::default()
        };
        let label = vec!["a=b".parse().unwrap()];
        let taints = BTreeSet::from(["a=b:NoSchedule".parse().unwrap()]);
        let given = WorkerFlags {
            cpus: Some(MilliCpu(1000)),
            label: label.clone(),
            taints: taints.clone(),
            ..WorkerFlags::default()
        };
        let both = given.or(old);
        let expected = WorkerFlags {
            runtime: Some("crun".into()),
            cpus: Some(MilliCpu(1000)),
            label,
            data_address: Some([192, 0, 2, 7].into()),
            vxlan_port: Some(8472),
            vxlan_id: Some(7),
            wireguard_port: Some(51821),
            allow_port: vec!["9100-9109/udp".parse().unwrap()],
            user_namespace_ids: Some("1000000-2000000".parse().unwrap()),
            taints,
            ..WorkerFlags::default()
        };
        assert_eq!(both, expected);
        assert_eq!(WorkerFlags::default().or(both.clone()), both);
        let text = toml::to_string(&both).unwrap();
        assert_eq!(toml::from_str::<WorkerFlags>(&text).unwrap(), both);
    }
}
