//! The text of the systemd unit that runs a node. Pure.

use std::path::{Path, PathBuf};

use warren_daemon::DATA_DIR;

use crate::node::NodeKind;

/// First words of a unit that this program wrote.
const HEADER: &str = "# Written by `warren system install`";

/// A unit that runs the node of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUnit {
    /// The program `warren`.
    pub program: PathBuf,
    /// The parts of the node.
    pub kind: NodeKind,
    /// Its data directory.
    pub data_dir: PathBuf,
    /// Its run directory, if it is another one than the settings say.
    pub run_dir: Option<PathBuf>,
}

/// A path that cannot be written into a unit.
#[derive(Debug, PartialEq, Eq)]
pub struct UnsupportedPath(pub PathBuf);

impl NodeUnit {
    /// The text of the file.
    ///
    /// # Errors
    /// A path is not in UTF-8 or has a control character.
    pub fn render(&self) -> Result<String, UnsupportedPath> {
        let Self { program, kind, data_dir, run_dir } = self;
        let (verb, parts) = match kind {
            NodeKind::Manager => ("manager run", "manager"),
            NodeKind::Hybrid => ("manager run", "manager and worker"),
            NodeKind::Worker => ("worker run", "worker"),
        };
        let mut command = format!("{} {verb}", quoted(program)?);
        if data_dir != Path::new(DATA_DIR) {
            command += &format!(" --data-dir {}", quoted(data_dir)?);
        }
        if let Some(run_dir) = run_dir {
            command += &format!(" --run-dir {}", quoted(run_dir)?);
        }
        let protection = if *kind == NodeKind::Manager { MANAGER_PROTECTION } else { WORKER_PROTECTION };
        Ok(format!(
            "{HEADER}, which replaces it. Use `systemctl edit warren` for changes.\n\n\
             [Unit]\nDescription=Warren node: {parts}\nDocumentation=man:warren(1)\n{ORDER}\n\
             [Service]\nType=notify\nExecStart={command}\n{SERVICE}{protection}\n\
             [Install]\nWantedBy=multi-user.target\n"
        ))
    }
}

/// Whether `text` is a unit that this program wrote.
pub fn is_own(text: &str) -> bool {
    text.starts_with(HEADER)
}

/// A word of a command line (systemd.service(5)): no variable and no specifier in it is replaced.
fn quoted(path: &Path) -> Result<String, UnsupportedPath> {
    let text = path.to_str().filter(|text| !text.chars().any(char::is_control));
    let text = text.ok_or_else(|| UnsupportedPath(path.to_owned()))?;
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    Ok(format!("\"{escaped}\""))
}

const ORDER: &str = "\
# After the machine's containerd, if it has one, and after firewalls that remove the rules of others when they start.
Wants=network-online.target
After=network-online.target time-sync.target containerd.service
After=nftables.service netfilter-persistent.service firewalld.service ufw.service
# A node whose cause of failure is gone comes back, however often it failed before.
StartLimitIntervalSec=0
";

const SERVICE: &str = "\
# The node reports when it serves. To read a long log, or to start containerd, takes it a while on a slow disk.
TimeoutStartSec=10min
# Not after an error of the command line or the settings (2), nor when this machine is not a node of its cluster any
# more (3).
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2 3
# `manager run` renews the certificates in root's contexts of the command line.
Environment=HOME=%h
# Connections of nodes, and files of containers.
LimitNOFILE=1048576
";

const WORKER_PROTECTION: &str = "\
# Only the node itself is stopped. Containers, their supervisors, a containerd that the node started and the process
# that encrypts packets go on, and the next start takes them over. systemd reports them as left-over processes.
KillMode=process
# systemd changes nothing in the cgroups below this one, and keeps all controllers enabled, also for the containers,
# whose cgroups are below /warren.
Delegate=yes
TasksMax=infinity
# When memory is short, containers end first. A container killed for its memory limit does not stop the node.
OOMScoreAdjust=-500
OOMPolicy=continue
# What else systemd offers would break containers, so none of it is set here:
# - PrivateTmp, PrivateMounts, PrivateDevices, ProtectSystem, ProtectHome, ProtectProc, ProtectKernelTunables,
#   ProtectKernelModules, ProtectControlGroups, ReadOnlyPaths: they give the node mounts of its own. The network
#   namespaces and secrets that it mounts would be hidden from containerd, volumes with shared mounts would not work,
#   and all of it would be lost with a restart of the node, while containers go on.
# - NoNewPrivileges, CapabilityBoundingSet, SystemCallFilter, LockPersonality, MemoryDenyWriteExecute, ProtectClock and
#   every Restrict...: a containerd that the node starts inherits them, and so does each container, also sudo in it and
#   a privileged one.
# - RuntimeDirectory: systemd would remove the sockets and network namespaces of running containers with the node.
";

const MANAGER_PROTECTION: &str = "\
# A manager without a worker starts no program and changes nothing but its own files.
OOMScoreAdjust=-500
NoNewPrivileges=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
";

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(kind: NodeKind, data_dir: &str, run_dir: Option<&str>) -> NodeUnit {
        NodeUnit {
            program: "/usr/bin/warren".into(),
            kind,
            data_dir: data_dir.into(),
            run_dir: run_dir.map(PathBuf::from),
        }
    }

    #[test]
    fn command_follows_from_the_node() {
        for (kind, data_dir, run_dir, expected) in [
            (NodeKind::Hybrid, DATA_DIR, None, "\"/usr/bin/warren\" manager run"),
            (NodeKind::Manager, DATA_DIR, None, "\"/usr/bin/warren\" manager run"),
            (NodeKind::Worker, DATA_DIR, None, "\"/usr/bin/warren\" worker run"),
            (
                NodeKind::Worker,
                "/d a\"t%a$\\",
                Some("/r"),
                "\"/usr/bin/warren\" worker run --data-dir \"/d a\\\"t%%a$$\\\\\" --run-dir \"/r\"",
            ),
        ] {
            let text = unit(kind, data_dir, run_dir).render().unwrap();
            let found = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
            assert_eq!(found, expected);
            assert!(is_own(&text), "{text}");
        }
        assert!(!is_own("[Unit]\n"));
    }

    #[test]
    fn containers_outlive_the_unit_and_inherit_no_restriction() {
        let has = |kind: NodeKind, setting: &str| {
            let text = unit(kind, DATA_DIR, None).render().unwrap();
            text.lines().any(|line| line.starts_with(setting))
        };
        for kind in [NodeKind::Hybrid, NodeKind::Worker] {
            for setting in ["KillMode=process", "Delegate=yes", "TasksMax=infinity", "OOMScoreAdjust=-500"] {
                assert!(has(kind, setting), "{kind:?} {setting}");
            }
            for prefix in [
                "Private",
                "Protect",
                "RestrictN",
                "RestrictS",
                "NoNewPrivileges",
                "RuntimeDirectory",
                "SystemCall",
            ] {
                assert!(!has(kind, prefix), "{kind:?} {prefix}");
            }
        }
        assert!(has(NodeKind::Manager, "NoNewPrivileges=yes") && !has(NodeKind::Manager, "KillMode"));
    }

    #[test]
    fn path_with_control_character_is_rejected() {
        let path = "/d\n[Service]";
        assert_eq!(unit(NodeKind::Hybrid, path, None).render(), Err(UnsupportedPath(path.into())));
    }
}
