//! Everything that can go wrong, each with what was wanted, what was found and what to do.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::Ipv4Net;

use crate::model::{HostPort, TaskKey};

/// The process that has a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortHolder {
    /// Process id.
    pub pid: u32,
    /// Name as in `/proc/<pid>/comm`, at most 15 characters.
    pub name: String,
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// Names the holder in a sentence, also when nobody could be found.
fn named(holder: &Option<PortHolder>) -> String {
    match holder {
        Some(holder) => format!("process {holder}"),
        None => "another process".to_owned(),
    }
}

/// An operation on the node's network that did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process lacks the rights for namespaces, links and rules.
    #[error("container networks need root, but this process runs as uid {uid}; start the node as root")]
    NotRoot {
        /// Effective user id found.
        uid: u32,
    },
    /// A program is not on the PATH.
    #[error("the program {program:?} was not found on the PATH; install it, e.g. `apt-get install iptables`")]
    ProgramMissing {
        /// Name of the program.
        program: String,
    },
    /// The installed iptables lacks options that are used.
    #[error("iptables {needed} or newer is needed, found {found:?}; please upgrade it")]
    ProgramTooOld {
        /// What `iptables --version` said.
        found: String,
        /// Oldest version that works.
        needed: &'static str,
    },
    /// A program ran and refused.
    #[error("`{command}` failed: {detail}")]
    ProgramFailed {
        /// The command line, and the offending rule where there is one.
        command: String,
        /// What it printed.
        detail: String,
    },
    /// Something took longer than it may.
    #[error("{what} did not finish within {after:?}; the kernel or a lock holder is stuck")]
    Deadline {
        /// The operation.
        what: String,
        /// The time it had.
        after: Duration,
    },
    /// A thread that did the work died before it answered.
    #[error("{what} was interrupted before it finished; it is safe to try again")]
    Interrupted {
        /// The operation.
        what: String,
    },
    /// A kernel setting could not be read or written.
    #[error("cannot set sysctl {name} to {value}: {source}; is /proc/sys mounted read-only?")]
    Sysctl {
        /// Dotted name, as in `sysctl -a`.
        name: String,
        /// Wanted value.
        value: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused a change of links, addresses, routes or neighbours.
    #[error("cannot {operation}: {source}")]
    Netlink {
        /// What was to be done, to which object.
        operation: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A network namespace could not be made, entered or removed.
    #[error("cannot {operation} network namespace {path:?}: {source}")]
    Namespace {
        /// The step.
        operation: &'static str,
        /// The namespace's file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Connection tracking entries could not be deleted.
    #[error("cannot delete the connection tracking entries of {address}: {source}")]
    Conntrack {
        /// The address they mention.
        address: Ipv4Addr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file could not be read or written.
    #[error("cannot {operation} {path:?}: {source}")]
    File {
        /// The step.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The node's settings are not known yet.
    #[error("the node's subnet is not known yet; call ensure_node first")]
    NoNode,
    /// A task id that cannot name a file.
    #[error(
        "{id:?} cannot name a task's network: wanted 1..=128 of [A-Za-z0-9._-], the first not '.' or '-'"
    )]
    BadTaskKey {
        /// What was given.
        id: String,
    },
    /// A subnet that is unusable for this node.
    #[error("subnet {subnet} cannot serve this node: {reason}")]
    BadSubnet {
        /// The subnet.
        subnet: Ipv4Net,
        /// Why not.
        reason: &'static str,
    },
    /// A task's address does not belong to this node.
    #[error(
        "task {task} has address {address}, which is not a usable address of this node's subnet {subnet}"
    )]
    AddressOutsideSubnet {
        /// The task.
        task: TaskKey,
        /// Its address.
        address: Ipv4Addr,
        /// The node's subnet.
        subnet: Ipv4Net,
    },
    /// Two tasks with one address.
    #[error("task {task} cannot have address {address}: task {by} of this node has it")]
    AddressTaken {
        /// The task.
        task: TaskKey,
        /// Its address.
        address: Ipv4Addr,
        /// Who has it.
        by: TaskKey,
    },
    /// Two tasks whose ids hash to one link name.
    #[error(
        "task {task} needs link {link}, which task {by} has; replace one of them by a task with a new id"
    )]
    LinkNameTaken {
        /// The task.
        task: TaskKey,
        /// The link's name.
        link: String,
        /// Who has it.
        by: TaskKey,
    },
    /// A host port that somebody else has.
    #[error("port {port} is in use by {}; stop it or publish another port", named(.by))]
    PortTaken {
        /// The port that was wanted.
        port: HostPort,
        /// Who has it, when that could be found out.
        by: Option<PortHolder>,
    },
    /// A bind address that this node does not have.
    #[error(
        "cannot publish {port}: this node has no such address; use one of its own, or none for all of them"
    )]
    HostIpMissing {
        /// The port that was wanted.
        port: HostPort,
    },
    /// A host port that could not be bound for another reason.
    #[error("cannot bind port {port}: {source}")]
    BindPort {
        /// The port that was wanted.
        port: HostPort,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another node runs in this network namespace.
    #[error("another warren node{} runs in this network namespace; stop it first", match .pid {
        Some(pid) => format!(" (pid {pid})"), None => String::new() })]
    NamespaceTaken {
        /// Its process id, when it could be found out.
        pid: Option<i32>,
    },
}
