//! Why a certificate is accepted or refused.
//!
//! Managers record neither which certificates they issued nor when these end: machines report the end of their own, and
//! what is recorded of users are keys.

mod holder;
mod user;

use std::ops::Range;
use std::time::Duration;

use warren_types::{CaPhase, ManagerId, Member, Node, NodeId, NodeRole, NodeStatus, Timestamp};

pub use self::holder::CertificateHolder;
use super::{Cause, CertificateReport, Inquiry, Severity, count};

/// How much longer than expected a renewal may take at most: nodes look once an hour, and retry a failed renewal.
const MAX_RENEWAL_TOLERANCE: Duration = Duration::from_secs(6 * 60 * 60);

/// What renews the certificate of a machine.
#[derive(Clone, Copy)]
enum Renewal<'a> {
    /// The manager on the machine issues it, also when it starts.
    Manager,
    /// The agent at this address gets it from a manager, with its key.
    Agent { address: &'a str },
}

impl Renewal<'_> {
    /// What to do if a machine that runs has not renewed a certificate that has expired.
    fn mend_expired(self) -> String {
        match self {
            Self::Manager => {
                let action = "check the clock of its machine, and read its log: a manager issues another certificate \
                              within a minute, and when it starts";
                action.to_owned()
            }
            Self::Agent { address } => format!(
                "check the clock of the machine at {address}, and read the log of its agent: it renews the certificate \
                 with its key, also one that has expired"
            ),
        }
    }
}

impl Inquiry<'_> {
    /// What is desired of the certificate, and what is.
    pub(super) fn certificate(&self, holder: &CertificateHolder) -> Option<(String, Cause)> {
        Some(match holder {
            CertificateHolder::Manager(id) => {
                let cause = self.manager_certificate(self.state.member_of_manager(id)?);
                ("a valid certificate, which the manager renews".to_owned(), cause)
            }
            CertificateHolder::Node(id) => {
                let cause = self.node_certificate(self.state.node(id)?);
                ("a valid certificate, which the node renews".to_owned(), cause)
            }
            CertificateHolder::DepartedManager(id) => {
                let departed = self.state.departed_manager(id)?;
                ("its certificate is refused".to_owned(), departed_manager(id, departed.index))
            }
            CertificateHolder::RemovedNode(id) => {
                let index = self.state.node_removed_at(id)?;
                ("its certificate is refused".to_owned(), removed_node(id, index))
            }
            CertificateHolder::User(id) => {
                let cause = self.user_certificates(self.state.user(id)?);
                ("certificates for its listed keys are accepted".to_owned(), cause)
            }
            CertificateHolder::Key(key) => self.key(key)?,
        })
    }

    /// What is wrong with the certificate of a node, if that is known.
    pub(super) fn certificate_problem(&self, node: &Node) -> Option<Cause> {
        Some(self.node_certificate(node)).filter(|cause| cause.severity == Severity::Problem)
    }

    fn node_certificate(&self, node: &Node) -> Cause {
        let who = format!("node {}", node.name);
        let renewal = match node.role {
            NodeRole::Manager => Renewal::Manager,
            NodeRole::Worker => Renewal::Agent { address: &node.description.address },
        };
        let cause = match (node.status, self.observations.node_certificates.get(&node.id)) {
            (NodeStatus::Ready, Some(CertificateReport { validity: Some(validity), renewal_error })) => {
                self.validity(&who, renewal, validity, renewal_error.as_deref())
            }
            (NodeStatus::Ready, _) => Cause::waiting(
                "certificate-not-reported",
                format!("{who} has not told the managers yet when its certificate expires"),
            )
            .evidence("its agent says so with each heartbeat, to the manager of its session"),
            (NodeStatus::Down | NodeStatus::Unknown, _) => Cause::waiting(
                "certificate-not-reported",
                format!("{who} is not connected, and does not report when its certificate expires"),
            )
            .evidence("one that has expired is renewed when the machine runs again, without a token")
            .action(format!(
                "see `warren why node/{}`; if the machine at {} runs, the log of its agent says whether its \
                 certificate is refused, and why it is not renewed",
                node.name, node.description.address
            )),
        };
        let key = match &node.key {
            Some(key) => format!("for the key {}, which the cluster lists", holder::shown_key(key)),
            None => format!("for the key from which its id {} is derived", node.id),
        };
        let is_missing = self.state.ca_nodes().missing.iter().any(|missing| missing.id == node.id);
        cause
            .evidence(key)
            .evidence(self.issuer(is_missing))
            .because(self.replaced_authority(&who, is_missing))
            .with_worst_severity()
    }

    fn manager_certificate(&self, member: &Member) -> Cause {
        let who = format!("manager {}", member.name);
        let report = self.observations.manager_certificates.get(&member.manager_id);
        let cause = match report {
            _ if member.removing => {
                let sentence = format!("{who} is being removed: its certificate is refused once it has left");
                return Cause::waiting("manager-removing", sentence)
                    .evidence("the key of the administrator of its machine is revoked already")
                    .action("`warren manager ls` says what its removal waits for");
            }
            Some(CertificateReport { validity: Some(validity), renewal_error }) => {
                self.validity(&who, Renewal::Manager, validity, renewal_error.as_deref())
            }
            _ => {
                let sentence =
                    format!("{who} does not answer, so that it is not known when its certificate expires");
                Cause::problem("certificate-not-reported", sentence)
                    .evidence("each manager knows when its own certificate expires, and is asked for it")
                    .action("check that it runs, and read its log")
            }
        };
        let key = format!("for the key from which its id {} is derived", member.manager_id);
        let is_missing =
            self.state.ca_managers().missing.iter().any(|missing| missing.member_id == member.member_id);
        let node = self.state.node_of_manager(&member.name).map(|node| self.node_certificate(node));
        cause
            .evidence(key)
            .evidence(self.issuer(is_missing))
            .because(self.replaced_authority(&who, is_missing))
            .because(node)
            .with_worst_severity()
    }

    /// A certificate of a machine that is connected.
    fn validity(
        &self,
        who: &str,
        renewal: Renewal<'_>,
        validity: &Range<Timestamp>,
        error: Option<&str>,
    ) -> Cause {
        let Range { start, end } = *validity;
        let (lifetime, left) = (end.saturating_since(start), end.saturating_since(self.now));
        let (begins, ends) = (before(end, lifetime / 3), before(end, lifetime / 4));
        let failed = error.map(|error| format!("its renewal fails: {error}")).unwrap_or_default();
        if left.is_zero() {
            let sentence = format!("the certificate of {who} has expired: new connections are refused");
            return Cause::problem("certificate-expired", sentence)
                .since(end)
                .evidence(failed)
                .action(renewal.mend_expired());
        }
        let valid = format!("it is valid until {end}");
        if error.is_some() {
            let sentence = format!("the certificate of {who} is not renewed");
            return Cause::problem("renewal-failing", sentence)
                .evidence(failed)
                .evidence(valid)
                .action("correct what the error names on its machine; the renewal is repeated by itself");
        }
        if left + MAX_RENEWAL_TOLERANCE.min(lifetime / 12) < lifetime / 4 {
            let sentence = format!("the certificate of {who} was not renewed in time");
            return Cause::problem("renewal-overdue", sentence).since(ends).evidence(valid).action(
                "check the clock of its machine, and read the log there; `warren cluster background-tasks` has the \
                 last renewal",
            );
        }
        let next = self.next_lifetime(lifetime);
        if left < lifetime / 3 {
            return Cause::waiting("renewal-due", format!("the certificate of {who} is renewed by {ends}"))
                .since(begins)
                .evidence(valid)
                .evidence(next);
        }
        Cause::ok("certificate-valid", format!("the certificate of {who} is valid until {end}"))
            .evidence(format!("it is renewed between {begins} and {ends}"))
            .evidence(next)
    }

    /// The lifetime of the next certificate, if the setting was changed since this one was issued.
    fn next_lifetime(&self, lifetime: Duration) -> String {
        let hours = |lifetime: Duration| count(lifetime.as_secs() / 3600, "hour");
        let (issued, next) = (hours(lifetime), hours(self.state.node_certificate_lifetime()));
        match issued == next {
            true => String::new(),
            false => format!("it was issued for {issued}, and the next one is for {next}"),
        }
    }

    /// Which authority has issued the certificate, as far as that is known.
    fn issuer(&self, is_missing: bool) -> String {
        match self.state.ca_rotation() {
            None => "by the only certificate authority that the cluster has had".to_owned(),
            Some(_) if is_missing => String::new(),
            Some(rotation) => format!("by the newest certificate authority, {}", rotation.digest),
        }
    }

    /// A holder that the replacement of the authority waits for.
    fn replaced_authority(&self, who: &str, is_missing: bool) -> Option<Cause> {
        let rotation = self.state.ca_rotation().filter(|_| is_missing)?;
        let sentence = format!("{who} has not followed the replacement of the certificate authority yet");
        let expected = match rotation.phase {
            CaPhase::Managers => "the managers come first, and each of them must run",
            CaPhase::Nodes | CaPhase::Complete => {
                "a node follows when it is connected, a user with the next command; until then it trusts an earlier \
                 authority, and may have a certificate of it"
            }
        };
        let cause = Cause::waiting("authority-replaced", sentence)
            .since(rotation.began_at)
            .evidence(format!("the newest authority is {}", rotation.digest))
            .evidence(expected)
            .action("`warren cluster ca status` shows who is missing");
        Some(cause)
    }
}

fn before(at: Timestamp, by: Duration) -> Timestamp {
    Timestamp(at.0.saturating_sub(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
}

/// The state has no times of removals.
fn when(index: u64) -> String {
    let before = index.saturating_sub(1);
    format!(
        "with entry {index} of the log; `warren events --since {before}` has the time, as long as the events are kept"
    )
}

fn removed_node(id: &NodeId, index: u64) -> Cause {
    let sentence =
        format!("node {id} was removed: its certificate is refused in the TLS handshake, and not renewed");
    Cause::problem("node-removed", sentence).evidence(when(index)).action(
        "if the machine is to be a node again, `warren token create --role worker` prints the command",
    )
}

fn departed_manager(id: &ManagerId, index: u64) -> Cause {
    let sentence = format!(
        "manager {id} left the cluster: its certificate is refused in the TLS handshake by managers and nodes"
    );
    Cause::problem("manager-departed", sentence)
        .evidence(when(index))
        .evidence("the CLI and clients of Docker do not know that, and recognise a manager by the authority alone")
        .action(
            "if somebody may have a copy of its files: `warren cluster ca rotate`; if the machine is to be a manager \
             again: `warren token create --role manager`",
        )
}
