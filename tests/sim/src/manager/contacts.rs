//! Last contacts with workers: the leader asks every manager once a second, and before it starts any timeout.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_core::{Command, FEATURE_LEVEL, FailureDetector, ReconcilePlan};
use warren_types::{ClusterId, Id, MemberId};

use super::{WriteOrigin, joining};
use crate::event::{ManagerEvent, PeerMessage};
use crate::simulation::ClusterSimulation;

/// A new leader waits this long for managers to report their connected workers.
const CONTACTS_DEADLINE: u64 = 1_000;
/// Node liveness is evaluated at least this often.
const LISTEN_TIME: Duration = Duration::from_secs(1);
/// Seconds after which the leader enqueues every key again, in case a wake-up was lost.
const SWEEP_EVERY: u64 = 5;

/// What a leader knows of contacts.
#[derive(Debug, Default)]
pub struct ContactCollection {
    /// Managers that have not answered yet, and the deadline.
    asked: BTreeSet<usize>,
    until: u64,
    /// When each manager answered since the last evaluation, and the age of each worker's last message.
    received: BTreeMap<MemberId, (u64, Vec<(usize, u64)>)>,
    detector: FailureDetector,
}

impl ClusterSimulation {
    /// A new leader asks every manager for its sessions, founds the cluster if there is none, and enqueues
    /// everything.
    pub(super) fn become_leader(&mut self, host: usize) {
        let asked = self.request_contacts(host);
        let until = self.now + CONTACTS_DEADLINE;
        let Some(run) = &mut self.managers[host].run else { return };
        let hearing = std::mem::take(&mut run.contacts.detector);
        run.contacts = ContactCollection { asked, until, received: BTreeMap::new(), detector: hearing };
        self.found_cluster(host);
        self.restart_planning(host);
    }

    /// Asks every other manager for its contacts. Returns those managers.
    fn request_contacts(&mut self, host: usize) -> BTreeSet<usize> {
        let others = (0..self.managers.len()).filter(|other| *other != host && self.is_member(host, *other));
        let others: BTreeSet<usize> = others.collect();
        let term = self.process(host).map_or(0, |run| run.role.term);
        for other in &others {
            self.send_peer(host, *other, PeerMessage::ContactsRequest { term });
        }
        others
    }

    fn found_cluster(&mut self, host: usize) {
        let at = self.wall_time(host);
        let Some(run) = self.process(host) else { return };
        let founded = run.state.cluster().is_some();
        let token = joining::token(&run.state);
        let is_known = |id| run.state.node(id).is_some() || run.state.node_removed_at(id).is_some();
        let unknown: Vec<usize> =
            (0..self.workers.len()).filter(|worker| !is_known(&self.workers[*worker].id)).collect();
        if !founded {
            let ranges = vec!["10.210.0.0/16".parse().expect("a valid range")];
            let create =
                Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level: FEATURE_LEVEL, at };
            self.propose(host, WriteOrigin::Nobody, create, u64::MAX);
        }
        if let Some(token) = token {
            self.propose(host, WriteOrigin::Nobody, token, u64::MAX);
        }
        for worker in unknown {
            let register = self.workers[worker].registers(at);
            self.propose(host, WriteOrigin::Nobody, register, u64::MAX);
        }
    }

    /// Once a second, at every manager.
    pub(super) fn run_every_second(&mut self, host: usize) {
        self.at_manager(host, 1_000, ManagerEvent::EverySecond);
        self.register_manager(host);
        self.send_hello(host);
        self.start_read(host);
        self.expire_writes(host);
        self.close_silent_sessions(host);
        let Some(run) = &self.managers[host].run else { return };
        if run.role.may_plan {
            self.request_contacts(host);
            self.operator_cleanup(host);
            self.wake_members(host);
            if (self.now / 1_000).is_multiple_of(SWEEP_EVERY) {
                self.wake_all(host);
            }
        }
    }

    pub(super) fn receive_from_peer(
        &mut self,
        host: usize,
        from: usize,
        from_boot: u64,
        message: PeerMessage,
    ) {
        match message {
            PeerMessage::Forward { request, command, deadline } => {
                let from = WriteOrigin::Peer { host: from, boot: from_boot, request };
                self.forward_write(host, from, *command, deadline);
            }
            // A rejected member is told so.
            PeerMessage::Hello { id, address } => {
                if self.accepts_member(host, id) {
                    self.learn_address(host, id, address);
                }
            }
            PeerMessage::Removed => self.was_removed(host),
            PeerMessage::Answer { request, answer } => self.leader_answered(host, request, answer),
            PeerMessage::ContactsRequest { term } => {
                let now = self.now;
                let Some(run) = &self.managers[host].run else { return };
                let heard = run.sessions.ages(now).collect();
                self.send_peer(host, from, PeerMessage::Contacts { term, heard });
            }
            PeerMessage::Contacts { term, heard } => {
                let (now, member) = (self.now, self.managers[from].id);
                let Some(run) = &mut self.managers[host].run else { return };
                if run.role.is_leader && run.role.term == term {
                    run.contacts.asked.remove(&from);
                    run.contacts.received.insert(member, (now, heard));
                }
            }
        }
    }

    /// Evaluates the nodes once every manager was asked.
    pub(super) fn plan_liveness(&mut self, host: usize) -> ReconcilePlan {
        let (now, elapsed, stamp) = (self.now, self.elapsed(), self.wall_time(host));
        let ids: Vec<_> = self.workers.iter().map(|worker| worker.id).collect();
        let Some(run) = &mut self.managers[host].run else { return ReconcilePlan::default() };
        let recheck_after = Some(LISTEN_TIME);
        if !run.contacts.asked.is_empty() && now < run.contacts.until {
            return ReconcilePlan { commands: Vec::new(), recheck_after: Some(Duration::from_millis(50)) };
        }
        let ago = |millis| Duration::from_millis(millis);
        let here: Vec<_> = run.sessions.ages(now).collect();
        let here = here.into_iter().map(|(worker, age)| (ids[worker], elapsed.saturating_sub(ago(age))));
        let reported = std::mem::take(&mut run.contacts.received).into_iter().map(|(member, (at, heard))| {
            let ages = heard.into_iter().map(|(worker, age)| (ids[worker], ago(age + now - at)));
            (member, ages.collect())
        });
        let (term, reported) = (run.role.term, reported.collect());
        let judgement = run.contacts.detector.evaluate(&run.state, term, elapsed, here, reported);
        ReconcilePlan { commands: judgement.commands(&run.state, stamp), recheck_after }
    }
}
