//! Last contacts with workers: the leader asks every manager in rounds. The replies contain the digests of states as
//! well, which must not differ.

use std::collections::{BTreeMap, BTreeSet};

use warren_core::{Command, FEATURE_LEVEL, FailureDetector, StateDigest, release_addresses};
use warren_replica::{ComparisonReport, ContactRound, DigestComparison, ReconcileKey, WakeUps};
use warren_types::{ClusterId, Id, MemberId};

use super::planner::millis;
use super::{Proposer, joining};
use crate::event::{ManagerEvent, PeerMessage};
use crate::simulation::{ClusterSimulation, PlantedDefect};

/// Seconds after which the leader enqueues every key again, in case a wake-up was lost.
const SWEEP_EVERY: u64 = 5;

/// What a leader knows of contacts and states.
#[derive(Debug, Default)]
pub struct ContactCollection {
    /// The round in progress.
    round: Option<ContactRound>,
    detector: FailureDetector,
    digests: BTreeMap<MemberId, Vec<StateDigest>>,
    comparison: DigestComparison,
}

impl ClusterSimulation {
    /// Asks every other manager for its contacts.
    pub(super) fn request_contacts(&mut self, host: usize) {
        let (own, elapsed) = (self.managers[host].id, self.elapsed());
        let Some(run) = &mut self.managers[host].run else { return };
        let term = run.replica.role().term;
        let ContactCollection { round, detector, .. } = &mut run.contacts;
        let begun =
            round.insert(ContactRound::begin(detector, run.replica.state(), term, own, elapsed)).clone();
        for member in begun.awaited() {
            if let Some(other) = self.reachable_host(host, *member) {
                self.send_peer(host, other, PeerMessage::ContactsRequest { term });
            }
        }
        self.at_manager(host, millis(begun.timeout()), ManagerEvent::ContactsTimeout);
        self.evaluate_contacts(host);
    }

    /// Evaluates the nodes, and compares the states, once the round is over.
    pub(super) fn evaluate_contacts(&mut self, host: usize) {
        let (own, now, elapsed, stamp) =
            (self.managers[host].id, self.now, self.elapsed(), self.wall_time(host));
        let ids: Vec<_> = self.workers.iter().map(|worker| worker.id).collect();
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(round) = run.contacts.round.take_if(|round| round.is_over(elapsed)) else { return };
        let (role, state) = (run.replica.role(), run.replica.state());
        if !role.can_plan {
            return self.finish_key(host, ReconcileKey::Liveness, None);
        }
        let ContactCollection { detector, digests, comparison, .. } = &mut run.contacts;
        let local = run.sessions.contacts(now, &ids);
        let mut plan = round.plan(detector, state, role.term, elapsed, local, stamp);
        if self.defect == Some(PlantedDefect::IgnoreNetworkAcks) {
            plan.commands.retain(|command| !matches!(command, Command::ReleaseAddresses { .. }));
            let all = state.nodes().map(|node| (node.id, u64::MAX)).collect();
            plan.commands.extend(release_addresses(state, &all, stamp));
        }
        let mut reported = std::mem::take(digests);
        reported.insert(own, vec![state.digest()]);
        let members: BTreeSet<MemberId> = state.members().map(|member| member.member_id).collect();
        let reports = comparison.record_digests(&reported, Some(own), &members);
        for (member, report) in reports {
            if let ComparisonReport::Diverged(divergence) = report {
                self.check(Err(format!("equal entries make equal states: member {member}: {divergence}")));
            }
        }
        self.start_plan(host, ReconcileKey::Liveness, plan);
    }

    pub(super) fn found_cluster(&mut self, host: usize) {
        let at = self.wall_time(host);
        let Some(run) = self.process(host) else { return };
        let founded = run.replica.state().cluster().is_some();
        let token = joining::token(run.replica.state());
        let is_known =
            |id| run.replica.state().node(id).is_some() || run.replica.state().node_removed_at(id).is_some();
        let unknown: Vec<usize> =
            (0..self.workers.len()).filter(|worker| !is_known(&self.workers[*worker].id)).collect();
        if !founded {
            let ranges = vec!["10.210.0.0/16".parse().expect("a valid range")];
            let create =
                Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level: FEATURE_LEVEL, at };
            self.propose(host, Proposer::Nobody, create);
        }
        if let Some(token) = token {
            self.propose(host, Proposer::Nobody, token);
        }
        for worker in unknown {
            let register = self.workers[worker].registers(at);
            self.propose(host, Proposer::Nobody, register);
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
        if run.role().can_plan {
            let all = WakeUps::all(&run.role(), run.state());
            self.operator_cleanup(host);
            if (self.now / 1_000).is_multiple_of(SWEEP_EVERY) {
                self.wake(host, all);
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
                self.forwarded_write(host, (from, from_boot), request, *command, deadline);
            }
            // A rejected member gets the reason.
            PeerMessage::Hello { id } => drop(self.accepts_member(host, id)),
            // A manager that lags may report the removal of an earlier member id of this machine.
            PeerMessage::Removed { member } if member != self.managers[host].id => {}
            PeerMessage::Removed { .. } => self.was_removed(host),
            PeerMessage::Answer { request, position } => self.leader_answered(host, request, *position),
            PeerMessage::ContactsRequest { term } => {
                let now = self.now;
                let ids: Vec<_> = self.workers.iter().map(|worker| worker.id).collect();
                let Some(run) = &self.managers[host].run else { return };
                let heard = run.sessions.contacts(now, &ids);
                let digest = run.state().digest();
                self.send_peer(host, from, PeerMessage::Contacts { term, heard, digest });
            }
            PeerMessage::Contacts { term, heard, digest } => {
                let member = self.managers[from].id;
                let Some(run) = &mut self.managers[host].run else { return };
                if run.replica.role().term == term
                    && let Some(round) = &mut run.contacts.round
                {
                    round.record(member, heard);
                    run.contacts.digests.insert(member, vec![digest]);
                    self.evaluate_contacts(host);
                }
            }
        }
    }
}
